"""Which lanes a session has: how they are made, made anew, given up, and what is said of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from ortlock import native
from ortlock.errors import SessionClosedError
from ortlock.lanes import memory, streams
from ortlock.lanes.choice import LanePlan
from ortlock.lanes.lane import Lane, bound_attributes, let_go, quiet_view
from ortlock.lanes.pool import FairPool
from ortlock.report.model import LaneFacts

Make = Callable[[dict[str, str]], Any]
"""Makes the session of a further lane, with options for CUDA."""

_GONE = (
    "This session failed in a run, and there was no memory to make it anew. The next run tries it again; "
    "free memory on the device for that."
)


class Members:
    """The lanes and the pool that hands them out.

    Args:
        plan: how many lanes, and what lane 0 runs on.
        make: makes further sessions; None: lane 0 is all that there can be.
        owner: the session object that lane 0 belongs to; it is not kept alive.
        token: of the session, for the native extension.
    """

    def __init__(self, plan: LanePlan, make: Make | None, owner: Any, token: int) -> None:
        self.plan = plan
        self.refused: str | None = None
        """Why there are fewer lanes than were asked for."""
        self.replaced = 0
        """Lanes that were made anew after a failure."""
        self.retried = 0
        """Runs that memory was too short for beside others, and that were repeated alone."""
        self._make = make
        self._owner = weakref.ref(owner)
        self._count = plan.count
        self._first_is_new = False
        """Lane 0's session is not the one that the owner was made with."""
        self._counting = threading.Lock()
        self._shrunk = 0
        """How often memory was so short that lanes were given up."""
        first = Lane(0, plan.device, quiet_view(owner), plan.stream)
        self._hold_stream(first)
        self._lanes = [first, *(Lane(number, plan.device) for number in range(1, plan.count))]
        self.gate = native.Gate(token, np.ndarray, streams.lost)
        """The way of runs that need nothing of what is here; it refers to nothing that refers to it."""
        self.pool = FairPool(self._lanes, attrgetter("ready"), self.gate)

    def sessions(self) -> list[Any]:
        """Return the underlying session of every lane; takes no lock, which a forked process might inherit taken."""
        return [lane.session._sess for lane in self._lanes if lane.session is not None]

    def facts(self) -> LaneFacts:
        """Return what a report says of the lanes."""
        lanes = self.pool.members
        stream = self.plan.stream
        return LaneFacts(
            count=self._count,
            open=sum(lane.session is not None for lane in lanes),
            serialised=self._count == 1,
            stream="onnxruntime" if stream is None else "own" if stream.own else "caller",
            priority=stream.priority if stream is not None else None,
            reason=self.plan.reason if self.refused is None else f"{self.plan.reason}; {self.refused}",
            gpu_mem_limit=self.plan.limit,
            gpu_mem_limit_per_lane=None if self.plan.limit is None else self.plan.limit // self._count,
            memory=tuple(lane.memory for lane in lanes if lane.number > 0 and lane.session is not None),
            replaced=self.replaced,
            retried=self.retried,
        )

    def _give_up(self, lane: Lane, reason: str) -> None:
        """Let there be one lane less from now on."""
        lane.drop()
        self.pool.remove(lane)
        with self._counting:
            self._count -= 1
        self.refused = reason

    def _open(self, lane: Lane, count: int) -> None:
        """Make the session of a lane and its stream, where ``count`` lanes share the memory."""
        if self._make is None:
            raise RuntimeError(
                "This session failed in a run, after which ONNX Runtime may go on with a wrong plan, and another one "
                "like it cannot be made. Make a new session."
            )
        device = self.plan.device
        stream = lane.stream = self._new_stream()
        before = streams.free_memory(device) if device is not None else None
        lane.session = self._make(self.plan.options(stream, count))
        after = streams.free_memory(device) if device is not None else None
        lane.memory = None if before is None or after is None else max(0, before - after)
        self._hold_stream(lane)
        lane.ready = True

    def _reopen_first(self) -> None:
        """Put a new session, with a new arena, in the place of lane 0's. The caller holds the lane.

        Raises:
            Exception: it cannot be made. Where memory was too short, lane 0 has no session then.
        """
        fresh = Lane(0, self.plan.device)
        try:
            self._open(fresh, self._count)
        except Exception as error:
            if self._make is None or not memory.is_short(error):
                raise
            fresh.drop()
            self._let_go_of_first()
            self._open(fresh, self._count)
        lane = self.pool.first
        lane.session, lane.stream = fresh.session, fresh.stream
        lane.ready, lane.served = True, False
        if (owner := self._owner()) is not None:
            vars(owner).update(bound_attributes(fresh.session))
        self._first_is_new = True

    def _let_go_of_first(self) -> None:
        """Give back what lane 0 holds, so that there is room for its next session."""
        self.pool.first.drop()
        if (owner := self._owner()) is not None:
            let_go(owner, Retired(_GONE))

    def _reopened_first(self) -> bool:
        """Make lane 0 anew; False where memory is too short for that, or it cannot be."""
        if self._make is None:
            return False
        try:
            self._reopen_first()
        except Exception as error:
            if not memory.is_short(error):
                raise
            return False
        return True

    def _shrink(self) -> None:
        """Drop the sessions of all further lanes, and allow half as many lanes from now on."""
        self._shrunk += 1
        with self._counting:
            self._count = max(1, self._count // 2)
        for lane in self.pool.shrink(self._count):
            lane.drop()
        for lane in self.pool.members[1:]:
            lane.drop()

    def _new_stream(self) -> streams.Stream | None:
        stream = self.plan.stream
        if stream is None or not stream.own:
            return stream
        return streams.make(stream.device, stream.priority or "normal")

    def _hold_stream(self, lane: Lane) -> None:
        if lane.stream is not None and (underlying := getattr(lane.session, "_sess", None)) is not None:
            lane.stream.keep_for(underlying)


class Retired:
    """In the place of lanes or of a session: refuses everything, and says why."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> Any:
        raise SessionClosedError(self.text)
