"""What a report is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from ortlock.native import BookStatistics, InterposerState, PlanFailure, PlanRecord
from ortlock.operators.findings import Finding
from ortlock.settings import SettingState

SCHEMA = 1
"""Version of the dictionary that :meth:`ReproducibilityReport.to_dict` returns; docs/report.md lists its keys."""


class Status(StrEnum):
    """What is known of a claim."""

    HOLDS = "holds"
    UNKNOWN = "unknown"
    VIOLATED = "violated"


class Verdict(StrEnum):
    """What a report says on the whole."""

    BITWISE = "bitwise"
    NOT_GUARANTEED = "not guaranteed"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a claim has the status it has."""

    code: str
    """Stable short name, e.g. ``operator-nondeterministic``."""
    subject: str
    """The node, plan, setting or provider that it is about."""
    text: str
    remedy: str | None
    status: Status
    """What this reason alone makes of the claim."""


@dataclass(frozen=True, slots=True)
class ScopeClaim:
    """One scope of the contract."""

    scope: str
    """``run``, ``session``, ``process`` or ``machine``."""
    status: Status
    basis: str
    """``by construction``, ``by evidence`` or ``none``: the weakest of what the claim rests on."""
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a session and bears on its bits, e.g. a fall back to the CPU."""

    code: str
    text: str
    status: Status
    when: str
    """UTC, ISO 8601, to the second."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model it is."""

    path: str | None
    sha256: str | None
    """Of the model file's bytes; external data files are not included. None where they cannot be read any more."""
    size: int | None
    """Bytes."""


@dataclass(frozen=True, slots=True)
class LockFacts:
    """A session's lockfile."""

    path: str
    mode: str
    """``replay``, ``record`` or ``update``."""
    fingerprint: str | None
    """Of the environment and settings that choices are kept by."""
    applied: bool
    """The choices for this environment are in force."""
    held: int
    """How many choices the file held for this environment when the session was made."""
    replayed: int
    """Operations that ran what the file says."""
    others: int
    """Operations that ran a choice which is not from the file."""
    written: int
    """Choices that this session has written to the file."""


@dataclass(frozen=True, slots=True)
class PlacedFacts:
    """A node that does not run as the model has it, because CUDA has no deterministic kernel for it."""

    node: str
    """Name and operator in the model."""
    action: str
    """What was done with it."""
    reason: str
    milliseconds: float | None
    """A run's time in its kernels, where ``measure_placement`` was called."""


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """A session's lanes: docs/threads.md."""

    count: int
    """How many there may be now; runs beyond that wait."""
    open: int
    """How many have a session by now."""
    serialised: bool
    """One run at a time."""
    stream: str
    """``own`` (each lane has a dedicated one), ``caller`` (``user_compute_stream``) or ``onnxruntime``."""
    priority: str | None
    """``normal`` or ``high``, of streams of ortlock's."""
    reason: str
    """Why that many."""
    gpu_mem_limit: int | None
    """Bytes, of all lanes together; None: no limit."""
    gpu_mem_limit_per_lane: int | None
    memory: tuple[int | None, ...]
    """Bytes of the device that went when each further lane was made, whoever took them meanwhile; None: not seen."""
    replaced: int
    """Lanes that were made anew after a failure."""
    retried: int
    """Runs that memory was too short for beside others and that were repeated alone."""


@dataclass(frozen=True, slots=True)
class RandomFacts:
    """What was done with operators that draw at random."""

    random_ops: str = "error"
    """``error``: nothing; ``restart``: each run draws the same numbers."""
    restarted: tuple[str, ...] = ()
    """The nodes of the model that start anew in each run."""


class Claimed(Protocol):
    """A claim that was measured: batch invariance (``ortlock.verify.BatchClaim``)."""

    @property
    def status(self) -> Status: ...

    def summary(self) -> str:
        """Return it in one line."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""


class Measured(Claimed, Protocol):
    """What :meth:`ortlock.ReproducibleSession.verify` has found (``ortlock.verify.Evidence``)."""

    @property
    def when(self) -> str: ...


@dataclass(frozen=True)
class ReproducibilityReport:
    """Whether a session gives the same bits, why, and in which environment."""

    verdict: Verdict
    mode: str
    model: ModelIdentity
    requested_providers: tuple[str, ...]
    providers: tuple[str, ...]
    scopes: tuple[ScopeClaim, ...]
    operators: tuple[Finding, ...]
    nodes_known_by: str
    """``assignment`` (ONNX Runtime's own, after its fusions), ``model file`` or ``unknown``."""
    plans: tuple[PlanRecord, ...]
    failures: tuple[PlanFailure, ...]
    calls: int
    executions: int
    dropped: int
    settings: tuple[SettingState, ...]
    environment: Mapping[str, Any]
    interposer: InterposerState
    events: tuple[Event, ...]
    lockfile: LockFacts | None
    placed: tuple[PlacedFacts, ...]
    random: RandomFacts
    book: BookStatistics
    """The plan book of the process, all sessions together."""
    lanes: LaneFacts | None = None
    """None: the session has no lanes, and threads share it as they do in ONNX Runtime."""
    evidence: tuple[Measured, ...] = ()
    """What ``session.verify()`` has found, in order."""
    batch: Claimed | None = None
    """What ``session.batch_invariance()`` has found last; no part of the verdict."""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Every reason that keeps the verdict from being ``bitwise``, each once."""
        return self._reasons(claim for claim in self.scopes if claim.scope != "machine")

    @property
    def machine_reasons(self) -> tuple[Reason, ...]:
        """What else keeps the scope ``machine`` from holding."""
        return tuple(reason for reason in self._reasons([self.scope("machine")]) if reason not in self.reasons)

    @staticmethod
    def _reasons(claims: Iterable[ScopeClaim]) -> tuple[Reason, ...]:
        found = (reason for claim in claims for reason in claim.reasons if reason.status is not Status.HOLDS)
        return tuple(dict.fromkeys(found))

    def scope(self, name: str) -> ScopeClaim:
        """Return the claim of one scope.

        Raises:
            KeyError: there is no scope of that name.
        """
        for claim in self.scopes:
            if claim.scope == name:
                return claim
        raise KeyError(f"no scope {name!r}; there are {', '.join(claim.scope for claim in self.scopes)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values with stable keys (docs/report.md)."""
        return {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "mode": self.mode,
            "model": asdict(self.model),
            "requested_providers": list(self.requested_providers),
            "providers": list(self.providers),
            "scopes": [_plain(asdict(claim)) for claim in self.scopes],
            "operators": [_plain(asdict(finding)) for finding in self.operators],
            "nodes_known_by": self.nodes_known_by,
            "plans": [_plain(asdict(plan)) for plan in self.plans],
            "failures": [_plain(asdict(failure)) for failure in self.failures],
            "calls": self.calls,
            "executions": self.executions,
            "plans_dropped": self.dropped,
            "settings": [state.to_dict() for state in self.settings],
            "environment": _plain(dict(self.environment)),
            "interposer": _plain(asdict(self.interposer)),
            "events": [_plain(asdict(event)) for event in self.events],
            "lockfile": None if self.lockfile is None else asdict(self.lockfile),
            "placed": [asdict(placed) for placed in self.placed],
            "random": _plain(asdict(self.random)),
            "book": asdict(self.book),
            "lanes": None if self.lanes is None else _plain(asdict(self.lanes)),
            "evidence": [measured.to_dict() for measured in self.evidence],
            "batch": None if self.batch is None else self.batch.to_dict(),
        }

    def __str__(self) -> str:
        from ortlock.report.text import to_text

        return to_text(self)

    def to_markdown(self) -> str:
        """Return the report as a Markdown document."""
        from ortlock.report.markdown import to_markdown

        return to_markdown(self)

    def to_html(self, *, model: bytes | None = None) -> str:
        """Return the report as one HTML page that needs no network.

        Args:
            model: the model's bytes, for the picture of its graph; None: the file that the report names, if it is
                still there and the same.
        """
        from ortlock.html import report_page

        return report_page(self, model)


def _plain(value: Any) -> Any:
    """Turn tuples into lists and enumerations into text, all the way down."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value
