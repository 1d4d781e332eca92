"""What one session keeps beside ONNX Runtime's own state: its token, what happened to it, and what to say about it."""

from __future__ import annotations

import _ctypes
import ctypes
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import native
from ortlock.errors import LockfileError, NotReproducibleError, OrtlockError, ReproducibilityWarning
from ortlock.lanes.choice import LaneRequest
from ortlock.lanes.failures import leaves_stale_plan
from ortlock.model_files import ModelFiles
from ortlock.operators import NodeList, nodes_with_weights
from ortlock.policy import Mode
from ortlock.report import Claimed, Event, Facts, Measured, ModelIdentity, Status
from ortlock.session.facts import unmet
from ortlock.session.random_ops import RandomOps, Restarted
from ortlock.settings import CUDA, SettingState

if TYPE_CHECKING:
    from ortlock.lanes.lanes import Lanes
    from ortlock.placement import NodeCost, Placement
    from ortlock.session.lock import SessionLock

_OWN_FILES = (str(Path(__file__).parents[1]), str(Path(onnxruntime.__file__ or __file__).parent))

PROVIDER_FOLDER = Path(C.__file__).parent

FALLBACK_OFF = "ONNX Runtime's fallback to the CPU is off in strict mode: it would answer with other bits from then on."

_FAILED_NODE = re.compile(r"while running \S+ node\. Name:'[^']+'")

# Errors about what the caller passed, or that say it all. They never come from a plan that was refused.
_CALLERS_FAULT = (ValueError, TypeError, C.InvalidArgument, OrtlockError)


class Guard:
    """The side of a session that ONNX Runtime knows nothing of."""

    def __init__(
        self,
        mode: Mode,
        lock: SessionLock | None = None,
        request: LaneRequest | None = None,
        *,
        places: bool = False,
        random_ops: RandomOps = RandomOps.ERROR,
    ) -> None:
        self.mode = mode
        self.lock = lock
        self.lane_request = request or LaneRequest()
        self.lanes: Lanes | Any = None
        """Where the session runs; None: threads share it as they do in ONNX Runtime. A closed one refuses."""
        self.keywords: dict[str, Any] = {}
        """What ``InferenceSession`` was given by keyword and lanes need too."""
        self.places = places
        """Nodes without a deterministic CUDA kernel are run where they have one."""
        self.placement: Placement | None = None
        """What was done about them in the session that ONNX Runtime made last."""
        self.costs: tuple[NodeCost, ...] = ()
        """What the placed nodes cost, as far as it was measured."""
        self.random_ops = random_ops
        self.restarted: Restarted | None = None
        """The model with its random operators replaced, where that was asked for and it has some."""
        self.number = native.open_session(mode)
        """The session's token of the native extension, closed with the last reference to this object."""
        self.finish = weakref.finalize(self, _close, self.number, lock)
        """Writes down what the session has chosen, and forgets it; once."""
        self.finish.atexit = lock is not None and lock.writes
        self.seen = -1 if mode is Mode.STRICT else 0
        """How many of the hooks' events have been looked at; -1: strict looks after the first run in any case."""
        self.attempts = 0
        """How often ONNX Runtime has made the underlying session."""
        self.ready = False
        """The constructor has returned."""
        self.requested: tuple[str, ...] = ()
        """The providers that the caller asked for; a fallback does not change them."""
        self.settings: tuple[SettingState, ...] = ()
        self.nodes: NodeList | None = None
        self.source: tuple[str | None, bytes | None] = (None, None)
        """The model's path and bytes."""
        self.files: ModelFiles | None = None
        """Its files as they were when the session was made; None for bytes."""
        self.model: ModelIdentity | None = None
        self.facts: Facts | None = None
        """Strict: what was known when the session was made."""
        self.evidence: list[Measured] = []
        """What verify() has found."""
        self.batch: Claimed | None = None
        """What batch_invariance() has found last."""
        self._events: dict[str, Event] = {}
        self._told: set[str] = set()
        self._failures: set[native.PlanFailure] = set()
        self._refused_nodes: dict[str, native.PlanFailure] = {}
        self._lock = threading.Lock()

    @property
    def loaded(self) -> tuple[str | None, bytes | None]:
        """Path and bytes of the model that ONNX Runtime was given."""
        return self.source if self.restarted is None else (None, self.restarted.data)

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened so far, in order."""
        with self._lock:
            return tuple(self._events.values())

    def record(self, code: str, text: str, status: Status) -> None:
        """Note something that bears on the bits; in pin also warn, once for each text."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        with self._lock:
            self._events.setdefault(text, Event(code, text, status, when))
        if self.mode is Mode.PIN:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Issue a warning that points to the caller's line, once in this session for each text."""
        with self._lock:
            if text in self._told:
                return
            self._told.add(text)
        warnings.warn(text, ReproducibilityWarning, stacklevel=_callers_level())

    def plans_changed(self, events: int) -> None:
        """Look at what the hooks have recorded.

        Args:
            events: how much there is to look at, as ``native.leave`` counts it.

        Raises:
            NotReproducibleError: in strict, where the same bits cannot be promised after what has run.
        """
        records = native.records(self.number)
        if self.mode is Mode.STRICT and self.facts is not None:
            facts = replace(self.facts, records=records, interposer=native.state(), events=self.events)
            if problem := unmet(facts):
                # Not marked as seen: the next run must raise as well.
                raise problem
        self.seen = events
        if self.lock is not None and self.lock.writes:
            try:
                self.lock.write(records, now=False)
            except LockfileError as error:
                # The run itself is good.
                self.warn(str(error))
        for failure in records.failures:
            if failure.let_through and self.mode is Mode.PIN:
                self.warn(f"{operation(failure)} runs nondeterministically: {_CANDIDATES.format(failure.candidates)}")

    def run_failed(self, error: BaseException) -> None:
        """Explain in strict why a run failed, note in observe what it may mean for later ones; else return.

        Args:
            error: what ONNX Runtime raised.

        Raises:
            NotReproducibleError: from ``error``, where no deterministic plan was left to run.
        """
        if not isinstance(error, Exception) or isinstance(error, _CALLERS_FAULT):
            return
        if self.mode is Mode.OBSERVE:
            self._note_stale_plan(error)
        if self.mode is not Mode.STRICT:
            return
        if refused := self._refused(str(error)):
            raise refused from error
        if isinstance(error, C.EPFail):
            error.add_note(f"ortlock: {FALLBACK_OFF}")

    def finished(self, results: Any, error: str, events: int) -> tuple[Any, str]:
        """Return what the callback of run_async() is given, results and error text, after a look at the plans."""
        if error:
            if self.mode is Mode.OBSERVE:
                self._note_stale_plan(RuntimeError(error))
            refused = self._refused(error) if self.mode is Mode.STRICT else None
            return results, f"{error} ({refused})" if refused else error
        try:
            if events != self.seen:
                self.plans_changed(events)
        except NotReproducibleError as refused:
            return [], str(refused)
        return results, error

    def _note_stale_plan(self, error: Exception) -> None:
        """Note where a session that stays as it is may compute with a wrong plan after ``error``."""
        if CUDA in self.requested and leaves_stale_plan(error):
            place = _FAILED_NODE.search(str(error))
            where = f" {place[0]}" if place else ""
            self.record(
                "failed-run",
                f"A run failed{where}. ONNX Runtime may go on with the plan of another shape, and return wrong values "
                "from then on: make a new session, or use pin or strict, which do.",
                Status.UNKNOWN,
            )

    def no_plan(self, failure: native.PlanFailure) -> NotReproducibleError:
        """Return the error for an operation that was refused, with the nodes that it may be."""
        path = str(self.lock.path) if self.lock is not None else ""
        return no_plan(failure, path, nodes_with_weights(*self.source, failure.tensors))

    def _refused(self, text: str) -> NotReproducibleError | None:
        """Return the error for an operation that was refused, where that is why a run failed with ``text``."""
        failures = native.records(self.number).failures
        with self._lock:
            new = [failure for failure in failures if failure not in self._failures]
            self._failures.update(new)
        place = _FAILED_NODE.search(text)
        node = place[0] if place else ""  # nameless ones cannot be told apart
        # A failure is recorded once for each operation. When it comes back, the text tells, or the node: ONNX Runtime
        # does not plan the same shape again, and fails at that node in whatever way it comes upon.
        again = self._refused_nodes.get(node) or (failures[0] if failures and "cudnn" in text.lower() else None)
        cause = new[0] if new else again
        if cause is None:
            return None
        if node:
            self._refused_nodes[node] = cause
        error = self.no_plan(cause)
        for other in failures:
            if other is not cause:
                error.add_note(f"Also refused in this session: {operation(other)}")
        return error


def _close(number: int, lock: SessionLock | None) -> None:
    """Write down what a session has chosen, and forget it."""
    if lock is not None and lock.writes:
        lock.finish(number, native.close_session)
    else:
        native.close_session(number)


_CANDIDATES = "cuDNN offers {} candidates for it, and none of them is deterministic and can run."


def operation(failure: native.PlanFailure) -> str:
    """Return the operation in words, with its tensors and attributes."""
    return f"{failure.operation} ({', '.join((*failure.tensors, failure.attributes))})"


def no_plan(failure: native.PlanFailure, lockfile: str = "", nodes: Sequence[str] = ()) -> NotReproducibleError:
    """Return the error for an operation that was refused.

    Args:
        failure: what the hooks recorded.
        lockfile: path of the session's lockfile.
        nodes: the model's nodes that it may be, for the error text.
    """
    subject = operation(failure) + (f" of {' or '.join(nodes)}" if nodes else "")
    if failure.cause == native.NOT_LOCKED:
        return NotReproducibleError(
            subject,
            f"{lockfile} holds no choice for it: this shape was not recorded.",
            "Record it: `ortlock lock MODEL -o FILE` with this shape, or a run with lock_mode='record'.",
        )
    if failure.cause == native.CANNOT_BE_MADE:
        return NotReproducibleError(
            subject,
            f"cuDNN cannot make the deterministic plan that {lockfile} names (key {failure.key}).",
            "Record it anew with lock_mode='update', or restore the file.",
        )
    return NotReproducibleError(
        operation(failure),
        _CANDIDATES.format(failure.candidates),
        "Change its type, shape or attributes, run the node on the CPU provider "
        "(session.name_based_layer_assignment='cpu(NODE)' from ORT 1.31 on), or use mode='pin', which lets the "
        "nondeterministic plan run and reports it.",
    )


def check_interposer(state: native.InterposerState) -> NotReproducibleError | None:
    """Return why convolutions on CUDA escape ortlock, None where they do not."""
    if state.late:
        names = ", ".join(state.resolved_before)
        return NotReproducibleError(
            "CUDAExecutionProvider",
            f"It called cuDNN before ortlock was there, so {names} bypass it.",
            "Import ortlock, and make the first ReproducibleSession, before any other CUDA session of the process.",
        )
    if not state.attached:
        return NotReproducibleError(
            "CUDAExecutionProvider",
            "ortlock does not stand between it and cuDNN: " + ("; ".join(state.faults) or "it could not be patched."),
            "Run `ortlock doctor`, which says what was found.",
        )
    return None


def missing_cuda() -> NotReproducibleError:
    """Return why CUDA was asked for and is not there, in the words of whoever refused it."""
    if CUDA not in C.get_available_providers():
        return NotReproducibleError(
            CUDA,
            f"It was asked for, and this onnxruntime {onnxruntime.__version__} is built without it.",
            "Install onnxruntime-gpu in place of onnxruntime, or ask for CPUExecutionProvider.",
        )
    return NotReproducibleError(
        CUDA,
        f"It was asked for and could not be made. {_why_no_cuda()}",
        "Install the driver and the CUDA and cuDNN libraries that this onnxruntime needs (`ortlock doctor`), or ask "
        "for CPUExecutionProvider.",
    )


def _why_no_cuda() -> str:
    library = PROVIDER_FOLDER / native.CUDA_PROVIDER_LIBRARY
    if library.exists() and not native.state().loaded:
        # ONNX Runtime only logs why it could not load the library; the dynamic linker says it again.
        try:
            _ctypes.dlclose(ctypes.CDLL(str(library))._handle)
        except OSError as error:
            return f"The dynamic linker says: {error}."
    try:
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    except Exception as error:
        return f"ONNX Runtime says: {' '.join(str(error).split())}."
    return "ONNX Runtime does not say why; its log on stderr may."


def _callers_level() -> int:
    """Return the stack level, as ``warnings.warn`` counts it in the calling function, of the first foreign frame."""
    frame: Any = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame, level = frame.f_back, level + 1
    return level
