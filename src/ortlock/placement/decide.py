"""Which nodes are moved or rewritten, and the model that says so.

ONNX Runtime moves nodes by parts of their names (``session.name_based_layer_assignment``, from 1.30 on), so the nodes
get a mark in their names, in a copy of the model in memory. Weights in external files stay there.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import onnx
import onnxruntime
from onnx.inliner import inline_local_functions

from ortlock.errors import NotReproducibleError
from ortlock.operators.findings import known
from ortlock.operators.graph import Node, nodes_with_places
from ortlock.operators.knowledge import CPU, CUDA, OperatorStatus
from ortlock.operators.model_file import Place, external_tensors, load, opset_of, places
from ortlock.operators.weightless import load_slim
from ortlock.placement.rewrite import apply, decomposable
from ortlock.placement.types import Types, types_by_node
from ortlock.placement.weights import settle_weights
from ortlock.policy import Mode
from ortlock.settings import parse_version

PLACEMENTS = ("cpu", "off")
SINCE = (1, 30)
"""First ONNX Runtime that moves nodes by name."""
NAME_BASED, ANNOTATED = "session.name_based_layer_assignment", "session.layer_assignment_settings"

_MARK = "__ortlock_"
_CPU = "cpu"
_THREADS = "intra_op_num_threads"
_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_NARROW_NAMES = ("float16", "bfloat16")


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
    """What the names of these nodes hold, and no others."""
    folder: str | None
    """Where external weights are; None where there are none, or the caller has said it."""
    one_thread: bool
    """A moved node is right and deterministic with ``intra_op_num_threads`` 1 only."""

    @property
    def moves(self) -> bool:
        """Whether any node is moved, so that ONNX Runtime has to be told."""
        return any(placed.action is not Action.REWRITTEN for placed in self.nodes)

    def number(self, name: str) -> int | None:
        """Return which of :attr:`nodes` a node's name stands for; ONNX Runtime may put more before and after it."""
        match = re.search(re.escape(self.mark) + r"[a-z]+_(\d+)_", name)
        return int(match[1]) if match else None

    def entries(self, own: str | None) -> dict[str, str]:
        """Return the session's configuration entries; ``own`` is the caller's name-based assignment."""
        if not self.moves:
            return {}
        ours = f"cpu({self.mark}{_CPU}_)"
        if own is not None and ours in own:
            return {NAME_BASED: own}  # Options that were read from a session that placed nodes.
        return {NAME_BASED: "; ".join(filter(None, ((own or "").rstrip("; "), ours)))}


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

    Raises:
        NotReproducibleError: a node needs another place, and it cannot be told whether it has one.
    """
    # Most models need nothing, and their weights are most of them.
    slim = load_slim(path, data)
    if slim is None or not _ways(slim):
        return None
    del slim
    model = load(path, data)
    if model is None:
        return None
    ways = _ways(model)
    if any(place.function is not None for _, place, _, _ in ways):
        # ONNX Runtime does so too. What ONNX cannot inline stays where it is.
        with suppress(RuntimeError):
            model = inline_local_functions(model)
            ways = _ways(model)
    ways = [way for way in ways if way[1].function is None]
    if not ways:
        return None
    mark = _unused_mark(model)
    placed: list[PlacedNode] = []
    widened: dict[int, int] = {}
    one_thread = False
    reducing = any(action is Action.MOVED and _reduces(node) for _, _, node, action in ways)
    types = list(types_by_node(model)) if reducing else []
    for position, place, node, action in ways:
        if action is Action.MOVED:
            one_thread |= known(replace(node, provider=CPU)).setting == _THREADS
            if _reduces(node) and (kind := _narrow(place.node, node, types[position])):
                action = Action.WIDENED
                widened[len(placed)] = kind
        kept = "std" if action is Action.REWRITTEN else _CPU
        place.node.name = f"{node.name}{mark}{kept}_{len(placed)}_"
        placed.append(PlacedNode(node, action, known(node).reason))
    rewritten = {number for number, one in enumerate(placed) if one.action is Action.REWRITTEN}
    apply(model, mark, rewritten, widened)
    if data is None and path is not None:
        folder = str(Path(path).absolute().parent)
    if folder is not None:
        folder = settle_weights(model, folder) if any(external_tensors(model)) else None
    return Placement(model.SerializeToString(), tuple(placed), mark, folder, one_thread)


def _ways(model: onnx.ModelProto) -> list[tuple[int, Place, Node, Action]]:
    """Return the nodes that need another place, with their position in the order of ``places``."""
    opset = opset_of(model)
    return [
        (position, place, node, action)
        for position, (place, node) in enumerate(nodes_with_places(model, [CUDA]))
        if (action := way_out(place.node, node, opset)) is not None
    ]


def _reduces(node: Node) -> bool:
    return node.op_type.startswith("Scatter") and (node.attributes or {}).get("reduction", "none") != "none"


def _unused_mark(model: onnx.ModelProto) -> str:
    names = [name for place in places(model) for name in (place.node.name, *place.node.input, *place.node.output)]
    mark = _MARK
    while any(mark in name for name in names):
        mark += "_"
    return mark


def _narrow(proto: onnx.NodeProto, node: Node, types: Types) -> int:
    """Return the type of a scatter that reduces where the CPU provider has no kernel for it; 0 where it has.

    Raises:
        NotReproducibleError: it cannot be told.
    """
    # Data, updates and result have one type.
    kind = next((types[name] for name in (proto.input[0], proto.input[2], proto.output[0]) if name in types), 0)
    if kind == 0 and node.types is not None and node.types.intersection(_NARROW_NAMES):
        raise NotReproducibleError(
            f"{node.label} on {CUDA}",
            f"{known(node).reason} It would run on the CPU provider, which has no kernel for float16 and bfloat16, and "
            f"the type of {proto.input[0]} cannot be inferred.",
            f"Give {proto.input[0]} a type in the model's value_info, or cast it to float32 before the node.",
        )
    return kind if kind in _NARROW else 0


def moves_by_name() -> bool:
    """Return whether this ONNX Runtime moves nodes by name."""
    return parse_version(onnxruntime.__version__) >= SINCE


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
