"""Which nodes are moved or rewritten, and the model that says so.

ONNX Runtime moves nodes by parts of their names (``session.name_based_layer_assignment``, from 1.30 on), so the nodes
get a mark in their names, in a copy of the model in memory. Weights in external files stay there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import onnx

from ortlock.operators.findings import known
from ortlock.operators.graph import Node, nodes_with_places
from ortlock.operators.knowledge import CPU, CUDA, OperatorStatus
from ortlock.operators.model_file import load
from ortlock.placement.rewrite import apply, decomposable, opset_of
from ortlock.placement.types import element_types
from ortlock.placement.weights import take_in_small_weights
from ortlock.policy import Mode

PLACEMENTS = ("cpu", "off")
SINCE = (1, 30)
"""First ONNX Runtime that moves nodes by name."""
NAME_BASED, ANNOTATED = "session.name_based_layer_assignment", "session.layer_assignment_settings"

_MARK = "__ortlock_placed_"
_THREADS = "intra_op_num_threads"
_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


class Action(StrEnum):
    """What was done with a node."""

    MOVED = "runs on the CPU provider"
    WIDENED = "runs on the CPU provider, in float32"
    REWRITTEN = "rewritten to standard operators"


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node that does not run as the model has it."""

    node: Node
    """With the model's own name and attributes."""
    action: Action
    reason: str
    """Why it cannot stay as it is."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A model with nodes moved or rewritten."""

    model: bytes
    """The serialized copy."""
    nodes: tuple[PlacedNode, ...]
    """By the number in their mark."""
    mark: str
    """What the names of the moved nodes hold, and no others."""
    one_thread: bool
    """A moved node is right and deterministic with ``intra_op_num_threads`` 1 only."""

    @property
    def moves(self) -> bool:
        """Whether any node is moved, so that ONNX Runtime has to be told."""
        return any(placed.action is not Action.REWRITTEN for placed in self.nodes)

    def number(self, name: str) -> int | None:
        """Return which of :attr:`nodes` a node's name stands for; ONNX Runtime may put more before and after it."""
        match = re.search(re.escape(self.mark) + r"(\d+)_", name)
        return int(match[1]) if match else None

    def entries(self, own: str | None) -> dict[str, str]:
        """Return the session's configuration entries; ``own`` is the caller's name-based assignment."""
        if not self.moves:
            return {}
        return {NAME_BASED: "; ".join(filter(None, ((own or "").rstrip("; "), f"cpu({self.mark})")))}


def resolve_placement(text: str | None, mode: Mode) -> bool:
    """Return whether nodes are moved: by default in strict only.

    Raises:
        ValueError: ``text`` is neither ``cpu`` nor ``off``.
    """
    if text is None:
        return mode is Mode.STRICT
    if text not in PLACEMENTS:
        raise ValueError(f"placement={text!r}: use one of {', '.join(PLACEMENTS)}, or None for the mode's own way.")
    if text == "cpu" and mode is Mode.OBSERVE:
        raise ValueError("placement='cpu' does not go with mode='observe', which changes nothing; use pin or strict.")
    return text == "cpu"


def place(path: str | None, data: bytes | None, folder: str | None = None) -> Placement | None:
    """Return the model with the nodes placed; None where no node needs it or the model cannot be read.

    Args:
        path: the model's file, or None.
        data: the model's bytes, or None.
        folder: where external weights are, for bytes.
    """
    model = load(path, data)
    if model is None:
        return None
    found = [(place.node, node) for place, node in nodes_with_places(model, [CUDA])]
    mark = _MARK
    while any(mark in node.name for _, node in found):
        mark += "_"
    placed: list[PlacedNode] = []
    widened: dict[int, int] = {}
    opset = opset_of(model)
    one_thread = False
    types: Mapping[str, int] | None = None
    for proto, node in found:
        action = way_out(proto, node, opset)
        if action is None:
            continue
        number = len(placed)
        if action is Action.MOVED:
            one_thread |= known(replace(node, provider=CPU)).setting == _THREADS
            if node.op_type.startswith("Scatter") and (node.attributes or {}).get("reduction", "none") != "none":
                types = element_types(model) if types is None else types
                if (kind := types.get(proto.input[0], 0)) in _NARROW:
                    action = Action.WIDENED
                    widened[number] = kind
        placed.append(PlacedNode(node, action, known(node).reason))
        proto.name = f"{node.name}{mark}{number}_"
    if not placed:
        return None
    rewritten = {number for number, one in enumerate(placed) if one.action is Action.REWRITTEN}
    apply(model, mark, rewritten, widened)
    if data is None and path is not None:
        folder = str(Path(path).absolute().parent)
    if folder is not None:
        take_in_small_weights(model, folder)
    return Placement(model.SerializeToString(), tuple(placed), mark, one_thread)


def way_out(proto: onnx.NodeProto, node: Node, opset: int) -> Action | None:
    """Return how a node on CUDA becomes deterministic: ``MOVED``, ``REWRITTEN`` or, where it need or can not, None.

    Args:
        proto: the model's node.
        node: what is known of it on CUDA.
        opset: version of ONNX's own operators that the model uses.
    """
    knowledge = known(node)
    unknown = knowledge.status is OperatorStatus.UNKNOWN and knowledge.placement == "cpu"
    if knowledge.status is not OperatorStatus.NONDETERMINISTIC and not unknown:
        return None
    if decomposable(proto, opset):
        return Action.REWRITTEN
    there = known(replace(node, provider=CPU))
    deterministic = there.status is OperatorStatus.DETERMINISTIC or there.setting == _THREADS
    return Action.MOVED if deterministic else None
