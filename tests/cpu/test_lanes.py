"""Lanes with stand-ins for sessions and streams: failures, memory, lost devices, replacement, closing."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnxruntime import OrtValue
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import DeviceLostError, Mode, SessionClosedError, native
from ortlock.lanes import memory, streams
from ortlock.lanes.choice import DEFAULT_LANES, LanePlan, LaneRequest, choose, lane_request
from ortlock.lanes.failures import leaves_stale_plan
from ortlock.lanes.lanes import Lanes
from tests.cpu.session_models import CPU, CUDA

SHORT = RuntimeError("BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 64")
LOST = streams.CudaStatus(700, "cudaErrorIllegalAddress: an illegal memory access was encountered")


class FakeStream:
    """A stream that notes what is asked of it."""

    made: int = 0

    def __init__(self, device: int = 0, *, own: bool = True) -> None:
        FakeStream.made += 1
        self.device, self.own, self.priority = device, own, "normal"
        self.address = 1000 + FakeStream.made
        self.drained = 0
        self.earlier: list[int] = []
        self.finds = streams.CudaStatus(0, "")
        self.kept_for: list[Any] = []

    def drain(self) -> streams.CudaStatus:
        self.drained += 1
        if self.finds.code == 700:
            streams.lost[self.device] = self.finds
            streams.check_device(self.device)
        return self.finds

    def after(self, earlier: int) -> None:
        self.earlier.append(earlier)

    def keep_for(self, session: Any) -> None:
        self.kept_for.append(session)


class Underlying:
    """What ONNX Runtime would run: ``needs`` bytes of the ``limit`` that it was given, or the next of ``errors``."""

    def __init__(self, limit: int, errors: list[BaseException]) -> None:
        self.limit, self.errors = limit, errors
        self.runs = 0

    def run(self, needs: int) -> int:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        if needs > self.limit:
            raise SHORT
        return needs


class Session:
    """What ONNX Runtime's Python object would be."""

    def __init__(self, underlying: Underlying) -> None:
        self._sess = underlying


class Bench:
    """Lanes over stand-ins, and everything that was made for them."""

    def __init__(
        self,
        count: int,
        limit: int | None = None,
        *,
        stream: Any = None,
        total: int = 1 << 40,
        cautious: bool = False,
    ) -> None:
        self.sessions: list[Any] = []
        self.given: list[dict[str, str]] = []
        self.cannot: BaseException | None = None
        self.errors: list[BaseException] = []
        self.total = total
        stream = stream or FakeStream()
        self.plan = LanePlan(count, "asked for", 0, stream, limit, cautious)
        first = self.plan.options(stream, count)
        self.owner = Session(Underlying(int(first.get(memory.LIMIT, limit or total)), self.errors))
        self.lanes = Lanes(self.plan, self.make, self.owner, native.open_session(Mode.PIN))

    def make(self, more: dict[str, str]) -> Any:
        if self.cannot is not None:
            raise self.cannot
        self.given.append(more)
        limit = int(more.get(memory.LIMIT, self.plan.limit or self.total))
        session = Session(Underlying(limit, self.errors))
        self.sessions.append(session)
        return session

    def run(self, needs: int = 1, run_options: Any = None) -> Any:
        return self.lanes.call(run_underlying, needs, run_options=run_options)


def run_underlying(session: Any, needs: int, run_options: Any) -> int:
    return int(session._sess.run(needs))


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "make", lambda device, priority: FakeStream(device))
    monkeypatch.setattr(streams, "free_memory", lambda device: None)
    monkeypatch.setattr(streams, "lost", {})


def together(bench: Bench, count: int) -> list[Any]:
    """Hold ``count`` runs at the same time; return the sessions that they are on."""
    barrier = threading.Barrier(count)
    seen: list[Any] = []

    def hold(session: Any, run_options: Any) -> None:
        seen.append(session)
        barrier.wait(30)

    threads = [threading.Thread(target=lambda: bench.lanes.call(hold)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return seen


def test_lanes_are_made_when_they_are_needed() -> None:
    bench = Bench(3)
    for _ in range(5):
        assert bench.run() == 1
    assert bench.lanes.facts().open == 1
    assert bench.given == []
    on = together(bench, 3)
    assert len({id(session._sess) for session in on}) == 3
    facts = bench.lanes.facts()
    assert (facts.count, facts.open, facts.serialised, facts.stream) == (3, 3, False, "own")
    addresses = [more["user_compute_stream"] for more in bench.given]
    assert len({*addresses, str(bench.plan.stream.address)}) == 3  # type: ignore[union-attr]
    together(bench, 3)
    assert len(bench.given) == 2


def test_one_lane_is_serial() -> None:
    bench, inside, most = Bench(1), [0], []

    def work(session: Any, run_options: Any) -> None:
        inside[0] += 1
        most.append(inside[0])
        inside[0] -= 1

    threads = [threading.Thread(target=lambda: [bench.lanes.call(work) for _ in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(most) == 1600
    assert max(most) == 1
    assert bench.lanes.facts().serialised


def test_a_failure_is_its_callers_and_the_lane_is_drained() -> None:
    bench = Bench(1)
    bench.errors.append(RuntimeError("Non-zero status code returned while running Add node"))
    with pytest.raises(RuntimeError, match="Add node"):
        bench.run()
    stream: Any = bench.plan.stream
    assert stream.drained == 1
    assert bench.run() == 1
    assert (bench.lanes.replaced, bench.given) == (0, [])


def test_lane_0_is_made_anew_where_the_provider_failed() -> None:
    bench = Bench(1)
    before = bench.owner._sess
    bench.errors.append(C.EPFail("CUDNN failure 5000"))
    with pytest.raises(C.EPFail):
        bench.run()
    assert bench.lanes.replaced == 1
    assert bench.sessions == []
    assert bench.run() == 1
    # The session object runs what lane 0 runs.
    assert bench.owner._sess is bench.sessions[0]._sess is not before
    assert (before.runs, bench.sessions[0]._sess.runs) == (1, 1)


def test_lane_0_never_serves_again_before_it_is_made_anew() -> None:
    bench = Bench(1)
    bench.errors.append(C.EPFail("CUDNN failure 5000"))
    bench.cannot = RuntimeError("no more today")
    with pytest.raises(C.EPFail):
        bench.run()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no more today"):
            bench.run()
    bench.cannot = None
    assert bench.run() == 1
    assert len(bench.sessions) == 1


def test_a_session_that_nobody_can_make_again_says_so() -> None:
    bench = Bench(1)
    bench.lanes._make = None
    bench.errors.append(C.EPFail("CUDNN failure 5000"))
    with pytest.raises(C.EPFail):
        bench.run()
    with pytest.raises(RuntimeError, match="Make a new session"):
        bench.run()


class Convolution:
    """A session that behaves as ONNX Runtime's CUDA convolution: the shape is noted before the plan is there."""

    def __init__(self, room: list[bool]) -> None:
        self._sess = self
        self.room = room
        self.noted: int | None = None
        self.planned: int | None = None

    def run(self, shape: int) -> tuple[int | None, int]:
        if shape != self.noted:
            self.noted = shape
            if not self.room.pop(0):
                raise C.RuntimeException(
                    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv "
                    f"node. Name:'conv_0' Status Message: {SHORT}"
                )
            self.planned = shape
        return self.planned, shape


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_no_run_gets_the_plan_of_another_shape(lanes: int) -> None:
    room = [True]
    stock = Convolution([True, False])
    assert stock.run(8) == (8, 8)
    with pytest.raises(C.RuntimeException):
        stock.run(16)
    # What ONNX Runtime does: wrong, and no error.
    assert stock.run(16) == (8, 16)

    made = [Convolution(room)]
    owner = made[0]

    def make(more: dict[str, str]) -> Any:
        made.append(Convolution(room))
        return made[-1]

    held = Lanes(LanePlan(lanes, "asked for", 0, FakeStream()), make, owner, native.open_session(Mode.PIN))  # type: ignore[arg-type]

    def run(session: Any, shape: int, run_options: Any) -> Any:
        return session._sess.run(shape)

    assert held.call(run, 8) == (8, 8)
    room += [False, False]
    with pytest.raises(C.RuntimeException, match="Failed to allocate"):
        held.call(run, 16)
    room += [True, True]
    assert held.call(run, 16) == (16, 16)
    assert held.call(run, 8) == (8, 8)
    room += [False, True]
    # Memory was short for a moment only: it is repeated, with a plan of its own.
    assert held.call(run, 32) == (32, 32)
    assert held.facts().retried == 2


@pytest.mark.parametrize(
    ("error", "stale"),
    [
        (RuntimeError("Non-zero status code returned while running Add node. Name:'a'"), False),
        (C.Fail("Non-zero status code returned while running Conv node. Name:'c' Status Message: no plan"), True),
        (
            C.Fail("while running If node. Name:'i' Non-zero status code returned while running Conv node."),
            True,
        ),
        (C.Fail("Non-zero status code returned while running Reshape node. Name:'r'"), False),
        (C.RuntimeException("something without a node"), True),
        (C.Fail("Exiting due to terminate flag being set to true."), False),
        (C.InvalidArgument("Got invalid dimensions for input: x for the following indices"), False),
        (ValueError("Required inputs (['x']) are missing"), False),
        (C.EPFail("CUDNN failure 5000"), True),
        (SHORT, True),
        (KeyboardInterrupt(), True),
    ],
)
def test_what_leaves_a_wrong_plan_behind(error: BaseException, stale: bool) -> None:
    assert leaves_stale_plan(error) is stale


def test_a_further_lane_that_failed_is_made_anew_when_it_is_needed() -> None:
    bench = Bench(2)
    together(bench, 2)
    first = bench.lanes.pool.take(bench.lanes.pool.first)
    bench.errors.append(C.EPFail("CUDNN failure 5000"))
    with pytest.raises(C.EPFail):
        bench.run()
    assert bench.lanes.facts().open == 1
    assert bench.run() == 1
    assert len(bench.sessions) == 2
    bench.lanes.pool.give(first)


def test_a_lane_that_cannot_be_made_leaves_the_others() -> None:
    bench = Bench(4)
    bench.cannot = SHORT
    first = bench.lanes.pool.take()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(bench.run(7)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    bench.lanes.pool.give(first)
    thread.join(30)
    assert results == [7]
    facts = bench.lanes.facts()
    assert (facts.count, facts.open, facts.serialised) == (1, 1, True)
    assert "Failed to allocate" in facts.reason


@pytest.mark.parametrize(("free", "opened"), [(None, 1), (74, 1), (75, 3)])
def test_lanes_that_nobody_asked_for_are_made_where_there_is_room(
    free: int | None, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "device_memory", lambda device: None if free is None else (free, 100))
    bench, results = Bench(3, cautious=True), list[int]()
    held = [bench.lanes._take()]
    threads = [threading.Thread(target=lambda: results.append(bench.run(7))) for _ in range(2)]
    for thread in threads:
        thread.start()
    while bench.lanes.pool.waiting != 2 and len(results) != 2:
        pass
    assert len(results) == (0 if opened == 1 else 2)
    bench.lanes.pool.give(held.pop())
    for thread in threads:
        thread.join(30)
    assert results == [7, 7]
    together(bench, opened)
    facts = bench.lanes.facts()
    assert (facts.open, facts.serialised) == (opened, opened == 1)
    assert ("more than a quarter" in facts.reason) == (opened == 1)


def test_a_run_that_fits_alone_does_not_fail() -> None:
    bench = Bench(4, limit=1000)
    assert bench.owner._sess.limit == 250
    together(bench, 4)
    assert [more[memory.LIMIT] for more in bench.given] == ["250"] * 3
    assert bench.run(400) == 400
    facts = bench.lanes.facts()
    assert (facts.count, facts.gpu_mem_limit, facts.gpu_mem_limit_per_lane, facts.retried) == (2, 1000, 500, 1)
    assert bench.owner._sess.limit == 500
    assert bench.run(1000) == 1000
    facts = bench.lanes.facts()
    assert (facts.count, facts.open, facts.serialised, facts.gpu_mem_limit_per_lane) == (1, 1, True, 1000)
    with pytest.raises(RuntimeError, match="Failed to allocate"):
        bench.run(1001)
    assert bench.run(1000) == 1000


def test_no_arena_may_grow_beyond_the_limit_of_the_session() -> None:
    bench = Bench(3, limit=900)
    together(bench, 3)
    for needs in (200, 400, 800, 100):
        bench.run(needs)
        open_lanes = [lane for lane in bench.lanes.pool.members if lane.session is not None]
        assert sum(lane.session._sess.limit for lane in open_lanes) <= 900


def test_without_a_limit_the_other_lanes_make_room() -> None:
    bench = Bench(2)
    together(bench, 2)
    bench.errors.append(SHORT)
    assert bench.run(5) == 5
    facts = bench.lanes.facts()
    assert (facts.count, facts.open, facts.retried) == (1, 1, 1)
    assert bench.lanes.replaced == 0


def test_the_last_resort_is_a_new_arena() -> None:
    bench = Bench(1)
    assert bench.run() == 1
    ran: list[Any] = []

    def run(session: Any, run_options: Any) -> str:
        ran.append(session._sess)
        if not bench.sessions:
            raise SHORT
        return "fits"

    before = bench.owner._sess
    assert bench.lanes.call(run) == "fits"
    assert ran == [before, bench.sessions[0]._sess]


def test_a_new_arena_is_not_tried_again_where_nothing_has_run_yet() -> None:
    bench = Bench(1, limit=100)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="Failed to allocate"):
            bench.run(101)
    # Each time once: it must not go on with the plan of before.
    assert len(bench.sessions) == 2
    assert bench.run(100) == 100


def test_callers_wait_while_one_makes_room() -> None:
    bench = Bench(3, limit=900)
    together(bench, 3)
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=needs: results.extend(bench.run(n) for _ in range(20)))
        for needs in (100, 300, 500, 700, 900, 250)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == sorted([100, 300, 500, 700, 900, 250] * 20)


def test_a_lost_device_is_said_at_every_call() -> None:
    bench, other = Bench(2), Bench(1)
    stream: Any = bench.plan.stream
    stream.finds = LOST
    bench.errors.append(C.EPFail("CUDA failure 700"))
    with pytest.raises(DeviceLostError, match="cudaErrorIllegalAddress") as raised:
        bench.run()
    assert isinstance(raised.value.__cause__, C.EPFail)
    assert (raised.value.device, raised.value.code) == (0, 700)
    for lanes in (bench, other, bench):
        with pytest.raises(DeviceLostError, match="error 700"):
            lanes.run()
    assert bench.sessions == []


def test_a_capture_that_broke_costs_the_lane_and_not_the_device() -> None:
    bench = Bench(1)
    stream: Any = bench.plan.stream
    stream.finds = streams.CudaStatus(901, "cudaErrorStreamCaptureInvalidated")
    bench.errors.append(RuntimeError("capture failed"))
    with pytest.raises(RuntimeError, match="capture failed"):
        bench.run()
    assert bench.lanes.replaced == 1
    assert bench.run() == 1


def test_inputs_on_the_gpu_are_ordered_after_their_callers_work(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(1)
    stream: Any = bench.plan.stream
    on_device = OrtValue.ortvalue_from_numpy(np.ones(1, np.float32))
    monkeypatch.setattr(OrtValue, "device_name", lambda value: "Cuda")

    def run(session: Any, inputs: Any, run_options: Any) -> None:
        assert session is bench.lanes.pool.first.session

    bench.lanes.call(run, {"x": np.ones(1)})
    assert stream.earlier == []
    bench.lanes.call(run, {"x": on_device})
    assert stream.earlier == [0]
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        is_initialized=lambda: True, current_stream=lambda device: SimpleNamespace(cuda_stream=77 + device)
    )
    cupy = ModuleType("cupy")
    current = SimpleNamespace(ptr=stream.address)
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: current)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    bench.lanes.call(run, {"x": on_device})
    # Its own stream needs no order.
    assert sorted(stream.earlier[1:]) == [0, 77]


def test_closing_waits_and_then_refuses() -> None:
    bench = Bench(2)
    together(bench, 2)
    lane = bench.lanes.pool.take()
    thread = threading.Thread(target=bench.lanes.close)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    bench.lanes.pool.give(lane)
    thread.join(30)
    with pytest.raises(SessionClosedError, match="closed"):
        bench.run()
    assert bench.lanes.facts().open == 0
    bench.lanes.close()


def test_who_waits_runs_on_what_came_in_the_place_of_the_lanes() -> None:
    bench, successor = Bench(1), Bench(1)
    lane = bench.lanes.pool.take()
    results: list[Any] = []
    waiting = threading.Thread(target=lambda: results.append(bench.run(3)))
    changing = threading.Thread(target=lambda: bench.lanes.end(lambda: successor.lanes.call))
    changing.start()
    while bench.lanes.pool.waiting != 1:
        pass
    waiting.start()
    while bench.lanes.pool.waiting != 2:
        pass
    bench.lanes.pool.give(lane)
    waiting.join(30)
    changing.join(30)
    assert results == [3]
    assert successor.owner._sess.runs == 1


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (SHORT, True),
        (RuntimeError("CUDA failure 2: out of memory ; GPU=0"), True),
        (RuntimeError("Available memory of 0 is smaller than requested bytes of 1048576"), True),
        (RuntimeError("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUBLAS failure 3: the resource allocation failed ; expr=cublasCreate(&cublas_handle_);"), True),
        (RuntimeError("CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED ; expr=cudnnCreate(&cudnn_handle_);"), True),
        (RuntimeError("CUBLAS failure 13: the GPU program failed to execute"), False),
        (RuntimeError("CUDA failure 700: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA failure 209: no kernel image"), False),
        (ValueError("Required inputs (['x']) are missing"), False),
        (MemoryError(), True),
        (KeyboardInterrupt("out of memory"), False),
    ],
)
def test_when_memory_is_short(error: BaseException, short: bool) -> None:
    assert memory.is_short(error) is short


def pick(options: dict[str, str], count: int | None = None, others: tuple[str, ...] = (), **more: Any) -> LanePlan:
    asked = [(CUDA, options), *((name, {}) for name in others), (CPU, {})]
    shared = more.get("shared_arena", False)
    plan = choose(LaneRequest(count), Mode.PIN, asked, available=[CUDA, CPU, *others], shared_arena=shared)
    assert plan is not None
    return plan


def test_how_many_lanes() -> None:
    plan = pick({"device_id": "1", "gpu_mem_limit": "1024"}, 4)
    assert (plan.count, plan.device, plan.limit, plan.reason) == (4, 1, 1024, "asked for")
    assert plan.stream is not None
    assert plan.providers([(CUDA, {"a": "b"}), (CPU, {})]) == [
        (CUDA, {"a": "b", "user_compute_stream": str(plan.stream.address), "gpu_mem_limit": "256"}),
        (CPU, {}),
    ]
    assert not plan.cautious
    plan = pick({})
    assert (plan.count, plan.limit, plan.reason, plan.cautious) == (DEFAULT_LANES, None, "the default", True)
    plan = pick({"gpu_mem_limit": "1024"})
    assert (plan.count, plan.limit) == (1, 1024)
    assert "gpu_mem_limit" in plan.reason
    plan = pick({"user_compute_stream": "4096"}, 4)
    assert (plan.count, plan.options(plan.stream, 1)) == (1, {})
    assert plan.stream is not None
    assert (plan.stream.address, plan.stream.own) == (4096, False)
    assert "user_compute_stream" in plan.reason
    assert pick({"enable_cuda_graph": "True"}, 4).count == 1
    assert pick({}, 4, shared_arena=True).count == 1
    plan = pick({"gpu_external_alloc": "4096"}, 4)
    assert (plan.count, plan.stream) == (1, None)
    plan = pick({}, 4, ("TensorrtExecutionProvider",))
    assert (plan.count, plan.stream) == (1, None)
    assert "Tensorrt" in plan.reason


def test_no_lanes() -> None:
    def none(request: LaneRequest, mode: Mode, *providers: str) -> LanePlan | None:
        asked = [(name, dict[str, str]()) for name in providers]
        return choose(request, mode, asked, available=[CUDA, CPU], shared_arena=False)

    assert none(LaneRequest(), Mode.PIN, CPU) is None
    assert none(LaneRequest(), Mode.OBSERVE, CUDA) is None
    on_cpu = none(LaneRequest(2), Mode.STRICT, CPU)
    assert on_cpu is not None
    assert (on_cpu.count, on_cpu.stream, on_cpu.device) == (2, None, None)


@pytest.mark.parametrize("lanes", [0, -1, True, 1.5, "2", 1025, 10**9])
def test_no_number_of_lanes(lanes: Any) -> None:
    with pytest.raises(ValueError, match="is no number of lanes"):
        lane_request(lanes, "normal", Mode.PIN)


def test_no_priority_and_no_lanes_in_observe() -> None:
    with pytest.raises(ValueError, match="'urgent' is no priority"):
        lane_request(None, "urgent", Mode.PIN)
    with pytest.raises(ValueError, match="observe leaves"):
        lane_request(1, "normal", Mode.OBSERVE)
