"""A pool whose members are handed out fairly: whoever waits is served in order, a turn at the latest after the last.

To hand a member to the one who waits longest costs a switch of threads, which takes as long as a short run. So within
a turn a member that was given back is for whoever takes it first, often the very thread that just had it, and the first
in the queue is woken to try. Once in a turn it is handed over, and nobody can come in between.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Protocol, TypeVar

Member = TypeVar("Member")

TURN = 0.001
"""Seconds. The longest wait is about a turn for each caller in the queue."""


class PoolClosed(Exception):  # noqa: N818 (no error by itself: whoever owns the pool says what it means)
    """The pool serves nobody any more."""


class _Request(Generic[Member]):
    """One caller in the queue, asleep on its own lock until it is served."""

    def __init__(self, wanted: Member | None, *, everything: bool) -> None:
        self.wanted = wanted
        self.everything = everything
        self.granted: Member | None = None
        self.served = False
        self._awake = False
        self._sleep = threading.Lock()
        self._sleep.acquire()

    def serve(self) -> None:
        self.served = True
        self.wake()

    def wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._sleep.release()

    def rest(self) -> None:
        """After wait() and in vain: the next wake() is another one."""
        self._awake = False

    def wait(self, seconds: float = -1) -> None:
        self._sleep.acquire(timeout=seconds)


class Shortcut(Protocol):
    """Whoever may take the last of the free members, and give it back, without asking the pool."""

    def open(self, idle: list[Member], /) -> object:
        """Allow it, with the list of free members."""

    def shut(self) -> object:
        """Allow it no more."""


class _NoShortcut:
    def open(self, idle: object) -> None:
        pass

    def shut(self) -> None:
        pass


class FairPool(Generic[Member]):
    """Members for callers of many threads: each is held by one caller at a time.

    Args:
        members: at least one; the first is never removed.
        preferred: which of the free members are taken before the others.
        shortcut: is open whenever nobody waits and nobody is in the pool. It must be atomic: hold the interpreter's
            lock from looking at the list until it is changed.
    """

    def __init__(
        self,
        members: Sequence[Member],
        preferred: Callable[[Member], bool] = lambda member: True,
        shortcut: Shortcut | None = None,
    ) -> None:
        self.first = members[0]
        self._preferred = preferred
        self._members = list(members)
        # The last one is taken first: what was used last is the warmest.
        self._idle = list(reversed(self._members))
        self._queue: deque[_Request[Member]] = deque()
        self._lock = threading.Lock()
        self._shortcut: Shortcut = shortcut or _NoShortcut()
        self._closed = False
        self._turn_ends = 0.0
        """When the next in the queue must be served, on the clock of time.monotonic()."""
        self._last: int | None = None
        """The thread that ends the process, and is served alone from then on."""
        self._shortcut.open(self._idle)

    def __enter__(self) -> None:
        """Shut the way past the pool; for its own methods, inside its lock.

        The lock is entered by itself: an interrupt between two lines of Python must not leave it taken. A shortcut that
        stays shut is opened by the next one.
        """
        self._shortcut.shut()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._queue and not self._closed and self._last is None:
            self._shortcut.open(self._idle)

    @property
    def members(self) -> tuple[Member, ...]:
        """The members that there are."""
        with self._lock, self:
            return tuple(self._members)

    @property
    def waiting(self) -> int:
        """How many callers are in the queue."""
        return len(self._queue)

    def take(self, wanted: Member | None = None) -> Member:
        """Return a member that nobody else has until it is given back; wait for it where none is free.

        Args:
            wanted: this very member; None for any.

        Raises:
            PoolClosed: the pool is closed, or was closed meanwhile.
        """
        if self._last is not None and self._last == threading.get_ident():
            return self.first if wanted is None else wanted
        with self._lock, self:
            if self._closed:
                raise PoolClosed
            idle = self._idle
            if idle and (not self._queue or self._in_turn()):
                # Nearly always the one at the end: this is in the way of every run.
                if wanted is None and self._preferred(idle[-1]):
                    return idle.pop()
                if (member := self._pick(wanted, idle)) is not None:
                    idle.remove(member)
                    return member
            request = self._enqueue(_Request(wanted, everything=False))
        return self._await(request)

    def give(self, member: Member) -> None:
        """Give back what take() returned."""
        if self._last is not None and self._last == threading.get_ident():
            return
        with self._lock, self:
            self._idle.append(member)
            if not self._queue:
                return
            if self._in_turn():
                self._queue[0].wake()
            else:
                self._serve()

    def remove(self, member: Member) -> None:
        """Let the pool be without a member that take() returned and that is not the first."""
        with self._lock, self:
            self._members.remove(member)
            # Somebody may wait for all that there are.
            self._serve()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold all members inside the block: waits until each has been given back; nobody who came later is served.

        Raises:
            PoolClosed: the pool is closed, or was closed meanwhile.
        """
        if self._last == threading.get_ident():
            yield
            return
        with self._lock, self:
            if self._closed:
                raise PoolClosed
            request = self._enqueue(_Request(None, everything=True))
        self._await(request)
        try:
            yield
        finally:
            with self._lock, self:
                self._idle = list(reversed(self._members))
                self._serve()

    def shrink(self, count: int) -> list[Member]:
        """Inside alone(): keep the first ``count`` members; return the others."""
        with self._lock, self:
            removed, self._members = self._members[count:], self._members[:count]
            return removed

    def close(self) -> None:
        """Inside alone(): serve nobody from now on, those in the queue included."""
        with self._lock, self:
            self._closed = True
            while self._queue:
                self._queue.popleft().serve()

    def rest(self, seconds: float) -> None:
        """Serve nobody but the calling thread from now on, and let the others wait for ever; for the end of a process.

        Args:
            seconds: how long to wait for those who hold a member.
        """
        with self._lock, self:
            if self._closed:
                return
            request = self._enqueue(_Request(None, everything=True))
        request.wait(seconds)
        # Also where somebody holds on to a member: the process ends all the same.
        self._last = threading.get_ident()

    def _pick(self, wanted: Member | None, free: list[Member]) -> Member | None:
        if wanted is not None:
            return wanted if wanted in free else None
        if not free or self._preferred(free[-1]):
            return free[-1] if free else None
        return next((member for member in reversed(free) if self._preferred(member)), free[-1])

    def _enqueue(self, request: _Request[Member]) -> _Request[Member]:
        self._queue.append(request)
        self._serve()
        return request

    def _await(self, request: _Request[Member]) -> Member:
        try:
            request.wait()
            while not self._served(request):
                request.wait()
        except BaseException:
            # E.g. Ctrl-C: leave the queue, or give back what came at the same moment.
            with self._lock, self:
                if not request.served:
                    self._queue.remove(request)
                elif request.everything and request.granted is not None:
                    self._idle = list(reversed(self._members))
                elif request.granted is not None:
                    self._idle.append(request.granted)
                self._serve()
            raise
        if request.granted is None:
            raise PoolClosed
        return request.granted

    def _in_turn(self) -> bool:
        """Return whether those in the queue may be overtaken; never by somebody whose place is reserved."""
        head = self._queue[0]
        return head.wanted is None and not head.everything and time.monotonic() < self._turn_ends

    def _served(self, request: _Request[Member]) -> bool:
        """Return whether somebody who was woken is served, or can be now."""
        with self._lock, self:
            if not request.served:
                request.rest()
                self._serve()
            return request.served

    def _serve(self) -> None:
        """Serve from the front of the queue what can be served; nobody overtakes for a member that another wants."""
        reserved: list[Member] = []
        for request in list(self._queue):
            if request.everything:
                if request is self._queue[0] and len(self._idle) == len(self._members):
                    self._idle = []
                    self._grant(request, self.first)
                return
            free = [member for member in self._idle if member not in reserved]
            member = self._pick(request.wanted, free)
            if member is not None:
                self._idle.remove(member)
                self._grant(request, member)
            elif request.wanted is not None:
                reserved.append(request.wanted)
            elif request.wanted is None and not reserved:
                return

    def _grant(self, request: _Request[Member], member: Member) -> None:
        self._queue.remove(request)
        request.granted = member
        self._turn_ends = time.monotonic() + TURN
        request.serve()
