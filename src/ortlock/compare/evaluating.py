"""A model's weights, and its whole graph in float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ortlock.compare.reference import Reference, widened
from ortlock.localise import Graph


def weights_of(model: onnx.ModelProto, folder: Path | None) -> dict[str, Any]:
    """Return a model's initializers by name; ``folder`` is where its external data are."""
    base = str(folder) if folder is not None else ""
    return {tensor.name: _array(numpy_helper.to_array(tensor, base)) for tensor in model.graph.initializer}


def _array(value: Any) -> Any:
    # bfloat16 and the like come in types of their own, of which float32 holds every value.
    return value.astype(np.float32) if value.dtype.kind == "V" or value.dtype.name == "bfloat16" else value


def evaluate_whole(
    graph: Graph, reference: Reference, weights: Mapping[str, Any], feed: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Run the whole graph in float64; return its outputs, and the nodes that cannot be evaluated.

    What comes after such a node has no value. Values are dropped after their last reader.
    """
    last = {name: node.index for node in graph.nodes for name in node.inputs}
    values: dict[str, Any] = {**{name: widened(value) for name, value in feed.items()}}
    failed = []
    for node in graph.nodes:
        proto = graph.proto(node)
        inputs = inputs_of(proto, values, weights)
        results = reference.evaluate(proto, inputs) if inputs is not None else None
        if results is None and inputs is not None:
            failed.append(node.label)
        if results is not None:
            values.update(zip((name for name in proto.output if name), results, strict=True))
        for name in node.inputs:
            if last[name] == node.index and name not in graph.outputs:
                values.pop(name, None)
    return {name: values[name] for name in graph.outputs if name in values}, failed


def inputs_of(proto: onnx.NodeProto, values: Mapping[str, Any], weights: Mapping[str, Any]) -> list[Any] | None:
    """Return a node's inputs; None where one of them is not known."""
    inputs = []
    for name in proto.input:
        if name and name not in values and name not in weights:
            return None
        inputs.append(None if not name else values[name] if name in values else widened(weights[name]))
    return inputs
