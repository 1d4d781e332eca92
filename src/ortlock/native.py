"""The one door to the native extension: what it knows, as typed Python objects.

The extension patches the ``cudnn*`` and ``dlsym`` slots of ONNX Runtime's CUDA provider, of that library alone, and
sees every cuDNN call that passes through them. A *token* stands for one session: between :func:`enter` and
:func:`leave` the calls of this thread belong to it and are treated by its mode. Calls under no token pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ortlock import _native
from ortlock.policy import Mode

CUDA_PROVIDER_LIBRARY = "libonnxruntime_providers_cuda.so"

_POLICY = {Mode.OBSERVE: 0, Mode.PIN: 1, Mode.STRICT: 2}

NOTHING_DETERMINISTIC, NOT_LOCKED, CANNOT_BE_MADE = (
    "nothing deterministic",
    "not in the lockfile",
    "locked choice cannot be made",
)
"""Why an operation was refused."""

# Bound once: these two run at every session.run().
enter = _native.enter
"""``enter(token) -> previous``: the calls of this thread now belong to ``token``; hand ``previous`` to leave()."""
leave = _native.leave
"""``leave(previous) -> events``: end what enter() began; returns how many events the session has recorded so far
(nondeterministic plans that were let through or that left none to run)."""

Gate = _native.Gate
"""``Gate(token, array_type, obstacles)``: the short way of a session's runs through a free lane.

``run(lanes, method, output_names, input_feed, run_options)`` calls ``method`` with a lane's session under ``token`` and
returns what it returns; None, and nothing has run, where it is shut, no lane is free and ready, an input is not exactly
an ``array_type``, or anything is in the dictionary ``obstacles``. ``open(idle)`` lets it take from and give back to
the end of that list, ``shut()`` no more. ``events`` is what leave() returns."""


@dataclass(frozen=True, slots=True)
class InterposerState:
    """Whether, where and how cuDNN calls are intercepted. Every field is measured."""

    loaded: bool
    """ONNX Runtime's CUDA provider is in this process."""
    attached: bool
    """The provider's slots point to ortlock's hooks."""
    style: str
    """How the provider reaches cuDNN: ``direct`` (imports), ``dlsym`` (resolved at run time), ``both``, ``none``."""
    provider_path: str | None
    slots: int
    """How many slots are patched."""
    resolved_before: tuple[str, ...]
    """Hooked functions that the provider had resolved before the patch: calls to them bypass ortlock."""
    cudnn_path: str | None
    cudnn_version: int
    """``cudnnGetVersion()``, e.g. 91900; 0 as long as the provider has not reached cuDNN."""
    calls: dict[str, int]
    """Intercepted calls of this process by function name, all sessions together."""
    faults: tuple[str, ...]
    """Internal faults after which the real function was called instead."""

    @property
    def late(self) -> bool:
        """Attached, but some functions bypass the hooks because the provider resolved them earlier."""
        return bool(self.resolved_before)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One cuDNN choice that a session made: an execution plan (graph API) or an algorithm (legacy API)."""

    api: str
    """``graph`` or ``legacy``."""
    operation: str
    """E.g. ``ConvolutionForward``, ``ConvolutionBackwardData``, ``ConvolutionForward+Pointwise``."""
    tensors: tuple[str, ...]
    """E.g. ``x f32[1,128,28,28]``, ``y f32[1,64,56,56]``; layouts other than packed are named."""
    attributes: str
    """E.g. ``pad=1,1 stride=2,2 dilation=1,1 compute=f32``."""
    engine: int
    """Engine global index (graph) or algorithm number (legacy)."""
    knobs: tuple[tuple[int, int], ...]
    """Knob types and values (graph), empty for legacy."""
    math_type: int | None
    """``cudnnMathType_t`` of a legacy algorithm."""
    numerical_notes: tuple[str, ...]
    behavior_notes: tuple[str, ...]
    workspace_bytes: int
    status: str
    """``used``, ``refused`` (nondeterministic, another was taken) or ``let through`` (nondeterministic and in use)."""
    count: int
    """How often the session made this choice."""
    key: str = ""
    """The operation's name in a lockfile: 32 hexadecimal digits over its canonical key; empty where it has none."""
    source: str = "ranking"
    """Where the choice came from: ``ranking`` (cuDNN's, by ortlock's rule) or ``lockfile``."""

    @property
    def deterministic(self) -> bool:
        return "NONDETERMINISTIC" not in self.numerical_notes


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """An operation for which no candidate could be taken."""

    operation: str
    tensors: tuple[str, ...]
    attributes: str
    candidates: int
    """How many candidates cuDNN offered, all of them nondeterministic or unusable; 0 where it was not asked."""
    let_through: bool
    """True where the mode let stock's choice run all the same."""
    cause: str = NOTHING_DETERMINISTIC
    """``nothing deterministic``, ``not in the lockfile`` or ``locked choice cannot be made``."""
    key: str = ""
    """The operation's name in a lockfile."""


@dataclass(frozen=True, slots=True)
class SessionRecords:
    """What the hooks saw of one session."""

    calls: int
    """Intercepted cuDNN calls that belong to the session."""
    executions: int
    """Calls among them that run a plan or an algorithm."""
    plans: tuple[PlanRecord, ...]
    failures: tuple[PlanFailure, ...]
    dropped: int = 0
    """Choices beyond the first 10,000 distinct ones, counted but not listed in ``plans``."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a lockfile says for one operation."""

    key: str
    legacy: bool
    """Of the legacy API: ``engine`` is an algorithm number."""
    engine: int
    knobs: tuple[tuple[int, int], ...]
    math_type: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class BookStatistics:
    """What the plan book of this process has done so far, all sessions together."""

    entries: int
    """Operations (keys) that it holds a choice for."""
    plans: int
    """Finalized plans that it holds."""
    evicted: int
    """Plans that made room for others."""
    queries: int
    """Heuristics queries and algorithm rankings that reached cuDNN."""
    finalized: int
    """Plans that cuDNN finalized."""
    hits: int
    """Requests that were answered without cuDNN."""
    choosing_ns: int
    """Time spent on choices, in nanoseconds."""
    descriptors: int
    """Descriptors of ortlock's own in use, in place of cuDNN's."""


def state() -> InterposerState:
    """Return the state of interception in this process; changes nothing."""
    return _state(_native.state())


def attach() -> InterposerState:
    """Patch the CUDA provider if ONNX Runtime has loaded it. Harmless when repeated."""
    return _state(_native.attach(CUDA_PROVIDER_LIBRARY))


def detach() -> InterposerState:
    """Put the provider's slots back as they were. Functions it resolved meanwhile pass calls through unchanged."""
    return _state(_native.detach())


def load_cuda_provider() -> InterposerState:
    """Let ONNX Runtime load its CUDA provider, then patch it before any session can resolve a cuDNN function.

    Does nothing where this ONNX Runtime has no CUDA provider or it cannot be loaded (no driver, missing libraries).
    """
    before = attach()
    if before.loaded:
        return before
    import numpy as np
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return before
    try:
        # The smallest request that makes ORT load the provider by itself, without a session.
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    except Exception:
        # ORT's own session creation reports the cause; here only the fact matters.
        return attach()
    return attach()


def open_session(mode: Mode) -> int:
    """Return a new token whose calls are treated by ``mode``."""
    return _native.open_session(_POLICY[mode])


close_session = _native.close_session
"""``close_session(token)``: forget the token and what was recorded for it."""

set_has_workers = _native.set_has_workers
"""``set_has_workers(token)``: runs of ``token`` spread over threads that do not enter it (parallel execution)."""

begin_async = _native.begin_async
"""``begin_async(token)``: calls on threads under no token belong to ``token`` until end_async(token)."""
end_async = _native.end_async


set_recording = _native.set_recording
"""``set_recording(token)``: every choice that is not from a lockfile counts as an event of ``token``."""

avoid_tensor_cores = _native.avoid_tensor_cores
"""``avoid_tensor_cores(token)``: the provider of ``token`` passes engines with tensor cores over (``use_tf32=0``)."""


def set_lock(token: int, name: str, choices: Iterable[Choice], *, exclusive: bool) -> None:
    """Let a session replay choices; to be called before its first run.

    Args:
        token: the session.
        name: stands for the choices; sessions with the same name share what the plan book keeps.
        choices: what to replay.
        exclusive: in strict nothing else may run.
    """
    rows = [(c.key, c.legacy, c.engine, c.knobs, c.math_type, c.workspace_bytes) for c in choices]
    _native.set_lock(token, name, exclusive, rows)


def book() -> BookStatistics:
    """Return what the plan book has done so far in this process."""
    return BookStatistics(**_native.book())


def records(token: int) -> SessionRecords:
    """Return what the hooks saw of the session ``token``."""
    raw = _native.records(token)
    return SessionRecords(
        calls=raw["calls"],
        executions=raw["executions"],
        dropped=raw["dropped"],
        plans=tuple(PlanRecord(**plan) for plan in raw["plans"]),
        failures=tuple(PlanFailure(**failure) for failure in raw["failures"]),
    )


def _state(raw: dict[str, Any]) -> InterposerState:
    return InterposerState(**raw)
