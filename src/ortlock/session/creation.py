"""Making the underlying ONNX Runtime session: what is pinned for it, and what is checked once it is there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import onnxruntime
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import native
from ortlock.errors import NotReproducibleError
from ortlock.lanes import forks
from ortlock.lanes.choice import LanePlan, choose, with_options
from ortlock.lanes.lane import Make
from ortlock.model_files import ModelFiles
from ortlock.policy import Mode
from ortlock.report.model import Status
from ortlock.session import options as session_options
from ortlock.session import placing
from ortlock.session.facts import gather, model_identity, unmet
from ortlock.session.guard import FALLBACK_OFF, Guard, check_interposer, missing_cuda
from ortlock.session.lanes import establish
from ortlock.session.placing import Substitute
from ortlock.session.random_ops import RandomOps, Stock, restart
from ortlock.settings import CPU, CUDA, Kind, Origin, Resolution, SettingState, normalise, resolve

_RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"

# What ONNX Runtime raises for an operator that it does not know: copied options lack the custom-op libraries.
_UNKNOWN_OPERATOR = (C.Fail, C.InvalidGraph, C.NotImplemented)

_ENVIRONMENT = threading.RLock()


@dataclass(frozen=True)
class _Plan:
    """What is asked of ONNX Runtime."""

    options: Any
    names: list[str]
    given: list[dict[str, str]]
    resolution: Resolution

    def resolve(self, mode: Mode) -> Resolution:
        with session_options.reading(self.options):
            return resolve(mode, self.options, self.names, self.given, os.environ, onnxruntime.__version__)


def create(session: Any, guard: Guard, stock: Stock, providers: Any, provider_options: Any) -> None:
    """Make the underlying session as ``guard.mode`` wants it.

    Raises:
        NotReproducibleError: in strict. The session is then as ONNX Runtime leaves one that could not be made.
        Exception: whatever ONNX Runtime raises.
    """
    guard.attempts += 1
    _look_at_source(session, guard)
    if guard.mode is Mode.STRICT:
        session._enable_fallback = False
    if guard.random_ops is RandomOps.RESTART and guard.restarted is None:
        with _before_stock(session, guard):
            guard.restarted = restart(*guard.source)
    caller = session._sess_options
    options = caller or C.get_default_session_options()
    asked = _asked(providers, provider_options)
    if asked is None or not isinstance(options, C.SessionOptions):
        _unpinned(session, guard, lambda: stock(providers, provider_options))
        return
    if options.execution_mode == C.ExecutionMode.ORT_PARALLEL:
        native.set_has_workers(guard.number)
    previous = native.enter(guard.number)
    # Inside a run of this session, or a second time inside its constructor: another session has failed.
    during_run = previous == guard.number
    fallback = during_run or (not guard.ready and guard.attempts > 1)
    if not fallback:
        guard.requested = tuple(dict.fromkeys(name for name, _ in asked))
    try:
        with _before_stock(session, guard):
            if guard.lock is not None and not guard.ready:
                guard.model = guard.model or model_identity(*guard.source)
                guard.lock.open(guard.model)
            plan = _plan(guard, options, asked)
            plan = replace(plan, resolution=placing.prepare(guard, plan.options, plan.names, plan.resolution))
            lanes = _lanes(guard, options, asked)
        make = _maker(plan, caller, asked, providers, provider_options, placing.substitute(guard))
        if asked:
            pinned = _pinned(plan, asked)
            providers, provider_options = pinned if lanes is None else lanes.providers(pinned), None
        with _environment(plan.resolution.environment):
            _make(session, plan, caller, placing.substitute(guard), lambda: stock(providers, provider_options))
    except (ValueError, RuntimeError) as error:
        if guard.mode is Mode.STRICT and not guard.ready and any(name != CPU for name, _ in asked):
            error.add_note(f"ortlock: {FALLBACK_OFF}")
        raise
    finally:
        native.leave(previous)
    guard.settings = _in_force(session, plan)
    guard.nodes = None
    if fallback:
        _tell_fallback(session, guard, during_run=during_run)
    _check(session, guard, plan, fallback=fallback)
    establish(session, guard, lanes, make)


def _look_at_source(session: Any, guard: Guard) -> None:
    """Note what the session is made from. Made again, it is of what the file holds by then, as in the original.

    Raises:
        ModelFileError: there is a lockfile, and it is for what the file held before.
    """
    guard.source = (session._model_path, session._model_bytes)
    if session._model_path is None:
        return
    if guard.files is not None and guard.files.changed() is not None:
        if guard.lock is not None:
            guard.files.check()
        guard.model = None
    guard.files = ModelFiles.of(session._model_path)


@contextmanager
def _before_stock(session: Any, guard: Guard) -> Iterator[None]:
    """Have errors inside the block, before ONNX Runtime has begun, reach the caller of the constructor as they are.

    Its fallback would stumble over what it has not set up yet, and no other provider helps.
    """
    try:
        yield
    except Exception:
        if not guard.ready:
            session._enable_fallback = False
        raise


def _lanes(guard: Guard, options: Any, asked: list[tuple[str, dict[str, str]]]) -> LanePlan | None:
    """Return the lanes that the session is to have."""
    shared = session_options.config_entry(options, "session.use_env_allocators") == "1"
    available = C.get_available_providers()
    return choose(guard.lane_request, guard.mode, asked, available=available, shared_arena=shared)


def _pinned(plan: _Plan, asked: list[tuple[str, dict[str, str]]]) -> list[tuple[str, dict[str, str]]]:
    pinned = plan.resolution.provider_options
    return [(name, {**given, **pinned.get(name, {})}) for name, given in asked]


def _maker(
    plan: _Plan,
    caller: Any,
    asked: list[tuple[str, dict[str, str]]],
    providers: Any,
    provider_options: Any,
    substitute: Substitute | None,
) -> Make:
    """Return what makes another session as this one is made. It keeps neither the session nor its guard."""

    def make(target: Any, stock: Stock, more: dict[str, str]) -> None:
        names, options = (with_options(_pinned(plan, asked), more), None) if asked else (providers, provider_options)
        with _environment(plan.resolution.environment):
            _make(target, plan, caller, substitute, lambda: stock(names, options))

    return make


def _unpinned(session: Any, guard: Guard, stock: Callable[[], None]) -> None:
    """Pass on arguments that are not understood here: ONNX Runtime refuses them, or is newer and takes them."""
    previous = native.enter(guard.number)
    substitute = placing.substitute(guard)
    try:
        (stock if substitute is None else substitute.read_by(session, stock))()
    finally:
        native.leave(previous)
    registered = session.get_provider_options()
    plan = _Plan(session.get_session_options(), list(registered), list(registered.values()), Resolution())
    guard.requested = tuple(registered)
    guard.settings = plan.resolve(Mode.OBSERVE).states
    guard.nodes = None
    _check(session, guard, plan, fallback=False)
    establish(session, guard, None, None)


def _asked(providers: Any, provider_options: Any) -> list[tuple[str, dict[str, str]]] | None:
    """Return names and options of the providers asked for; None for arguments that ONNX Runtime refuses."""
    if providers is None:
        return []
    if not isinstance(providers, Sequence):
        return None
    pairs = list(providers)
    if provider_options is not None:
        if not isinstance(provider_options, Sequence) or len(provider_options) != len(pairs):
            return None
        if not all(isinstance(provider, str) for provider in pairs):
            return None
        pairs = list(zip(pairs, provider_options, strict=True))
    asked = []
    for pair in pairs:
        name, given = (pair, {}) if isinstance(pair, str) else pair if _is_pair(pair) else (None, None)
        if not isinstance(name, str) or not isinstance(given, dict):
            return None
        asked.append((name, {str(key): str(value) for key, value in given.items()}))
    return asked


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _plan(guard: Guard, options: Any, asked: list[tuple[str, dict[str, str]]]) -> _Plan:
    names, given = [name for name, _ in asked], [options for _, options in asked]
    registered = session_options.has_providers(options)
    if CUDA in C.get_available_providers() and (CUDA in names or registered):
        if guard.mode is not Mode.OBSERVE:
            forks.check()
        # Before ONNX Runtime makes a session that would resolve cuDNN's functions.
        native.load_cuda_provider()
        names = names or [CUDA]
    plan = _Plan(options, names, given, Resolution())
    plan = replace(plan, resolution=plan.resolve(guard.mode))
    if refusals := plan.resolution.refusals:
        for other in refusals[1:]:
            refusals[0].add_note(f"Also refused: {other}")
        raise refusals[0]
    return plan


def _make(session: Any, plan: _Plan, caller: Any, substitute: Substitute | None, stock: Callable[[], None]) -> None:
    """Let ONNX Runtime make the session, with the pinned options in place of the caller's."""
    options, attributes, entries = plan.options, plan.resolution.attributes, dict(plan.resolution.config_entries)
    if (
        hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
        and session_options.config_entry(options, _RECORD_ASSIGNMENT) is None
    ):
        entries[_RECORD_ASSIGNMENT] = "1"
    if substitute is not None:
        entries |= substitute.entries(options)
        stock = substitute.read_by(session, stock)
    # ONNX Runtime hands out its default options as a new object each time.
    copied = session_options.pinned_copy(options, attributes, entries, fresh=caller is None)
    if copied is not None:
        session._sess_options = copied
        try:
            stock()
        except _UNKNOWN_OPERATOR:
            session._sess_options = caller
            if caller is None:
                raise
        except BaseException:
            session._sess_options = caller
            raise
        else:
            return
    if substitute is not None:
        substitute.check(entries)
    with session_options.borrowed(options, attributes, entries):
        session._sess_options = options
        try:
            stock()
        except BaseException:
            session._sess_options = caller
            raise


def _in_force(session: Any, plan: _Plan) -> tuple[SettingState, ...]:
    """Return the settings as the session that was made has them."""
    present = {None, CPU, *plan.names, *session.get_providers()}
    states = [state for state in plan.resolution.states if state.provider in present]
    lost = [state for state in states if state.origin in (Origin.PINNED, Origin.OVERRIDDEN) and _lost(session, state)]
    if not lost:
        return tuple(states)
    unpinned = {(state.kind, state.key): state for state in plan.resolve(Mode.OBSERVE).states}
    note = "ONNX Runtime did not take it over."
    return tuple(
        replace(unpinned[state.kind, state.key], origin=Origin.NOT_PINNED, note=f"{note} {state.note}")
        if state in lost
        else state
        for state in states
    )


def _lost(session: Any, state: SettingState) -> bool:
    """Return whether a value that was set is not in force."""
    options = session.get_session_options()
    match state.kind:
        case Kind.SESSION_OPTION:
            actual = getattr(options, state.key)
        case Kind.CONFIG_ENTRY:
            actual = session_options.config_entry(options, state.key)
        case Kind.PROVIDER_OPTION:
            actual = session.get_provider_options().get(state.provider, {}).get(state.key, state.value)
        case _:
            return False
    return actual is None or normalise(actual) != normalise(state.value)


def _tell_fallback(session: Any, guard: Guard, *, during_run: bool) -> None:
    """Note where ONNX Runtime made this session because another one failed."""
    cause = " ".join(str(sys.exception()).split())
    when, status = ("during a run", Status.VIOLATED) if during_run else ("when the session was made", Status.UNKNOWN)
    asked, now = (", ".join(names) or "the default" for names in (guard.requested, session.get_providers()))
    guard.record(
        "fallback-at-run" if during_run else "fallback-at-creation",
        f"ONNX Runtime fell back from {asked} to {now} {when}, with other bits from then on. Its reason: {cause}",
        status,
    )


def _check(session: Any, guard: Guard, plan: _Plan, *, fallback: bool) -> None:
    """Say in pin, and refuse in strict, what is wrong with the session that was made."""
    problems: list[NotReproducibleError] = []
    if session.get_provider_options().get(CUDA, {}).get("use_tf32") == "0":
        native.avoid_tensor_cores(guard.number)
    if CUDA in guard.requested and CUDA not in session.get_providers() and not fallback:
        problems.append(missing_cuda())
    if CUDA in session.get_providers() and (problem := check_interposer(native.attach())):
        problems.append(problem)
    if guard.lock is not None and not (problems and guard.mode is Mode.STRICT):
        try:
            guard.lock.apply(session, guard)
        except NotReproducibleError as refused:
            problems.append(refused)
    if guard.mode is Mode.STRICT:
        guard.facts = gather(session, guard)
        if problem := problems[0] if problems else unmet(guard.facts):
            discard(session)
            if guard.lock is not None and not guard.ready:
                guard.lock.abandon()
            raise problem
    elif guard.mode is Mode.PIN:
        for text in (*plan.resolution.warnings, *map(str, problems)):
            guard.warn(text)


def discard(session: Any) -> None:
    """Leave the object as ONNX Runtime leaves it where a session could not be made."""
    session._sess = None
    for name in ("inputs_meta", "outputs_meta", "overridable_initializers", "model_meta", "profiling_start_time_ns"):
        setattr(session, f"_{name}", None)


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set, or with None unset, variables of the process inside the block."""
    if not changes:
        yield
        return
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in changes}
        try:
            _set_variables(changes)
            yield
        finally:
            _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
