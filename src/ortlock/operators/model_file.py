"""Reading a model's nodes, with what decides about their reproducibility, without its weights' files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
Attributes = dict[str, object] | None
"""None where they are not known."""
FunctionName = tuple[str, str]
"""Domain and name."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node and where it stands."""

    graph: int
    """0 for the main graph, more for subgraphs, -1 for the bodies of the model's functions."""
    path: tuple[str, ...]
    """What it stands inside of, from the outside in, e.g. ``("loop1/body",)`` or ``("function f.Mine",)``."""
    index: int
    """Position among the nodes of its graph."""
    node: onnx.NodeProto
    attributes: Attributes
    """Those that matter."""
    function: FunctionName | None
    """The function whose body it belongs to."""

    @property
    def label(self) -> str:
        """What it stands inside of and its name, else operator and position, for people: ``loop1/body: Scatter_3``."""
        own = self.node.name or f"{self.node.op_type} #{self.index}"
        return f"{'/'.join(self.path)}: {own}" if self.path else own


def is_ort_format(start: bytes) -> bool:
    """Return whether a model that begins like this is in ONNX Runtime's own format; 8 bytes tell."""
    return start[4:8] == b"ORTM"


def opset_of(owner: onnx.ModelProto | onnx.FunctionProto) -> int:
    """Return the version of ONNX's own operators that a model or function uses; 0 where it names none."""
    return max((int(one.version) for one in owner.opset_import if one.domain in ("", "ai.onnx")), default=0)


def load(path: str | None, data: bytes | None) -> onnx.ModelProto | None:
    """Return a model without its external data; None where it is not an ONNX model in the binary form.

    ONNX Runtime takes the binary form whatever the file's name, and its own .ort format.
    """
    try:
        if data is None:
            data = Path(path).read_bytes() if path is not None else b""
        # ONNX Runtime's own format, which Protocol Buffers may misread as an empty model.
        model = onnx.load_model_from_string(data) if not is_ort_format(data) else onnx.ModelProto()
    except (DecodeError, OSError, ValueError):
        return None
    return model if model.HasField("graph") else None


def places(model: onnx.ModelProto) -> Iterator[Place]:
    """Yield every node, each graph before those inside it, the bodies of the model's functions last.

    ONNX Runtime inlines the functions.
    """
    walk = _Walk({(function.domain, function.name) for function in model.functions})
    # An initializer that is an input as well can be replaced by the caller.
    fed = {value.name for value in model.graph.input}
    constants = {name: flag for name, flag in _flags(model.graph).items() if name not in fed}
    yield from walk.nodes(model.graph.node, constants, 0, ())
    for function in model.functions:
        name = (function.domain, function.name)
        path = (f"function {function.domain}.{function.name}" if function.domain else f"function {function.name}",)
        yield from walk.nodes(function.node, _constants(function.node), _FUNCTION_BODY, path, name)


class _Walk:
    """Numbers the subgraphs on its way."""

    def __init__(self, functions: set[FunctionName]) -> None:
        self._functions = functions
        self._graphs = 0

    def nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        constants: Flags,
        graph: int,
        path: tuple[str, ...],
        function: FunctionName | None = None,
    ) -> Iterator[Place]:
        for index, node in enumerate(nodes):
            yield Place(graph, path, index, node, self._attributes(node, constants), function)
            for label, inner in subgraphs(node):
                self._graphs += 1
                number = _FUNCTION_BODY if graph == _FUNCTION_BODY else self._graphs
                within = (*path, f"{node.name or f'{node.op_type} #{index}'}/{label}")
                yield from self.nodes(inner.node, {**constants, **_flags(inner)}, number, within, function)

    def _attributes(self, node: onnx.NodeProto, constants: Flags) -> Attributes:
        if (node.domain, node.op_type) in self._functions:
            return {"function": True}
        kept = [attribute for attribute in node.attribute if attribute.name in _KEPT]
        if any(attribute.ref_attr_name for attribute in kept):
            return None  # inside a function, and different in each call of it
        found = {attribute.name: _value(attribute) for attribute in kept}
        if training := _input(node, _TRAINING_INPUT):
            found["training_mode"] = constants.get(training)
        if node.op_type in _BIAS_INPUT:
            found["bias"] = bool(_input(node, _BIAS_INPUT))
        return found


def _input(node: onnx.NodeProto, positions: Mapping[str, int]) -> str:
    """Return the name of the input at the operator's position; empty where there is none."""
    position = positions.get(node.op_type)
    return node.input[position] if position is not None and len(node.input) > position else ""


def subgraphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the graphs inside a node with the names of the attributes that hold them."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.name, attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            for number, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{number}]", graph


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose values lie in files of their own, in any graph or function."""
    tensors = [_tensors_of_graph(model.graph), *(_tensors_of_nodes(function.node) for function in model.functions)]
    for group in tensors:
        for tensor in group:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                yield tensor


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for _, inner in subgraphs(node):
            yield from _tensors_of_graph(inner)


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
    if math.prod(tensor.dims) != 1:
        return None
    return bool(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])


def _value(attribute: onnx.AttributeProto) -> object:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
