"""The nodes of a session: which operator, in which domain, on which execution provider."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from ortlock.operators.element_types import float_types
from ortlock.operators.indices import SCATTERS, Constants
from ortlock.operators.knowledge import CPU, CUDA, has_cuda_kernel, operator_name
from ortlock.operators.model_file import Place, places
from ortlock.operators.weightless import load_slim


@dataclass(frozen=True, slots=True)
class Node:
    """One node as it runs."""

    name: str
    op_type: str
    domain: str
    provider: str | None
    """None where nobody knows."""
    attributes: Mapping[str, object] | None
    """Those that matter; None where they are not known. Beside the operator's own: ``training_mode`` of Dropout, which
    is an input, as True, False or None (fed at run time); ``bias`` of FastGelu, whether that input is there;
    ``duplicates``, whether a scatter's constant indices name an element more than once, where that can be told;
    ``function``, True for a call of one of the model's own functions."""
    types: frozenset[str] | None = None
    """The floating-point types that its model uses, such as ``float16``; None where they are not known."""

    @property
    def label(self) -> str:
        """Name and operator, for people."""
        operator = operator_name(self.op_type, self.domain)
        return f"{self.name} ({operator})" if self.name else f"an unnamed {operator}"


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes of a session, and how they are known."""

    nodes: tuple[Node, ...]
    known_by: str
    """``assignment``: ONNX Runtime's own record, after its fusions; ``model file``: the model's nodes, on the first
    provider of the session as far as anybody knows; ``unknown``: neither could be read."""


Named = Callable[[str], Node | None]
"""From a node's name as it runs to the model's own node, where a copy of the model gave it another name."""


def nodes_of_session(session: Any, path: str | None, data: bytes | None, named: Named | None = None) -> NodeList:
    """Return the nodes of ``session``.

    ONNX Runtime's record of the assignment is used where there is one (from 1.24 on, if the session was created with
    ``session.record_ep_graph_assignment_info=1``). It knows fused and inserted nodes and those in subgraphs;
    attributes come from the model. A subgraph of which the record has no node at all is added from the model.

    Args:
        session: an initialised ``onnxruntime.InferenceSession``.
        path: the model's file, or None.
        data: the model's bytes, or None.
        named: for a session on a copy of the model with other names.
    """
    providers = session.get_providers()
    found = _found(path, data, providers)
    in_file = tuple(node for _, node in found or ())
    assigned = _assigned(session)
    if assigned is None:
        return NodeList(in_file, "unknown" if found is None else "model file")
    nodes = _with_attributes(assigned, in_file)
    if named is not None:
        nodes = [_under_own_name(node, named) for node in nodes]
    seen = {(node.name, node.op_type) for node in nodes}
    subgraphs: dict[int, list[Node]] = defaultdict(list)
    for graph, node in found or ():
        if graph > 0:
            subgraphs[graph].append(node)
    for members in subgraphs.values():
        if not any((node.name, node.op_type) in seen for node in members):
            nodes += members
    return NodeList(tuple(nodes), "assignment")


def model_nodes(path: str | None, data: bytes | None, provider: str | None) -> tuple[Node, ...] | None:
    """Return the nodes of a model, subgraphs and functions included; None where it cannot be read as ONNX."""
    found = _found(path, data, [provider] if provider else [])
    return None if found is None else tuple(node for _, node in found)


def nodes_with_weights(path: str | None, data: bytes | None, tensors: Sequence[str]) -> tuple[str, ...]:
    """Return the convolutions of a model's main graph that an operation of cuDNN's may be, by the weights' shape.

    Args:
        path: the model's file, or None.
        data: the model's bytes, or None.
        tensors: the operation's tensors in words, e.g. ``w f32[64,64,3,3]`` among them.
    """
    found = [match[1] for tensor in tensors if (match := re.match(r"w \S*?\[([0-9,]+)\]", tensor))]
    model = load_slim(path, data) if found else None
    if model is None:
        return ()
    wanted = _significant(int(size) for size in found[0].split(","))
    shapes = {tensor.name: _significant(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            shapes.update(
                (node.output[0], _significant(value.t.dims)) for value in node.attribute if value.name == "value"
            )
    return tuple(
        Node(node.name, node.op_type, node.domain, None, None).label
        for node in model.graph.node
        if node.op_type in _CONVOLUTIONS and len(node.input) > 1 and shapes.get(node.input[1]) == wanted
    )


_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "FusedConv"})


def _significant(shape: Iterable[int]) -> tuple[int, ...]:
    """Return a shape as it compares between a model and cuDNN, which sees two spatial axes at least."""
    sizes = list(shape)
    return (*sizes[:2], *(size for size in sizes[2:] if size != 1))


def _found(path: str | None, data: bytes | None, providers: Sequence[str]) -> list[tuple[int, Node]] | None:
    model = load_slim(path, data)
    return None if model is None else [(place.graph, node) for place, node in nodes_with_places(model, providers)]


def nodes_with_places(model: onnx.ModelProto, providers: Sequence[str]) -> Iterator[tuple[Place, Node]]:
    """Yield every node of a model, subgraphs and functions included, and where it stands.

    Each is taken to run on the first of the providers, or on the CPU provider where CUDA has no kernel for it.
    """
    constants: Constants | None = None
    types = float_types(model)
    for place in places(model):
        proto, attributes = place.node, place.attributes
        if attributes is not None and proto.op_type in SCATTERS:
            constants = constants or Constants(model)
            duplicates = constants.duplicates(proto)
            if duplicates is not None:
                attributes = {**attributes, "duplicates": duplicates}
        yield place, Node(proto.name, proto.op_type, proto.domain, _guess(proto, providers), attributes, types)


def _guess(proto: onnx.NodeProto, providers: Sequence[str]) -> str | None:
    """Return the provider that a node runs on as far as the model tells: the first, or the CPU's without a kernel."""
    first = providers[0] if providers else None
    if first != CUDA or CPU not in providers or proto.domain not in ("", "ai.onnx", "com.microsoft"):
        return first
    if has_cuda_kernel(proto.op_type, proto.domain):
        return first
    if onnx.defs.has(proto.op_type, proto.domain):
        schema = onnx.defs.get_schema(proto.op_type, proto.domain)
        if schema.has_function or schema.has_context_dependent_function:
            return first  # replaced by other nodes, which may run there
    return CPU


def _assigned(session: Any) -> list[Node] | None:
    read = getattr(session, "get_provider_graph_assignment_info", None)
    if read is None:
        return None
    try:
        subgraphs = read()
    except Exception:
        # Not recorded: ONNX Runtime raises its generic failure.
        return None
    return [
        Node(node.name, node.op_type, node.domain, subgraph.ep_name, None)
        for subgraph in subgraphs
        for node in subgraph.get_nodes()
    ]


def _under_own_name(node: Node, named: Named) -> Node:
    own = named(node.name)
    return node if own is None or own.op_type != node.op_type else replace(own, provider=node.provider)


def _with_attributes(assigned: Iterable[Node], in_file: Iterable[Node]) -> list[Node]:
    """Give the nodes that run the attributes that the model's nodes have.

    By name where the name tells; ONNX Runtime renames what it inlines, and many models name nothing: then by operator,
    where all the model's nodes of that operator agree.
    """
    by_name: dict[tuple[str, str], list[Mapping[str, object] | None]] = defaultdict(list)
    by_type: dict[str, list[Mapping[str, object] | None]] = defaultdict(list)
    for node in in_file:
        if node.attributes and "function" in node.attributes:
            continue  # a call, which ONNX Runtime replaces by the function's nodes
        by_name[node.name, node.op_type].append(node.attributes)
        by_type[node.op_type].append(node.attributes)

    def attributes_of(node: Node) -> Mapping[str, object] | None:
        candidates = by_name.get((node.name, node.op_type)) if node.name else None
        candidates = candidates or by_type.get(node.op_type) or [None]
        return candidates[0] if all(one == candidates[0] for one in candidates) else None

    types = next((node.types for node in in_file), None)
    return [replace(node, attributes=attributes_of(node), types=types) for node in assigned]
