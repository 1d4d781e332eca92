"""Element types of a model's tensors."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx.shape_inference import InferenceError, infer_shapes


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return ``TensorProto`` types by tensor name, of the main graph and subgraphs, as far as inference gets."""
    try:
        inferred = infer_shapes(model)
    except (InferenceError, ValueError):
        # Of a model that ONNX cannot follow, or one too large to copy, what it says itself.
        inferred = model
    found: dict[str, int] = {}
    for graph in _graphs(inferred.graph):
        found |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
                found[value.name] = value.type.tensor_type.elem_type
    return found


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)
