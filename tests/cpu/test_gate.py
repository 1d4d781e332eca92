"""The gate of csrc/lanes: what it lets through, what it leaves to Python, and that no lane is ever lost or shared."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortlock import Mode, native
from ortlock.lanes.pool import FairPool

X = {"x": np.zeros(2, np.float32)}


class Place:
    """What the gate needs of a lane."""

    def __init__(self, session: Any, *, ready: bool = True) -> None:
        self.session, self.ready, self.served = session, ready, False


class Keeper:
    """What the gate needs of lanes: who takes a lane back, and who knows what to do after a failure."""

    def __init__(self) -> None:
        self.given_back: list[Any] = []
        self.rescued: list[tuple[Any, ...]] = []
        self.answer: Any = "rescued"

    def give_back(self, lane: Any) -> None:
        self.given_back.append(lane)

    def rescue(self, *arguments: Any) -> Any:
        self.rescued.append(arguments)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def token() -> Iterator[int]:
    number = native.open_session(Mode.PIN)
    yield number
    native.close_session(number)


def echo(*arguments: Any) -> Any:
    return arguments


def returns(value: Any) -> Any:
    return lambda *_: value


def current() -> int:
    """Return the token that the calls of this thread belong to."""
    previous = native.enter(0)
    native.leave(previous)
    return previous


def test_a_run_goes_through_and_the_lane_comes_back(token: int) -> None:
    gate, first, second, keeper = native.Gate(token, np.ndarray, {}), Place("first"), Place("second"), Keeper()
    idle = [first, second]
    gate.open(idle)
    assert gate.run(keeper, echo, ["y"], X, "options") == ("second", ["y"], X, "options")
    assert idle == [first, second]
    assert (first.served, second.served) == (False, True)
    assert keeper.given_back == keeper.rescued == []
    assert gate.events == 0


def test_the_calls_inside_belong_to_the_session(token: int) -> None:
    gate = native.Gate(token, np.ndarray, {})
    gate.open([Place("lane"), Place("another")])
    outside = native.open_session(Mode.PIN)

    def inside(*_: Any) -> Any:
        return [current(), gate.run(Keeper(), lambda *_: current(), None, {}, None), current()]

    assert gate.run(Keeper(), inside, None, {}, None) == [token, token, token]
    assert current() == 0
    previous = native.enter(outside)
    assert gate.run(Keeper(), inside, None, {}, None) == [token, token, token]
    assert current() == outside
    native.leave(previous)
    native.close_session(outside)


def test_the_lane_is_nobody_elses_meanwhile(token: int) -> None:
    gate, lane = native.Gate(token, np.ndarray, {}), Place("lane")
    idle = [lane]
    gate.open(idle)
    seen = []

    def method(*_: Any) -> str:
        seen.append(list(idle))
        assert gate.run(Keeper(), echo, None, X, None) is None
        return "outputs"

    assert gate.run(Keeper(), method, None, X, None) == "outputs"
    assert seen == [[]]
    assert idle == [lane]


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    "feed",
    [
        {"x": [1.0, 2.0]},
        {"x": np.zeros(2), "z": None},
        {"x": np.zeros(2).view(Subclass)},
        OrderedDict(X),
        [("x", np.zeros(2))],
        None,
    ],
    ids=["list", "None", "subclass", "another mapping", "pairs", "nothing"],
)
def test_other_inputs_are_left_to_python(token: int, feed: Any) -> None:
    gate, lane = native.Gate(token, np.ndarray, {}), Place("lane")
    idle = [lane]
    gate.open(idle)
    assert gate.run(Keeper(), pytest.fail, None, feed, None) is None
    assert idle == [lane]


def test_nothing_passes_a_gate_that_is_shut_or_has_obstacles_or_no_lane(token: int) -> None:
    obstacles: dict[int, str] = {}
    gate, lane, broken = native.Gate(token, np.ndarray, obstacles), Place("lane"), Place("broken", ready=False)
    keeper = Keeper()
    assert gate.run(keeper, pytest.fail, None, X, None) is None
    gate.open([])
    assert gate.run(keeper, pytest.fail, None, X, None) is None
    gate.open([lane, broken])
    assert gate.run(keeper, pytest.fail, None, X, None) is None
    gate.open([broken, lane])
    obstacles[0] = "lost"
    assert gate.run(keeper, pytest.fail, None, X, None) is None
    obstacles.clear()
    assert gate.run(keeper, echo, None, X, None)[0] == "lane"
    gate.shut()
    assert gate.run(keeper, pytest.fail, None, X, None) is None


def test_a_gate_that_was_shut_meanwhile(token: int) -> None:
    gate, lane, keeper = native.Gate(token, np.ndarray, {}), Place("lane"), Keeper()
    idle = [lane]
    gate.open(idle)

    def method(*_: Any) -> str:
        gate.shut()
        return "outputs"

    assert gate.run(keeper, method, None, X, None) == "outputs"
    assert idle == []
    assert keeper.given_back == [lane]


@pytest.mark.parametrize("error", [RuntimeError("failed"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_a_failure_is_pythons(token: int, error: BaseException) -> None:
    gate, lane, keeper = native.Gate(token, np.ndarray, {}), Place("lane"), Keeper()
    idle = [lane]
    gate.open(idle)

    def fails(*_: Any) -> None:
        raise error

    assert gate.run(keeper, fails, ["y"], X, "options") == "rescued"
    assert keeper.rescued == [(lane, error, fails, ["y"], X, "options")]
    assert "fails" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert idle == []
    assert keeper.given_back == []
    assert not lane.served
    assert current() == 0

    gate.open([lane])
    keeper.answer = ValueError("told")
    with pytest.raises(ValueError, match="told"):
        gate.run(keeper, fails, ["y"], X, "options")
    assert current() == 0


def test_a_lane_without_what_is_asked_of_it_is_not_lost(token: int) -> None:
    gate, keeper = native.Gate(token, np.ndarray, {}), Keeper()
    lane: Any = SimpleNamespace(ready=True)
    idle = [lane]
    gate.open(idle)
    with pytest.raises(AttributeError, match="session"):
        gate.run(keeper, echo, None, X, None)
    assert idle == [lane]
    idle[:] = [SimpleNamespace()]
    with pytest.raises(AttributeError, match="ready"):
        gate.run(keeper, echo, None, X, None)
    assert len(idle) == 1


def test_wrong_arguments(token: int) -> None:
    with pytest.raises(KeyError, match="no session has the token 123456789"):
        native.Gate(123456789, np.ndarray, {})
    with pytest.raises(TypeError):
        native.Gate(token, "ndarray", {})  # type: ignore[arg-type]
    gate = native.Gate(token, np.ndarray, {})
    with pytest.raises(TypeError, match="takes lanes, method"):
        gate.run(None, echo, None, X)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="list of free lanes"):
        gate.open((Place("lane"),))  # type: ignore[arg-type]


def test_nothing_is_kept_alive(token: int) -> None:
    gate, lane = native.Gate(token, np.ndarray, {}), Place("lane")
    outputs = Place("outputs")
    gone = [weakref.ref(lane), weakref.ref(outputs)]
    gate.open([lane])
    for _ in range(100):
        assert gate.run(Keeper(), returns(outputs), None, X, None) is outputs
    before = sys.getrefcount(X), sys.getrefcount(None)
    for _ in range(10_000):
        gate.run(Keeper(), echo, None, X, None)
    after = sys.getrefcount(X), sys.getrefcount(None)
    assert max(abs(one - other) for one, other in zip(before, after, strict=True)) < 1_000
    gate.shut()
    del lane, outputs
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


@given(st.lists(st.sampled_from(["gate", "take", "first", "alone"]), min_size=1, max_size=40), st.integers(1, 4))
def test_with_the_pool_one_after_the_other(steps: list[str], count: int) -> None:
    number = native.open_session(Mode.PIN)
    places = [Place(index) for index in range(count)]
    gate = native.Gate(number, np.ndarray, {})
    pool = FairPool(places, shortcut=gate)
    keeper = SimpleNamespace(give_back=pool.give)
    held: list[Place] = []
    for step in steps:
        if step == "gate":
            outputs = gate.run(keeper, returns("outputs"), None, X, None)
            assert outputs == (None if len(held) == count else "outputs")
        elif step == "take" and len(held) < count:
            held.append(pool.take())
        elif step == "first" and places[0] not in held:
            held.append(pool.take(places[0]))
        elif step == "alone":
            while held:
                pool.give(held.pop())
            with pool.alone():
                assert gate.run(keeper, pytest.fail, None, X, None) is None
    native.close_session(number)


def test_with_the_pool_from_many_threads(token: int) -> None:
    """Gate, pool and everything at once: a lane is never with two, and none is lost."""
    places = [Place(index) for index in range(3)]
    gate = native.Gate(token, np.ndarray, {})
    pool = FairPool(places, shortcut=gate)
    keeper = SimpleNamespace(give_back=pool.give)
    users = [0, 0, 0]
    most: list[int] = []
    passed = []

    def use(index: int, *_: Any) -> str:
        users[index] += 1
        most.append(users[index])
        for __ in range(20):
            pass
        users[index] -= 1
        return "outputs"

    def work(number: int) -> None:
        for step in range(2_000):
            if (step + number) % 400 == 0:
                with pool.alone():
                    most.append(sum(users) + 1)
            elif (step + number) % 50 == 0 or gate.run(keeper, use, None, X, None) is None:
                taken = pool.take(places[0] if step % 3 == 0 else None)
                use(taken.session)
                pool.give(taken)
            else:
                passed.append(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    assert max(most) == 1
    assert passed
    assert pool.waiting == 0
    with pool.alone():
        pass
    assert gate.run(keeper, use, None, X, None) == "outputs"


def test_nobody_passes_who_would_overtake(token: int) -> None:
    gate = native.Gate(token, np.ndarray, {})
    place = Place("lane")
    pool = FairPool([place], shortcut=gate)
    keeper = SimpleNamespace(give_back=pool.give)
    pool.take()
    waiting = threading.Thread(target=lambda: pool.give(pool.take()))
    waiting.start()
    while pool.waiting == 0:
        pass
    assert gate.run(keeper, pytest.fail, None, X, None) is None
    pool.give(place)
    waiting.join(30)
    assert not waiting.is_alive()
    assert gate.run(keeper, echo, None, X, None)[0] == "lane"
