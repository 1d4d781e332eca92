"""What a search for the first differing node found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ortlock.compare.metrics import Difference
from ortlock.words import counted


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as it was seen."""

    name: str
    type: str
    """NumPy's name, or ONNX's where NumPy has none."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DifferingTensor:
    """An output of the node that differs."""

    tensor: Tensor
    distinct: int
    """Distinct values seen over all runs (of both sides)."""
    difference: Difference | None
    """The largest that was seen against the first run; None for what is no array."""


@dataclass(frozen=True, slots=True)
class DifferingNode:
    """The first node whose output differs although its inputs do not."""

    name: str
    label: str
    index: int
    """Position in topological order, of ``nodes``."""
    op_type: str
    domain: str
    provider: str
    inputs: tuple[Tensor, ...]
    """Those that were seen: tensors that other nodes compute, and the model's inputs."""
    outputs: tuple[DifferingTensor, ...]
    status: str
    """What the operator table says of it."""
    reason: str
    remedy: str
    plans: tuple[str, ...]
    """Choices of cuDNN's that may be this node's, by the shape of its weights."""
    has_subgraphs: bool
    """The difference may come from a node inside its subgraphs, which are not looked into."""


@dataclass(frozen=True, slots=True)
class Localised:
    """What came of a search."""

    differs: bool
    """Whether the model's own outputs differed."""
    node: DifferingNode | None
    runs: int
    """Runs of each session."""
    sessions: int
    """Sessions of each side."""
    nodes: int
    """Nodes of the graph that was searched."""
    exposed: int
    """Tensors that were looked at."""
    batches: int
    graph: str
    """Which graph was searched: ``optimised`` or ``as in the model``."""
    confirmed: bool
    """The node's inputs were seen to be the same in the very runs in which its output differed."""
    seconds: float
    notes: tuple[str, ...] = field(default=())

    @property
    def vanished(self) -> bool:
        """The outputs differ, and no tensor does once all are outputs."""
        return self.differs and self.node is None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "vanished": self.vanished}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(found: Localised) -> list[str]:
    effort = f"{counted(found.sessions, 'session')}, {counted(found.runs, 'run')} each"
    if not found.differs:
        return [f"no output differed ({effort})", *(f"  note: {note}" for note in found.notes)]
    reach = f"{counted(found.exposed, 'tensor')} of {counted(found.nodes, 'node')}, graph {found.graph}"
    searched = f"{reach}, {effort}, {found.seconds:.1f} s"
    if found.node is None:
        lines = [f"outputs differ, but no tensor does once all are made outputs ({searched})"]
        return [*lines, *(f"  note: {note}" for note in found.notes)]
    node = found.node
    lines = [f"first node that differs: {node.label} on {node.provider}, node {node.index} of {found.nodes}"]
    for tensor in node.inputs:
        lines.append(f"  in  {tensor.name}: {tensor.type}{list(tensor.shape)}, same in all runs")
    for output in node.outputs:
        lines.append(f"  out {output.tensor.name}: {output.tensor.type}{list(output.tensor.shape)}, {_measure(output)}")
    lines.append(f"  {node.status}: {node.reason}")
    if node.remedy:
        lines.append(f"  remedy: {node.remedy}")
    lines += [f"  plan {plan}" for plan in node.plans]
    if node.has_subgraphs:
        lines.append("  note: it holds subgraphs, which are not looked into; the cause may be a node inside them")
    if not found.confirmed:
        lines.append("  note: not seen again when its inputs were looked at in the same runs")
    return [*lines, *(f"  note: {note}" for note in found.notes), f"  searched: {searched}"]


def _measure(output: DifferingTensor) -> str:
    text = f"{output.distinct} distinct values"
    found = output.difference
    if found is None:
        return text
    if found.mismatch is not None:
        return f"{text}, {found.mismatch}"
    text += f", {found.size - found.equal} of {found.size} elements differ"
    if found.max_ulp is not None:
        text += f", by up to {found.max_ulp} ULP"
    if found.max_abs is not None:
        text += f", {found.max_abs:.3g} absolute"
    if found.nan or found.infinite:
        text += f", {found.nan} in NaN, {found.infinite} in infinity"
    return text
