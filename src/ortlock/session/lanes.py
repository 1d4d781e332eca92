"""What ties lanes to a session: putting them in place, moving to other providers, closing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ortlock import native
from ortlock.errors import SessionClosedError
from ortlock.lanes import forks
from ortlock.lanes.choice import LanePlan, serial
from ortlock.lanes.lane import LaneSession, Make, Source
from ortlock.lanes.lanes import CLOSED, Lanes, Run
from ortlock.lanes.members import Retired
from ortlock.lanes.pool import PoolClosed
from ortlock.policy import Mode
from ortlock.settings import CUDA

if TYPE_CHECKING:
    from ortlock.session.guard import Guard

_Result = TypeVar("_Result")


def establish(session: Any, guard: Guard, plan: LanePlan | None, make: Make | None) -> None:
    """Give a session that was just made its lanes.

    Args:
        session: the session object.
        guard: its guard.
        plan: what was decided before it was made.
        make: makes further sessions like it; None where nobody knows how.
    """
    on_cuda = CUDA in session.get_providers()
    if on_cuda:
        forks.watch(session)
    if plan is not None and plan.device is not None and not on_cuda:
        plan = None  # ONNX Runtime could not make the CUDA provider.
    if plan is None and on_cuda and guard.mode is not Mode.OBSERVE:
        plan = serial(int(session.get_provider_options().get(CUDA, {}).get("device_id", "0")))
    if plan is None:
        guard.lanes = None
        return
    further = None
    if make is not None:
        keywords = {"read_config_from_model": int(session._read_config_from_model), **guard.keywords}
        model = session._model_bytes if guard.files is None else guard.files.path
        further = partial(LaneSession, Source(model, keywords, make, guard.files))
    guard.lanes = Lanes(plan, further, session, guard.number)
    if guard.lane_request.count is not None and guard.lane_request.count != plan.count and guard.mode is Mode.PIN:
        guard.warn(f"lanes={guard.lane_request.count} was asked for and there is one: {plan.reason}.")


def move(session: Any, guard: Guard, change: Callable[[], None]) -> None:
    """Make a session anew while nothing runs on its lanes; those who wait run on what comes in their place."""
    lanes = guard.lanes
    if lanes is None:
        change()
        return

    def changed() -> Callable[..., Any]:
        # The old lanes stay in their place until there are others: who comes meanwhile waits for them.
        try:
            change()
        except BaseException:
            if guard.lanes is lanes:
                guard.lanes = None
            raise

        def run(method: Any, *arguments: Any, run_options: Any) -> Any:
            if guard.lanes is None:
                return method(session, *arguments, run_options=run_options)
            return guard.lanes.call(method, *arguments, run_options=run_options)

        return run

    lanes.end(changed)


def call(guard: Guard, method: Run, *arguments: Any) -> Any:
    """Return what ``method`` returns on the next free lane of a session that has lanes, as for its own runs.

    Raises:
        Exception: as ``ReproducibleSession.run``.
    """
    assert guard.lanes is not None
    previous = native.enter(guard.number)
    try:
        result = guard.lanes.call(method, *arguments)
    except BaseException as error:
        native.leave(previous)
        guard.run_failed(error)
        raise
    if (events := native.leave(previous)) != guard.seen:
        guard.plans_changed(events)
    return result


def on_lanes(guard: Guard, use: Callable[[Lanes], _Result]) -> _Result | None:
    """Return what ``use`` returns of the session's lanes; None, and it is not called, where it has none.

    Raises:
        SessionClosedError: the session is closed.
    """
    while (lanes := guard.lanes) is not None:
        try:
            return use(lanes)
        except PoolClosed:
            # Either others have come in their place, or none do.
            if guard.lanes is lanes:
                raise SessionClosedError(CLOSED) from None
    return None


def start(guard: Guard, work: Callable[[], Any]) -> Future[Any] | None:
    """Do some work on a thread of the session's lanes; None, and nothing is done, where it has none.

    Raises:
        SessionClosedError: the session is closed.
    """
    return on_lanes(guard, lambda lanes: lanes.start(work))


def close(session: Any, guard: Guard) -> None:
    """Give up everything that a session holds."""
    if isinstance(guard.lanes, Retired):
        return
    if guard.lanes is not None:
        guard.lanes.close()
    guard.finish()
    retire(session, guard, CLOSED)
    # Metadata keeps the underlying session alive.
    for name in ("inputs_meta", "outputs_meta", "overridable_initializers", "model_meta"):
        setattr(session, f"_{name}", None)
    for name in ("input_meminfos", "output_meminfos", "input_epdevices"):
        if hasattr(session, f"_{name}"):
            setattr(session, f"_{name}", None)


def retire(session: Any, guard: Guard, text: str) -> None:
    """Let every later use of a session raise ``SessionClosedError(text)``."""
    guard.lanes = session._sess = Retired(text)


def retire_forked(session: Any, guard: Guard, text: str) -> None:
    """As retire(), in a forked process: nothing of the parent's may be destroyed here."""
    held = [session._sess]
    if isinstance(guard.lanes, Lanes):
        held += [guard.lanes, *guard.lanes.sessions()]
    for value in held:
        forks.keep_forever(value)
    guard.finish.detach()
    retire(session, guard, text)


def check_open(guard: Guard) -> None:
    """Raise where a session is closed.

    Raises:
        SessionClosedError: it is.
    """
    if isinstance(guard.lanes, Retired):
        raise SessionClosedError(guard.lanes.text)
