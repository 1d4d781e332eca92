"""What a comparison found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from ortlock.compare.metrics import Difference


class Expected(StrEnum):
    """Whether a difference is what rounding does."""

    SAME = "same bits"
    YES = "expected"
    NO = "not expected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Rounding:
    """One side of one node against a float64 evaluation of it on the side's own inputs."""

    error: float | None
    """Largest distance from the reference; None where there is none."""
    limit: float | None
    """What rounding allows at the element that comes closest to it, or exceeds it most."""
    explained_by: str
    """The finest precision that allows the error: ``exact``, ``fp32`` (the type's own rounding, and fp32 or float64
    sums), ``tf32``, ``tf32 cut off``, ``fp16`` (sums in fp16); ``nothing``; ``unknown``."""
    basis: str
    """``exact``, ``rounding``, ``assumed`` or ``none`` (``ortlock.compare.rounding``)."""
    shift: float | None = None
    """Where TF32 explains it: how far rounding the operands to TF32 moves the result, and nothing else."""
    rest: float | None = None
    """What is left of the error after that."""


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """One node on both sides."""

    name: str
    label: str
    index: int
    op_type: str
    tensor: str
    """Its first output, which is compared."""
    difference: Difference | None
    """None for what is no array."""
    inputs_differ: bool
    """A difference may then have come from before."""
    length: int | None
    """Terms of its longest sum."""
    a: Rounding
    b: Rounding


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """One output of the model, run as configured."""

    name: str
    difference: Difference | None
    error_a: float | None
    """Largest distance from a float64 run of the whole graph; None where that cannot be had."""
    error_b: float | None
    closer: str
    """``A``, ``B``, ``equal`` or ``unknown``."""
    same: bool
    """Whether both sides have the same bits, of what is no array too: sequences, maps, types that NumPy lacks."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides of one model, or of two."""

    a: str
    b: str
    expected: Expected
    reasons: tuple[str, ...]
    outputs: tuple[OutputComparison, ...]
    nodes: tuple[NodeComparison, ...]
    """Those that both sides have by the names of their outputs, in topological order."""
    unevaluated: tuple[str, ...]
    """Nodes that cannot be evaluated in float64."""
    notes: tuple[str, ...]
    without_tf32: Comparison | None = None
    """The same comparison with TF32 off on both sides; None where it is off anyway."""

    @property
    def differing(self) -> tuple[NodeComparison, ...]:
        """Nodes whose outputs differ."""
        return tuple(node for node in self.nodes if node.difference is not None and not node.difference.same)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        inner = self.without_tf32
        return {
            **asdict(replace(self, without_tf32=None)),
            "expected": str(self.expected),
            "without_tf32": inner.to_dict() if inner is not None else None,
        }
