"""What runs under stress showed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ortlock.localise.result import Localised
from ortlock.report.model import Status
from ortlock.words import counted


@dataclass(frozen=True, slots=True)
class StressResult:
    """One kind of stress."""

    name: str
    scope: str
    """``run``, ``session``, ``process``, or ``setting`` for a setting that must not matter."""
    text: str
    """What was done."""
    runs: int
    """Runs that returned outputs."""
    failed: int
    """Runs that raised, e.g. because memory was short: they say nothing about bits."""
    distinct: int
    """The most distinct outputs that any of the inputs gave, the reference run's included."""
    status: Status
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured, and when."""

    status: Status
    """``violated`` if any output differed; ``holds`` if runs were compared and none did; else ``unknown``."""
    stresses: tuple[StressResult, ...]
    inputs: tuple[str, ...]
    """Digest of each set of inputs."""
    outputs: tuple[str, ...]
    """Digest of what the reference run gave for each of them."""
    when: str
    """UTC, ISO 8601, to the second."""
    seconds: float
    localised: Localised | None
    """The first node that differs, where outputs differed and a search was asked for."""
    note: str = ""
    """Why a search failed or was not made, or why the runs ended early."""

    @property
    def runs(self) -> int:
        """All runs that were compared."""
        return sum(stress.runs for stress in self.stresses)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = asdict(self)
        found["status"] = str(self.status)
        for stress in found["stresses"]:
            stress["status"] = str(stress["status"])
        found["localised"] = self.localised.to_dict() if self.localised is not None else None
        return found

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def summary(self) -> str:
        """Return it in one line."""
        ran = [stress.name for stress in self.stresses if stress.runs]
        if not ran:
            return f"no run was compared, {counted(len(self.inputs), 'input')}"
        text = f"{counted(self.runs, 'run')}, {counted(len(self.inputs), 'input')}, under: {', '.join(ran)}"
        worst = max((stress.distinct for stress in self.stresses), default=0)
        return f"{text}: {'no output differed' if worst <= 1 else f'up to {worst} distinct outputs'}"

    def _lines(self) -> Iterator[str]:
        yield f"{self.status}: {self.summary()} ({self.seconds:.1f} s)"
        for stress in self.stresses:
            counts = f"{counted(stress.runs, 'run')}, {stress.distinct} distinct" if stress.runs else "not run"
            failed = f", {stress.failed} failed" if stress.failed else ""
            note = f" ({stress.note})" if stress.note else ""
            yield f"  {stress.status}: {stress.name} [{stress.scope}]: {counts}{failed}{note}"
        if self.localised is not None:
            yield str(self.localised)
        if self.note:
            yield f"  note: {self.note}"
