"""Reading a model's nodes, with what decides about their reproducibility, without its weights' files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

# Attributes that decide about reproducibility. Others are left out, so that a report stays small.
_KEPT = frozenset({"approximate", "equation", "reduction", "seed", "activation", "weight_prepacked", "training_mode"})

_TRAINING_INPUT = {"Dropout": 2, "BitmaskDropout": 2}
"""Position of the input ``training_mode``."""

_BIAS_INPUT = {"FastGelu": 1}
"""Position of the optional input ``bias``, where it matters whether it is there."""

_FUNCTION_BODY = -1

Flags = Mapping[str, bool]
"""Boolean constants by name."""
Found = tuple[int, onnx.NodeProto, dict[str, object]]


def load(path: str | None, data: bytes | None) -> onnx.ModelProto | None:
    """Return a model without its external data; None where it is not an ONNX model in the binary form.

    ONNX Runtime takes the binary form whatever the file's name, and its own .ort format.
    """
    try:
        if data is None:
            data = Path(path).read_bytes() if path is not None else b""
        # ONNX Runtime's own format, which Protocol Buffers may misread as an empty model.
        model = onnx.load_model_from_string(data) if data[4:8] != b"ORTM" else onnx.ModelProto()
    except (DecodeError, OSError, ValueError):
        return None
    return model if model.HasField("graph") else None


def model_nodes_by_graph(model: onnx.ModelProto) -> Iterator[Found]:
    """Yield every node with its graph and the attributes that matter, each graph before those inside it.

    The graph is a number: 0 for the main one, more for subgraphs, -1 for the bodies of the model's functions, which
    ONNX Runtime inlines.
    """
    functions = {(function.domain, function.name) for function in model.functions}
    walk = _Walk(functions)
    # An initializer that is an input as well can be replaced by the caller.
    fed = {value.name for value in model.graph.input}
    constants = {name: flag for name, flag in _flags(model.graph).items() if name not in fed}
    yield from walk.nodes(model.graph.node, constants, 0)
    for function in model.functions:
        yield from walk.nodes(function.node, _constants(function.node), _FUNCTION_BODY)


class _Walk:
    """Numbers the subgraphs on its way."""

    def __init__(self, functions: set[tuple[str, str]]) -> None:
        self._functions = functions
        self._graphs = 0

    def nodes(self, nodes: Iterable[onnx.NodeProto], constants: Flags, graph: int) -> Iterator[Found]:
        for node in nodes:
            yield graph, node, self._attributes(node, constants)
            for inner in _subgraphs(node):
                self._graphs += 1
                number = _FUNCTION_BODY if graph == _FUNCTION_BODY else self._graphs
                yield from self.nodes(inner.node, {**constants, **_flags(inner)}, number)

    def _attributes(self, node: onnx.NodeProto, constants: Flags) -> dict[str, object]:
        found = {attribute.name: _value(attribute) for attribute in node.attribute if attribute.name in _KEPT}
        if (node.domain, node.op_type) in self._functions:
            found["function"] = True
        if training := _input(node, _TRAINING_INPUT):
            found["training_mode"] = constants.get(training)
        if node.op_type in _BIAS_INPUT:
            found["bias"] = bool(_input(node, _BIAS_INPUT))
        return found


def _input(node: onnx.NodeProto, positions: Mapping[str, int]) -> str:
    """Return the name of the input at the operator's position; empty where there is none."""
    position = positions.get(node.op_type)
    return node.input[position] if position is not None and len(node.input) > position else ""


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _flags(graph: onnx.GraphProto) -> dict[str, bool]:
    initializers = {tensor.name: flag for tensor in graph.initializer if (flag := _flag(tensor)) is not None}
    return initializers | _constants(graph.node)


def _constants(nodes: Iterable[onnx.NodeProto]) -> dict[str, bool]:
    return {
        node.output[0]: flag
        for node in nodes
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value" and (flag := _flag(attribute.t)) is not None
    }


def _flag(tensor: onnx.TensorProto) -> bool | None:
    if tensor.data_type != onnx.TensorProto.BOOL or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    values = onnx.numpy_helper.to_array(tensor).reshape(-1)
    return bool(values[0]) if values.size == 1 else None


def _value(attribute: onnx.AttributeProto) -> object:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
