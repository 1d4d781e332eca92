"""The floating-point types that a model uses."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

_NAMES = {
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
}


def float_types(model: onnx.ModelProto) -> frozenset[str]:
    """Return the floating-point types that any value of a model may have, by NumPy's names.

    A type gets into a model with an input, with a constant or through an attribute that names it, as Cast's ``to``;
    everything else takes over the type of what it is given.
    """
    found: set[int] = set()
    _add_graph(model.graph, found)
    for function in model.functions:
        _add_nodes(function.node, found)
        _add_values(function.value_info, found)
    return frozenset(name for number, name in _NAMES.items() if number in found)


def _add_graph(graph: onnx.GraphProto, found: set[int]) -> None:
    for values in (graph.input, graph.output, graph.value_info):
        _add_values(values, found)
    found.update(tensor.data_type for tensor in graph.initializer)
    found.update(tensor.values.data_type for tensor in graph.sparse_initializer)
    _add_nodes(graph.node, found)


def _add_values(values: Iterable[onnx.ValueInfoProto], found: set[int]) -> None:
    for value in values:
        kind = value.type
        while (inner := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
            kind = getattr(kind, inner).elem_type
        if inner in ("tensor_type", "sparse_tensor_type"):
            found.add(getattr(kind, inner).elem_type)


def _add_nodes(nodes: Iterable[onnx.NodeProto], found: set[int]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            _add_attribute(attribute, found)


def _add_attribute(attribute: onnx.AttributeProto, found: set[int]) -> None:
    kinds = onnx.AttributeProto
    match attribute.type:
        case kinds.INT if attribute.name == "to" or "dtype" in attribute.name or "datatype" in attribute.name:
            found.add(attribute.i)
        case kinds.FLOAT | kinds.FLOATS if attribute.name.startswith("value_float"):
            found.add(onnx.TensorProto.FLOAT)
        case kinds.TENSOR:
            found.add(attribute.t.data_type)
        case kinds.TENSORS:
            found.update(tensor.data_type for tensor in attribute.tensors)
        case kinds.SPARSE_TENSOR:
            found.add(attribute.sparse_tensor.values.data_type)
        case kinds.GRAPH:
            _add_graph(attribute.g, found)
        case kinds.GRAPHS:
            for graph in attribute.graphs:
                _add_graph(graph, found)
