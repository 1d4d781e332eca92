"""The lockfile of one session: what is replayed from it and what is written to it."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import native
from ortlock.arguments import check_path
from ortlock.environment import environment
from ortlock.errors import LockfileError, NotReproducibleError, ReproducibilityWarning
from ortlock.lockfile import (
    Golden,
    LockedChoice,
    Lockfile,
    LockMode,
    ModelRecord,
    Section,
    check_model,
    check_place,
    describe_difference,
    digest_of,
    fingerprint,
    identity,
    merge,
    read,
)
from ortlock.policy import Mode
from ortlock.report import LockFacts, Status
from ortlock.session.options import TINY_MODEL
from ortlock.settings import CUDA

if TYPE_CHECKING:
    from ortlock.report import ModelIdentity
    from ortlock.session.guard import Guard

_PAUSE_SECONDS = 2.0
"""Between two writes while a session runs, so that recording many shapes does not write a growing file each time."""

_AWAKE = threading.Lock()


@dataclass(frozen=True)
class LockRequest:
    """What the caller asked for."""

    path: Path
    """As it was given."""
    mode: LockMode


def lock_request(lockfile: Any, lock_mode: str | None, mode: Mode) -> LockRequest | None:
    """Return what the arguments ``lockfile`` and ``lock_mode`` ask for.

    Raises:
        ValueError: they do not go together, ``lockfile`` is empty, or ``lock_mode`` names no mode.
        TypeError: ``lockfile`` is no path.
    """
    if lockfile is None:
        if lock_mode is not None:
            raise ValueError(f"lock_mode={lock_mode!r} without a lockfile; give lockfile=PATH too.")
        return None
    try:
        chosen = LockMode(lock_mode if lock_mode is not None else LockMode.REPLAY)
    except ValueError:
        names = ", ".join(repr(str(known)) for known in LockMode)
        raise ValueError(f"lock_mode={lock_mode!r} is no lock mode; choose one of {names}.") from None
    if mode is Mode.OBSERVE and chosen is not LockMode.REPLAY:
        raise ValueError(f"lock_mode={str(chosen)!r} needs mode 'pin' or 'strict': observe makes no choices to record.")
    return LockRequest(check_path("lockfile", lockfile), chosen)


class SessionLock:
    """A session's side of its lockfile."""

    def __init__(self, request: LockRequest) -> None:
        self.path = request.path
        """As it was given, for texts."""
        # The working directory may change.
        self._path = request.path.absolute()
        self.mode = request.mode
        self.fingerprint: str | None = None
        self.applied = False
        """The environment's choices are in force."""
        self._model: ModelRecord | None = None
        self._identity: dict[str, str | None] = {}
        self._file: Lockfile | None = None
        self._held: dict[str, LockedChoice] = {}
        self._before: dict[str, int] = {}
        """How often each choice had been made when this environment began: set_providers() can change it."""
        self._known: set[str] = set()
        """Choices of this environment that are in the file."""
        self._changed = 0
        self._last_write = 0.0
        self._writing = threading.Lock()
        self._failure = ""
        """What was told of the last time that the file was used; empty where all went well."""

    @property
    def writes(self) -> bool:
        """Whether new choices are written down."""
        return self.mode is not LockMode.REPLAY

    def open(self, model: ModelIdentity) -> None:
        """Read the file and check that it is for ``model``, and can be written where that is asked for.

        Raises:
            LockfileError: it is not there (to replay), damaged, or for another model, or its folder cannot be written.
        """
        if model.sha256 is None:
            return  # ONNX Runtime is about to say why the model cannot be read.
        name = Path(model.path).name if model.path else "model given as bytes"
        self._model = ModelRecord(name, model.sha256, model.size or 0)
        with self._told():
            self._file = read(self._path)
            if self._file is not None:
                check_model(self._path, self._file, self._model)
            if self.writes:
                check_place(self._path)
        if self._file is None and not self.writes:
            remedy = "Record it with `ortlock lock MODEL -o FILE` or lock_mode='record'."
            raise LockfileError(self.path, "there is no such file to replay.", remedy)

    def apply(self, session: Any, guard: Guard) -> None:
        """Put the choices that were recorded in this environment in force.

        Raises:
            NotReproducibleError: in strict, where there are none to replay.
        """
        cuda = CUDA in session.get_providers()
        device = session.get_provider_options().get(CUDA, {}).get("device_id", "0")
        if cuda:
            _load_cuda_libraries(device)
        cudnn = native.state().cudnn_path if cuda else None
        here = identity(environment(int(device), cuda=cuda, cudnn_path=cudnn), guard.settings)
        if self.fingerprint not in (None, fingerprint(here)):
            self._leave_environment(guard)
        self._identity, self.fingerprint = here, fingerprint(here)
        was_applied, self.applied = self.applied, False
        if guard.mode is Mode.OBSERVE:
            return
        recorded = self._file.environments if self._file is not None else {}
        section = recorded.get(self.fingerprint)
        self._held = dict(section.choices) if section is not None and self.mode is not LockMode.UPDATE else {}
        if self.writes:
            native.set_recording(guard.number)
        elif section is None:
            difference = describe_difference(self._identity, (other.identity for other in recorded.values()))
            problem = NotReproducibleError(
                f"lockfile {self.path}",
                f"It was not recorded in this environment: {difference}.",
                "Record it here as well (`ortlock lock MODEL -o FILE` or lock_mode='record'); the file keeps both.",
            )
            if guard.mode is Mode.STRICT:
                raise problem
            if was_applied:
                native.set_lock(guard.number, "none", (), exclusive=False)
            guard.record("lockfile-environment", f"{problem} Choices are made anew.", Status.HOLDS)
            return
        choices = [choice.native(key) for key, choice in self._held.items()]
        # An exclusive lock refuses what another lets be chosen, so the two share nothing.
        name = f"{self.mode} {digest_of(self._held)}"
        native.set_lock(guard.number, name, choices, exclusive=not self.writes)
        self.applied = True

    def abandon(self) -> None:
        """Write nothing more: the session was refused, or its recording failed and was told."""
        self._model = None

    def write(self, records: native.SessionRecords, *, now: bool) -> int:
        """Write what was chosen down; return how many choices came new into the file, or changed in it.

        Args:
            records: what the session has run.
            now: also if the last time was only a moment ago, and although nothing may be new.

        Raises:
            LockfileError: the file cannot be written, is damaged or is for another model by now.
        """
        if not self.writes or self._model is None or self.fingerprint is None:
            return 0
        with self._writing:
            chosen = {plan.key: LockedChoice.of(plan) for plan in records.plans if self._belongs(plan)}
            if not now and (self._known.issuperset(chosen) or time.monotonic() - self._last_write < _PAUSE_SECONDS):
                return 0
            section = Section(self._identity, chosen)
            replace = self.mode is LockMode.UPDATE
            with self._told(), _one_at_a_time():
                changed = merge(self._path, self._model, self.fingerprint, section, replace=replace)
            self._known.update(chosen)
            self._changed += changed
            self._last_write = time.monotonic()
            return changed

    def golden(self) -> Mapping[str, Golden]:
        """Return what the file holds for this environment, by digest of inputs, when the session was made."""
        section = self._file.environments.get(self.fingerprint or "") if self._file is not None else None
        return section.golden if section is not None else {}

    @property
    def holds_golden(self) -> bool:
        """Whether the file held golden digests, in whatever environment, when the session was made."""
        return self._file is not None and any(section.golden for section in self._file.environments.values())

    def add_golden(self, golden: Mapping[str, Golden]) -> None:
        """Write golden digests down, in place of those for the same inputs in this environment.

        Raises:
            LockfileError: the file cannot be written, is damaged or is for another model by now.
        """
        if self._model is None or self.fingerprint is None:
            raise ValueError("The session that golden digests come from was not made.")
        section = Section(self._identity, {}, dict(golden))
        with self._writing, self._told(), _one_at_a_time():
            merge(self._path, self._model, self.fingerprint, section, replace=False)

    def finish(self, number: int, close: Callable[[int], None]) -> None:
        """Write the last choices of the session with the token ``number``, and close it.

        The garbage collector may come here while this very thread writes a lockfile: then it happens after that.
        """

        def last() -> None:
            told = self._failure
            try:
                self.write(native.records(number), now=True)
            except LockfileError as error:
                if str(error) != told:
                    warnings.warn(str(error), ReproducibilityWarning, stacklevel=2)
            finally:
                close(number)

        if getattr(_THREAD, "writing", False):
            _THREAD.later.append(last)
        else:
            last()

    def facts(self, records: native.SessionRecords) -> LockFacts:
        """Return what a report says of it."""
        used = [plan for plan in records.plans if plan.status != "refused"]
        replayed = {plan.key for plan in used if plan.source == "lockfile"}
        return LockFacts(
            path=str(self.path),
            mode=str(self.mode),
            fingerprint=self.fingerprint,
            applied=self.applied,
            held=len(self._held),
            replayed=len(replayed),
            others=sum(1 for plan in used if plan.source != "lockfile"),
            written=self._changed,
        )

    def _belongs(self, plan: native.PlanRecord) -> bool:
        """Return whether a choice is this session's own and of the environment that it is in now."""
        own = bool(plan.key) and plan.status == "used" and plan.source == "ranking"
        return own and plan.count > self._before.get(plan.key, 0)

    def _leave_environment(self, guard: Guard) -> None:
        records = native.records(guard.number)
        try:
            self.write(records, now=True)
        except LockfileError as error:
            guard.warn(str(error))
        self._before = {plan.key: plan.count for plan in records.plans}
        self._known.clear()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell errors with the path that the caller gave, and keep what was told."""
        try:
            yield
        except LockfileError as error:
            told = LockfileError(self.path, error.reason, error.remedy)
            self._failure = str(told)
            raise told from error
        self._failure = ""


_THREAD = threading.local()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Keep sessions that end meanwhile on this thread from writing inside the block; they do so after it."""
    _THREAD.writing, _THREAD.later = True, []
    try:
        yield
    finally:
        _THREAD.writing = False
        for last in _THREAD.later:
            last()


_loaded_for: set[str] = set()


def _load_cuda_libraries(device: str) -> None:
    """Have ONNX Runtime load cuDNN and cuBLAS, which it does with the first run on a device: versions are asked of
    what is loaded."""
    with _AWAKE:
        if device in _loaded_for:
            return
        previous = native.enter(0)
        try:
            options = C.SessionOptions()
            options.log_severity_level = 4
            provider = [(CUDA, {"device_id": device})]
            import numpy as np

            onnxruntime.InferenceSession(TINY_MODEL, options, providers=provider).run(
                None, {"x": np.zeros(1, np.float32)}
            )
            _loaded_for.add(device)
        finally:
            native.leave(previous)
