"""A model's main graph as a search sees it: nodes in topological order, and copies with more outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ortlock.errors import OrtlockError
from ortlock.operators.knowledge import operator_name
from ortlock.operators.model_file import load, places, subgraphs

CAST_SUFFIX = "__ortlock_float32"
"""Ends the name of a float32 copy of a tensor whose type NumPy lacks. Every value keeps its own image."""

_NOT_IN_NUMPY = frozenset(
    {"bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "int4", "uint4"}
)


class GraphError(OrtlockError):
    """A model's graph cannot be searched; the text says why and what to do."""


@dataclass(frozen=True)
class GraphNode:
    """One node of the main graph."""

    index: int
    """Position in topological order."""
    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    """What it reads, values that its subgraphs take from outside included; absent optional ones are left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, object]
    """Those that decide about reproducibility."""
    has_subgraphs: bool

    @property
    def label(self) -> str:
        """Name and operator, for people."""
        return f"{self.name or f'node {self.index}'} ({operator_name(self.op_type, self.domain)})"


class Graph:
    """A model that can be copied with intermediate tensors as outputs."""

    def __init__(self, data: bytes) -> None:
        """Read a model, without its external data.

        Raises:
            GraphError: it is no ONNX model in the binary form.
        """
        model = load(None, data)
        if model is None:
            remedy = "Give the ONNX file it was made from."
            raise GraphError(f"the model cannot be read as ONNX (.ort files have no tensors to look at). {remedy}")
        self.model = model
        kept = {place.index: place.attributes or {} for place in places(model) if place.graph == 0}
        self.nodes = tuple(
            GraphNode(
                index,
                node.name,
                node.op_type,
                node.domain,
                tuple(dict.fromkeys(name for name in _reads(node) if name)),
                tuple(name for name in node.output if name),
                kept.get(index, {}),
                any(attribute.type in _GRAPHS for attribute in node.attribute),
            )
            for index, node in enumerate(model.graph.node)
        )
        self.producer = {name: node for node in self.nodes for name in node.outputs}
        self.outputs = tuple(value.name for value in model.graph.output)
        constants = {tensor.name for tensor in model.graph.initializer}
        self.inputs = tuple(value.name for value in model.graph.input if value.name not in constants)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor that a node computes, in topological order."""
        return tuple(self.producer)

    def proto(self, node: GraphNode) -> onnx.NodeProto:
        """Return a node as the model has it."""
        return self.model.graph.node[node.index]

    def exposing(
        self, names: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None, types: Mapping[str, str] = {}
    ) -> bytes:
        """Return the model with exactly these tensors as outputs.

        Args:
            names: tensors that nodes compute.
            shapes: sizes of the model's inputs to write into it, so that ONNX Runtime can infer other sizes.
            types: types as ONNX Runtime writes them. Of a tensor whose type NumPy lacks, a float32 copy is given.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        known = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
        del model.graph.output[:]
        for name in names:
            if element_type(types.get(name, "")) in _NOT_IN_NUMPY:
                copy = f"{name}{CAST_SUFFIX}"
                model.graph.node.append(onnx.helper.make_node("Cast", [name], [copy], to=onnx.TensorProto.FLOAT))
                model.graph.output.append(onnx.ValueInfoProto(name=copy))
            else:
                # Without a type ONNX Runtime infers it.
                model.graph.output.append(known[name] if name in self.outputs else onnx.ValueInfoProto(name=name))
        for value in model.graph.input:
            _fix(value, (shapes or {}).get(value.name))
        return bytes(model.SerializeToString())

    def isolated(self, node: GraphNode, feed: Mapping[str, Any]) -> bytes:
        """Return a model of one node alone, which takes what is in ``feed``, in any shape of that rank.

        Args:
            node: one of this graph's.
            feed: arrays by name; what the node reads beside them must be constants of the model.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        reads, proto = set(node.inputs) - set(feed), onnx.NodeProto()
        proto.CopyFrom(self.proto(node))
        constants = [onnx.TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name in reads]
        graph.Clear()
        graph.name = "node"
        graph.node.append(proto)
        graph.initializer.extend(constants)
        for name, value in feed.items():
            element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, element, [None] * value.ndim))
        graph.output.append(onnx.ValueInfoProto(name=node.outputs[0]))
        return bytes(model.SerializeToString())


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def element_type(text: str) -> str:
    """Return ``float16`` of ``tensor(float16)``; empty for what is no tensor."""
    return text[len("tensor(") : -1] if text.startswith("tensor(") else ""


def shapes_of(feed: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs that have one."""
    found = {}
    for name, value in feed.items():
        shape = value.shape() if callable(getattr(value, "shape", None)) else np.shape(value)
        found[name] = tuple(int(size) for size in shape)
    return found


def _fix(value: onnx.ValueInfoProto, shape: Sequence[int] | None) -> None:
    dims = value.type.tensor_type.shape.dim
    if shape is None or len(dims) != len(shape):
        return
    for dim, size in zip(dims, shape, strict=True):
        dim.dim_value = size


def _reads(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of a node and what its subgraphs read from outside themselves."""
    names = list(node.input)
    for _, graph in subgraphs(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            names += [name for name in _reads(inner) if name not in own]
            own.update(inner.output)
    return names
