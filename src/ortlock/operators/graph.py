"""The nodes of a session: which operator, in which domain, on which execution provider."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

# Attributes that decide about reproducibility. Others are left out, so that a report stays small.
_KEPT = frozenset({"reduction", "seed", "activation", "weight_prepacked"})


@dataclass(frozen=True, slots=True)
class Node:
    """One node as it runs."""

    name: str
    op_type: str
    domain: str
    provider: str | None
    """None where nobody knows."""
    attributes: Mapping[str, object] | None
    """Those that matter; None where they are not known."""

    @property
    def label(self) -> str:
        """Name and operator, for people."""
        domain = f"{self.domain}." if self.domain not in ("", "ai.onnx") else ""
        return f"{self.name} ({domain}{self.op_type})" if self.name else f"an unnamed {domain}{self.op_type}"


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes of a session, and how they are known."""

    nodes: tuple[Node, ...]
    known_by: str
    """``assignment``: ONNX Runtime's own record, after its fusions; ``model file``: the model's nodes, on the first
    provider of the session as far as anybody knows; ``unknown``: neither could be read."""


def nodes_of_session(session: Any, path: str | None, data: bytes | None) -> NodeList:
    """Return the nodes of ``session``.

    ONNX Runtime's record of the assignment is used where there is one (from 1.24 on, if the session was created with
    ``session.record_ep_graph_assignment_info=1``). It knows fused and inserted nodes; attributes come from the model
    by node name. Nodes in subgraphs that the record leaves out are added from the model.

    Args:
        session: an initialised ``onnxruntime.InferenceSession``.
        path: the model's file, or None.
        data: the model's bytes, or None.
    """
    providers = session.get_providers()
    in_file = model_nodes(path, data, providers[0] if providers else None)
    assigned = _assigned(session)
    if assigned is None:
        return NodeList(in_file or (), "model file" if in_file is not None else "unknown")
    attributes = {(node.name, node.op_type): node.attributes for node in in_file or () if node.name}
    nodes = [
        Node(name, op_type, domain, provider, attributes.get((name, op_type)))
        for name, op_type, domain, provider in assigned
    ]
    seen = {(node.name, node.op_type) for node in nodes}
    nested = [node for node in _nested_only(path, data, providers[0]) if (node.name, node.op_type) not in seen]
    return NodeList((*nodes, *nested), "assignment")


def model_nodes(path: str | None, data: bytes | None, provider: str | None) -> tuple[Node, ...] | None:
    """Return the nodes of a model, subgraphs and functions included; None where it cannot be read as ONNX."""
    model = _load(path, data)
    if model is None:
        return None
    return tuple(_node(proto, provider) for proto in _walk_model(model))


def _assigned(session: Any) -> list[tuple[str, str, str, str]] | None:
    read = getattr(session, "get_provider_graph_assignment_info", None)
    if read is None:
        return None
    try:
        subgraphs = read()
    except Exception:
        # Not recorded: ONNX Runtime raises its generic failure.
        return None
    return [
        (node.name, node.op_type, node.domain, subgraph.ep_name)
        for subgraph in subgraphs
        for node in subgraph.get_nodes()
    ]


def _load(path: str | None, data: bytes | None) -> onnx.ModelProto | None:
    try:
        if data is not None:
            return onnx.load_model_from_string(data)
        if path is not None and Path(path).suffix != ".ort":
            return onnx.load(path, load_external_data=False)
    except (DecodeError, OSError, ValueError):
        return None
    return None


def _walk_model(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from _walk(model.graph.node)
    for function in model.functions:
        yield from _walk(function.node)


def _walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in _subgraphs(node):
            yield from _walk(graph.node)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _nested_only(path: str | None, data: bytes | None, provider: str) -> Iterator[Node]:
    model = _load(path, data)
    for node in model.graph.node if model is not None else ():
        for graph in _subgraphs(node):
            for inner in _walk(graph.node):
                yield _node(inner, provider)


def _node(proto: onnx.NodeProto, provider: str | None) -> Node:
    attributes = {attribute.name: _value(attribute) for attribute in proto.attribute if attribute.name in _KEPT}
    return Node(proto.name, proto.op_type, proto.domain, provider, attributes)


def _value(attribute: onnx.AttributeProto) -> object:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
