"""The lanes of one session: who runs where, what happens when a run fails, and when memory is short."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ortlock.errors import DeviceLostError, SessionClosedError
from ortlock.lanes import memory, streams
from ortlock.lanes.binding import LaneBinding
from ortlock.lanes.choice import LanePlan
from ortlock.lanes.failures import leaves_stale_plan
from ortlock.lanes.interop import look_at, order_after_caller
from ortlock.lanes.lane import Lane
from ortlock.lanes.members import Make, Members
from ortlock.lanes.pool import PoolClosed

CLOSED = "This session is closed."

_SECONDS_TO_END = 10.0

_PROCESS = os.getpid()

_living: weakref.WeakSet[Lanes] = weakref.WeakSet()

Run = Callable[..., Any]
"""A method of ``InferenceSession``, called with a lane's session first and ``run_options`` by keyword."""


class Lanes(Members):
    """Lanes and their pool. Every run takes one and holds it until the results are there.

    Args:
        plan: how many lanes, and what lane 0 runs on.
        make: makes the session of a further lane, with options for CUDA; None: lane 0 is all that there can be.
        owner: the session object that lane 0 belongs to; it is not kept alive.
        token: of the session, for the native extension.
    """

    def __init__(self, plan: LanePlan, make: Make | None, owner: Any, token: int) -> None:
        super().__init__(plan, make, owner, token)
        self._after: Run | None = None
        """Runs what came in the place of these lanes."""
        self._executor: ThreadPoolExecutor | None = None
        self._ended = False
        """Nothing starts on the executor any more."""
        _living.add(self)

    def call(self, method: Run, *arguments: Any, run_options: Any = None, on_first: bool = False) -> Any:
        """Return what ``method`` returns on the next free lane, or on lane 0.

        Raises:
            SessionClosedError: the session is closed.
            DeviceLostError: the CUDA context is lost, now or since an earlier run.
            Exception: whatever the run raises. Where it failed for want of memory, it was repeated alone before.
        """
        shrunk = self._shrunk
        try:
            owned, on_device = look_at(arguments)
            # What belongs to the session object belongs to lane 0.
            lane = self._take(on_first=on_first or owned)
        except PoolClosed:
            if self._after is None:
                raise SessionClosedError(CLOSED) from None
            return self._after(method, *arguments, run_options=run_options)
        except Exception as error:
            if not memory.is_short(error):
                raise
            failure: BaseException = error
        else:
            try:
                if on_device and lane.stream is not None:
                    order_after_caller(lane.stream)
                result = method(lane.session, *arguments, run_options=run_options)
            except BaseException as error:
                self._failed(lane, error)
                if not memory.is_short(error):
                    raise
                failure = error
            else:
                lane.served = True
                self.pool.give(lane)
                return result
        return self._repeated(method, arguments, run_options, failure, shrunk)

    def give_back(self, lane: Lane) -> None:
        """Take back a lane that the gate let somebody have."""
        self.pool.give(lane)

    def rescue(
        self, lane: Lane, error: BaseException, method: Run, output_names: Any, input_feed: Any, run_options: Any
    ) -> Any:
        """Do what call() does after a run that the gate let through and that failed.

        Args:
            lane: where it failed, taken.
            error: what it raised.
            method: what was run.
            output_names: of the run.
            input_feed: of the run.
            run_options: of the run.

        Raises:
            Exception: as call().
        """
        # While a lane was taken nobody can have made room.
        shrunk = self._shrunk
        self._failed(lane, error)
        if not memory.is_short(error):
            raise error
        return self._repeated(method, (output_names, input_feed), run_options, error, shrunk)

    def call_bound(self, method: Run, binding: Any, run_options: Any = None) -> Any:
        """Run a binding on lane 0, which it was made for; raises as call()."""

        def run(session: Any, bound: Any, run_options: Any) -> Any:
            if isinstance(bound, LaneBinding):
                bound.move_to(session)
            elif self._first_is_new:
                _check_current(session, bound)
            return method(session, bound, run_options=run_options)

        return self.call(run, binding, run_options=run_options, on_first=True)

    def binding(self) -> LaneBinding:
        """Return a new binding of lane 0.

        Raises:
            PoolClosed: these lanes are closed, or others are in their place.
        """
        if self.pool.first.session is None:
            # Memory was too short to make it anew; this is the next who needs it.
            self.pool.give(self._take(on_first=True))
        return LaneBinding(self.pool.first.session, copies=self.plan.device is not None)

    def start(self, work: Callable[[], Any]) -> Future[Any]:
        """Do some work on a thread for asynchronous runs; there is one a lane, started when it is needed.

        Raises:
            PoolClosed: these lanes are closed, or others are in their place.
        """
        with self._counting:
            if self._ended:
                raise PoolClosed
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.plan.count, thread_name_prefix="ortlock-lane")
            return self._executor.submit(work)

    def close(self) -> None:
        """Wait for the runs under way, refuse those that wait, and let go of every session and stream."""
        self.end(None)

    def end(self, change: Callable[[], Run] | None) -> None:
        """Let ``change`` put something in the place of these lanes while nothing runs on them.

        Args:
            change: returns what runs in their place, for those who waited; None where nothing does.
        """
        try:
            with self.pool.alone():
                try:
                    for lane in self.pool.members:
                        lane.drop()
                    if change is not None:
                        self._after = change()
                finally:
                    self.pool.close()
        except PoolClosed:
            return
        finally:
            with self._counting:
                self._ended = True
            if self._executor is not None:
                self._executor.shutdown(wait=False)

    def _take(self, *, on_first: bool = False) -> Lane:
        """Return a lane that can serve. A further one that cannot be made is given up; the caller waits for another.

        Raises:
            PoolClosed: the session is closed.
            Exception: lane 0 failed before and cannot be made anew.
        """
        if self.plan.device is not None:
            streams.check_device(self.plan.device)
        while True:
            lane = self.pool.take(self.pool.first if on_first else None)
            if lane.ready:
                return lane
            if lane.number > 0 and self._too_much(lane):
                continue
            try:
                if lane.number > 0:
                    self._open(lane, self._count)
                else:
                    self._reopen_first()
            except BaseException as error:
                if lane.number == 0:
                    self.pool.give(lane)
                    raise
                self._give_up(lane, f"lane {lane.number} could not be made: {' '.join(str(error).split())}")
                if not isinstance(error, Exception) or isinstance(error, DeviceLostError):
                    raise
            else:
                return lane

    def _too_much(self, lane: Lane) -> bool:
        """Give up a further lane that nobody asked for where the device has not plenty of memory."""
        if not self.plan.cautious or self.plan.device is None or memory.has_room(self.plan.device):
            return False
        self._give_up(lane, "more than a quarter of the device's memory is in use")
        return True

    def _failed(self, lane: Lane, error: BaseException) -> None:
        """Drain a lane after a failure, see to it that it is made anew where it must be, and give it back.

        Raises:
            DeviceLostError: from ``error``, where the CUDA context is lost.
        """
        try:
            clean = lane.drain().ok
            # On the CPU no session goes on with the plan of another shape.
            stale = leaves_stale_plan(error) if self.plan.device is not None else memory.is_short(error)
            if clean and not stale:
                return
            if not memory.is_short(error):
                self.replaced += 1
            if lane.number > 0:
                lane.drop()
            else:
                lane.ready = False
        except DeviceLostError as lost:
            raise lost from error
        finally:
            self.pool.give(lane)

    def _repeated(
        self, method: Run, arguments: tuple[Any, ...], run_options: Any, failure: BaseException, shrunk: int
    ) -> Any:
        """Return what a run returns alone that memory was too short for; ``shrunk`` is as it was when it began.

        Raises:
            Exception: ``failure`` where the session was closed meanwhile, else as _alone().
        """
        try:
            return self._alone(method, arguments, run_options, failure, self._shrunk != shrunk)
        except PoolClosed:
            raise failure from None

    def _alone(
        self,
        method: Run,
        arguments: tuple[Any, ...],
        run_options: Any,
        failure: BaseException,
        shrunk: bool,
    ) -> Any:
        """Repeat a run that memory was too short for, with nothing beside it.

        Args:
            method: what to run.
            arguments: of the run.
            run_options: of the run.
            failure: what it raised.
            shrunk: another caller has made room since the run began.

        Raises:
            PoolClosed: the session was closed meanwhile.
            Exception: whatever the last attempt raises, or ``failure``.
        """
        with self.pool.alone():
            self.retried += 1
            lane = self.pool.first
            for _ in self._ways_to_make_room(shrunk):
                try:
                    if lane.stream is not None:
                        order_after_caller(lane.stream)
                    result = method(lane.session, *arguments, run_options=run_options)
                except BaseException as error:
                    failure, lane.ready = error, False
                    lane.drain()
                    if not memory.is_short(error):
                        raise
                else:
                    lane.served = True
                    return result
        raise failure

    def _ways_to_make_room(self, shrunk: bool) -> Iterator[None]:
        """Make more and more room; lane 0 can serve at each of them."""
        lane = self.pool.first
        if shrunk and lane.ready:
            yield
        # Where nothing had run in its arena yet, another new one is no better.
        if self._count == 1 and (shrunk or lane.served or lane.session is None) and self._reopened_first():
            yield
        while self._count > 1:
            self._shrink()
            # With a limit, each lane's share of it has grown. Without one, all room that lanes took is free now.
            if self._reopened_first():
                yield
            if self.plan.limit is None:
                break


def _rest() -> None:
    """Keep daemon threads from running on while the interpreter ends: ONNX Runtime would end the process by abort()."""
    if os.getpid() != _PROCESS:
        return  # Forked: a lock may have been taken by a thread that is not in this process.
    for lanes in list(_living):
        lanes.pool.rest(_SECONDS_TO_END)


atexit.register(_rest)


def _check_current(session: Any, binding: Any) -> None:
    """Refuse a binding that ortlock did not make and that may belong to a session that lane 0 had before."""
    if getattr(binding, "_session", None) is not session._sess:
        raise ValueError(
            "This binding may belong to a session that was replaced after a failed run. Make it with "
            "session.io_binding(), which moves by itself, or make it again."
        )
