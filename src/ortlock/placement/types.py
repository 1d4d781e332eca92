"""Element types of a model's tensors, as far as they can be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx.shape_inference import InferenceError, infer_shapes

from ortlock.operators.model_file import subgraphs

Types = Mapping[str, int]
"""``TensorProto`` types by tensor name."""


def types_by_node(model: onnx.ModelProto) -> Iterator[Types]:
    """Yield what is known inside of each node's graph, for the nodes of the main graph and its subgraphs.

    In the order of ``ortlock.operators.model_file.places``: each graph before those inside it. Names of an inner graph
    go before those outside of it.
    """
    try:
        inferred = infer_shapes(model)
    except (InferenceError, ValueError):
        # Of a model that ONNX cannot follow, or one too large to copy, what it says itself.
        inferred = model
    yield from _nodes(inferred.graph, {})


def _nodes(graph: onnx.GraphProto, outside: Types) -> Iterator[Types]:
    here = {**outside, **{tensor.name: tensor.data_type for tensor in graph.initializer}}
    # A local tensor of unknown type hides an outer one of the same name.
    for name in (name for node in graph.node for name in node.output):
        here.pop(name, None)
    for value in graph.input:
        here.pop(value.name, None)
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            here[value.name] = value.type.tensor_type.elem_type
    for node in graph.node:
        yield here
        for _, inner in subgraphs(node):
            yield from _nodes(inner, here)
