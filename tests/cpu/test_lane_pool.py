"""The pool: one holder a member, first come first served, everything for one, closing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ortlock.lanes import pool as pool_module
from ortlock.lanes.pool import FairPool, PoolClosed


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Caller(threading.Thread):
    """Takes a member, notes that, and holds it until it is told to give it back."""

    def __init__(self, pool: FairPool[str], order: list[str], name: str, wanted: str | None = None) -> None:
        super().__init__(daemon=True)
        self.pool, self.order, self.label, self.wanted = pool, order, name, wanted
        self.release = threading.Event()
        self.member: str | None = None
        self.closed = False

    def run(self) -> None:
        try:
            self.member = self.pool.take(self.wanted)
        except PoolClosed:
            self.closed = True
            return
        self.order.append(self.label)
        assert self.release.wait(30)
        self.pool.give(self.member)


def queued(pool: FairPool[str], order: list[str], *names: str, wanted: str | None = None) -> list[Caller]:
    """Start callers, each after the one before is in the queue."""
    callers = []
    for name in names:
        before = pool.waiting
        caller = Caller(pool, order, name, wanted)
        caller.start()
        wait_for(lambda before=before: pool.waiting == before + 1)  # type: ignore[misc]
        callers.append(caller)
    return callers


def test_one_holder_at_a_time() -> None:
    pool = FairPool(["a", "b", "c"])
    held: dict[str, int] = {"a": 0, "b": 0, "c": 0}
    most: list[int] = []

    def work() -> None:
        for _ in range(300):
            member = pool.take()
            held[member] += 1
            most.append(held[member])
            held[member] -= 1
            pool.give(member)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(most) == 1
    assert len(most) == 8 * 300
    assert sorted(pool.members) == ["a", "b", "c"]
    assert pool.waiting == 0


@pytest.mark.parametrize("when", ["open", "shut"])
def test_an_interrupt_leaves_the_pool_as_it_was(when: str) -> None:
    class Interrupted:
        """A shortcut during which Ctrl-C comes, once."""

        armed = False

        def open(self, idle: list[Any], /) -> None:
            self.act("open")

        def shut(self) -> None:
            self.act("shut")

        def act(self, what: str) -> None:
            if self.armed and what == when:
                self.armed = False
                raise KeyboardInterrupt

    shortcut = Interrupted()
    pool = FairPool(["a", "b"], shortcut=shortcut)
    held = pool.take()
    shortcut.armed = True
    with pytest.raises(KeyboardInterrupt):
        pool.give(held)
    if when == "shut":
        pool.give(held)
    assert {pool.take(), pool.take()} == {"a", "b"}


def test_first_come_first_served() -> None:
    pool, order = FairPool(["a"]), list[str]()
    mine = pool.take()
    callers = queued(pool, order, "1", "2", "3", "4")
    pool.give(mine)
    for number, caller in enumerate(callers, 1):
        wait_for(lambda number=number: len(order) == number)  # type: ignore[misc]
        caller.release.set()
        caller.join(30)
    assert order == ["1", "2", "3", "4"]


def test_within_a_turn_whoever_comes_first_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TURN", 60.0)
    pool, order = FairPool(["a"]), list[str]()
    mine = pool.take()
    (first,) = queued(pool, order, "1")
    pool.give(mine)
    wait_for(lambda: order == ["1"])
    (second,) = queued(pool, order, "2")
    woken: list[object] = []
    with monkeypatch.context() as asleep:
        asleep.setattr(pool_module._Request, "wake", lambda request: woken.append(request))
        first.release.set()
        first.join(30)
        assert len(woken) == 1
        assert pool.take() == "a"
    assert second.member is None
    pool._turn_ends = 0.0
    pool.give("a")
    # The turn is over: it was handed over, and is not to be had.
    assert pool._idle == []
    wait_for(lambda: order == ["1", "2"])
    second.release.set()
    second.join(30)


def test_who_is_woken_within_a_turn_takes_what_nobody_else_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TURN", 60.0)
    pool, order = FairPool(["a"]), list[str]()
    mine = pool.take()
    callers = queued(pool, order, "1", "2", "3")
    pool.give(mine)
    for number, caller in enumerate(callers, 1):
        wait_for(lambda number=number: len(order) == number)  # type: ignore[misc]
        caller.release.set()
        caller.join(30)
    assert order == ["1", "2", "3"]


def test_nobody_waits_for_ever_beside_one_who_never_pauses() -> None:
    pool, stop = FairPool(["a"]), threading.Event()

    def greedy() -> None:
        while not stop.is_set():
            pool.give(pool.take())

    def patient() -> None:
        for _ in range(20):
            pool.give(pool.take())

    threads = [threading.Thread(target=greedy, daemon=True) for _ in range(2)]
    waiting = threading.Thread(target=patient, daemon=True)
    for thread in (*threads, waiting):
        thread.start()
    waiting.join(30)
    stop.set()
    assert not waiting.is_alive()


def test_a_wanted_member_keeps_nobody_from_the_others() -> None:
    pool, order = FairPool(["a", "b"]), list[str]()
    first, second = pool.take("a"), pool.take("b")
    (bound,) = queued(pool, order, "bound", wanted="a")
    (anybody,) = queued(pool, order, "anybody")
    pool.give(second)
    wait_for(lambda: order == ["anybody"])
    assert anybody.member == "b"
    (late,) = queued(pool, order, "late")
    pool.give(first)
    wait_for(lambda: order == ["anybody", "bound"])
    # Whoever came later does not get what the one before waits for.
    assert (bound.member, late.member) == ("a", None)
    anybody.release.set()
    wait_for(lambda: late.member == "b")
    for caller in (bound, late):
        caller.release.set()
        caller.join(30)


def test_preferred_members_are_taken_first() -> None:
    pool = FairPool(["a", "b", "c"], lambda member: member == "b")
    assert [pool.take(), pool.take(), pool.take()] == ["b", "a", "c"]


def test_alone_waits_for_all_and_holds_all() -> None:
    pool, order = FairPool(["a", "b"]), list[str]()
    one, two = pool.take(), pool.take()
    inside, leave = threading.Event(), threading.Event()

    def alone() -> None:
        with pool.alone():
            order.append("alone")
            inside.set()
            assert leave.wait(30)

    thread = threading.Thread(target=alone)
    thread.start()
    wait_for(lambda: pool.waiting == 1)
    (later,) = queued(pool, order, "later")
    pool.give(one)
    assert not inside.wait(0.05)
    pool.give(two)
    assert inside.wait(30)
    assert not later.order[1:]
    leave.set()
    wait_for(lambda: order == ["alone", "later"])
    later.release.set()
    thread.join(30)
    later.join(30)
    assert {pool.take(), pool.take()} == {"a", "b"}


def test_shrink_and_remove() -> None:
    pool = FairPool(["a", "b", "c", "d"])
    with pool.alone():
        assert pool.shrink(2) == ["c", "d"]
    assert pool.members == ("a", "b")
    assert pool.take("b") == "b"
    pool.remove("b")
    with pool.alone():
        assert list(pool.members) == ["a"]
    assert pool.take() == "a"


def test_close_refuses_those_who_wait_and_those_who_come() -> None:
    pool, order = FairPool(["a"]), list[str]()
    mine = pool.take()
    thread = threading.Thread(target=lambda: _close(pool))
    thread.start()
    wait_for(lambda: pool.waiting == 1)
    (late,) = queued(pool, order, "late")
    pool.give(mine)
    thread.join(30)
    late.join(30)
    assert late.closed
    assert order == []
    with pytest.raises(PoolClosed):
        pool.take()
    with pytest.raises(PoolClosed), pool.alone():
        pass


def _close(pool: FairPool[str]) -> None:
    with pool.alone():
        pool.close()


def test_rest_serves_the_calling_thread_alone() -> None:
    pool, order = FairPool(["a", "b"]), list[str]()
    pool.take()
    pool.rest(0.01)
    before = pool.waiting
    never = Caller(pool, order, "never")
    never.start()
    wait_for(lambda: pool.waiting == before + 1)
    assert pool.take() == "a"
    pool.give("a")
    with pool.alone():
        pass
    never.join(0.05)
    assert order == []
    assert never.is_alive()


@pytest.mark.parametrize("served", [False, True])
def test_an_interrupted_wait_leaves_nothing_behind(served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortlock.lanes import pool as module

    pool = FairPool(["a"])
    mine = pool.take()

    def interrupted(request: module._Request[str], seconds: float = -1) -> None:
        if served:
            pool.give(mine)
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Request, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.take()
    monkeypatch.undo()
    assert pool.waiting == 0
    if not served:
        pool.give(mine)
    assert pool.take() == "a"
