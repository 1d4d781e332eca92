"""Sessions with lanes, on the real CPU provider: entry points, stress, closing, forks, the end of a process."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortlock
from ortlock import ReproducibilityWarning, ReproducibleSession, SessionClosedError
from ortlock.lanes.binding import LaneBinding
from tests.cpu.session_models import CPU, Array, add_model, exact_outputs, feeds, model
from tests.cpu.test_session_runs import WAYS, told

MODEL = add_model()
STOCK = exact_outputs(onnxruntime.InferenceSession(MODEL).run(None, feeds()))
# Names of internals, which the two implementations of run_async() do not share.
OWN_WORDS = ("asynchronously with a callback that is none",)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_same_as_stock(way: str, lanes: int) -> None:
    stock = told(WAYS[way], onnxruntime.InferenceSession(MODEL))
    ours = told(WAYS[way], ReproducibleSession(MODEL, lanes=lanes))
    if way in OWN_WORDS:
        assert ours[0] is stock[0] is TypeError
    else:
        assert ours == stock


def test_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of NumPy alone pass the gate; whatever else there is to decide takes the way through Python."""
    session = ReproducibleSession(MODEL, lanes=1)
    lanes = session._ortlock.lanes
    called = []
    call = lanes.call

    def noted(method: Any, *arguments: Any, **more: Any) -> Any:
        called.append(arguments[0])
        return call(method, *arguments, **more)

    monkeypatch.setattr(lanes, "call", noted)
    assert exact_outputs(session.run(None, feeds())) == STOCK
    assert exact_outputs(session.run(output_names=None, input_feed=feeds(), run_options=None)) == STOCK
    assert called == []
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds().items()}
    assert exact_outputs(session.run(None, values)) == STOCK
    assert exact_outputs(session.run(None, {"a": [1.0, 2.0], "b": feeds()["b"]})) == STOCK
    held = lanes.pool.take()
    waiting = threading.Thread(target=lambda: session.run(["s"], feeds()))
    waiting.start()
    while lanes.pool.waiting == 0:
        pass
    lanes.pool.give(held)
    waiting.join(30)
    assert called == [None, None, ["s"]]


def conv_model() -> bytes:
    """A small net on images of any size: convolutions, a branch, a sum."""
    rng = np.random.default_rng(5)

    def weights(name: str, *shape: int) -> Any:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, rng.standard_normal(shape).astype(np.float32).ravel())

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [
            helper.make_tensor_value_info("d", TensorProto.FLOAT, ["n", 8, "h", "w"]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 1, 1]),
        ],
        [weights("w1", 8, 3, 3, 3), weights("w2", 8, 8, 3, 3)],
    )
    opsets = [helper.make_opsetid("", 13)]
    return bytes(helper.make_model(graph, ir_version=7, opset_imports=opsets).SerializeToString())


SHAPES = ((1, 3, 8, 8), (2, 3, 9, 5), (1, 3, 16, 4), (3, 3, 7, 7), (1, 3, 1, 1))


def by_run(session: Any, x: Array) -> list[Array]:
    return list(session.run(None, {"x": x}))


def by_ort_values(session: Any, x: Array) -> list[Array]:
    values = session.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})
    return [value.numpy() for value in values]


def by_binding(session: Any, x: Array) -> list[Array]:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    for name in ("d", "y"):
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    return list(binding.copy_outputs_to_cpu())


def by_callback(session: Any, x: Array) -> list[Array]:
    done, received = threading.Event(), []

    def callback(results: list[Array], user_data: Any, error: str) -> None:
        received.append((results, error))
        done.set()

    session.run_async(None, {"x": x}, callback, None)
    assert done.wait(60)
    assert received[0][1] == ""
    return received[0][0]


def by_asyncio(session: Any, x: Array) -> list[Array]:
    return list(asyncio.run(session.arun(None, {"x": x})))


ENTRIES: tuple[Callable[[Any, Array], list[Array]], ...] = (by_run, by_ort_values, by_binding, by_callback, by_asyncio)


@pytest.mark.parametrize("lanes", [None, 1, 3])
def test_stress(lanes: int | None) -> None:
    session = ReproducibleSession(conv_model(), providers=[CPU], lanes=lanes)
    inputs = [np.random.default_rng(n).standard_normal(shape).astype(np.float32) for n, shape in enumerate(SHAPES)]
    expected = [ortlock.digest(session.run(None, {"x": x}), ["d", "y"]) for x in inputs]
    assert len(set(expected)) == len(SHAPES)

    def work(number: int) -> bool:
        entry, shape = ENTRIES[number % len(ENTRIES)], number // 3 % len(SHAPES)
        return ortlock.digest(entry(session, inputs[shape]), ["d", "y"]) == expected[shape]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(400)))
    assert results == [True] * 400
    report = session.report()
    if lanes is None:
        assert report.lanes is None
        return
    assert report.lanes is not None
    assert (report.lanes.count, report.lanes.serialised) == (lanes, lanes == 1)
    assert 1 <= report.lanes.open <= lanes
    assert report.to_dict()["lanes"]["count"] == lanes
    assert f"lanes: {lanes} (asked for" in str(report)
    assert "## Lanes" in report.to_markdown()


def test_every_lane_gives_the_same_bits() -> None:
    session = ReproducibleSession(conv_model(), providers=[CPU], lanes=3)
    x = np.random.default_rng(1).standard_normal(SHAPES[1]).astype(np.float32)
    lanes = session._ortlock.lanes
    held = [lanes._take() for _ in range(3)]
    digests = {ortlock.digest(lane.session.run(None, {"x": x}), ["d", "y"]) for lane in held}
    assert len({id(lane.session._sess) for lane in held}) == 3
    assert len(digests) == 1
    # The same settings as well.
    assert len({lane.session.get_session_options().intra_op_num_threads for lane in held}) == 1
    for lane in held:
        lanes.pool.give(lane)


def test_keyword_arguments_reach_every_lane() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Add", ["a", "a"], ["y"])]
    for disabled, expected in ((None, 1), (["EliminateIdentity"], 2)):
        keywords: dict[str, Any] = {} if disabled is None else {"disabled_optimizers": disabled}
        session = ReproducibleSession(model(nodes), lanes=2, **keywords)
        lanes = session._ortlock.lanes
        held = [lanes._take() for _ in range(2)]
        counts = []
        for lane in held:
            if not hasattr(lane.session, "get_provider_graph_assignment_info"):
                pytest.skip("this ONNX Runtime does not tell the nodes")
            counts.append(sum(len(part.get_nodes()) for part in lane.session.get_provider_graph_assignment_info()))
            lanes.pool.give(lane)
        assert counts == [expected, expected]


def test_binding_follows_lane_0() -> None:
    session = ReproducibleSession(MODEL, lanes=1)
    binding = session.io_binding()
    assert isinstance(binding, LaneBinding)
    for name, value in feeds().items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("s")
    session.run_with_iobinding(binding)
    foreign = onnxruntime.IOBinding(session)
    lanes = session._ortlock.lanes
    lanes._reopen_first()
    session.run_with_iobinding(binding)
    assert [value.tolist() for value in binding.copy_outputs_to_cpu()] == [[3, 5]]
    binding.clear_binding_outputs()
    binding.bind_output("p")
    lanes._reopen_first()
    session.run_with_iobinding(binding)
    assert [value.tolist() for value in binding.copy_outputs_to_cpu()] == [[2, 6]]
    with pytest.raises(ValueError, match=r"session\.io_binding\(\)"):
        session.run_with_iobinding(foreign)


def test_a_moved_binding_holds_what_was_bound_to_a_device() -> None:
    session = ReproducibleSession(MODEL, lanes=1)
    lanes = session._ortlock.lanes
    binding = LaneBinding(lanes.pool.first.session, copies=True)
    inputs = feeds()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("s")
    inputs["a"][:] = 100
    lanes._reopen_first()
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == [3, 5]


def test_lane_0_made_anew_is_the_session_object() -> None:
    session = ReproducibleSession(MODEL, lanes=2)
    before = session._sess
    session._ortlock.lanes._reopen_first()
    assert session._sess is session._ortlock.lanes.pool.first.session._sess is not before
    assert [value.name for value in session.get_inputs()] == ["a", "b"]
    assert exact_outputs(session.run(None, feeds())) == STOCK


def test_lane_0_may_have_to_go_before_it_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ReproducibleSession(MODEL, lanes=1)
    lanes, stock = session._ortlock.lanes, onnxruntime.InferenceSession(MODEL)
    before = weakref.ref(session._sess)
    room = [False, False, True]

    def make(more: dict[str, str], made: Any = lanes._make) -> Any:
        if not room.pop(0):
            raise MemoryError
        return made(more)

    monkeypatch.setattr(lanes, "_make", make)
    with pytest.raises(MemoryError):
        lanes._reopen_first()
    gc.collect()
    assert before() is None
    # What the object tells is as before, and the next run brings it back.
    for name in ("get_inputs", "get_outputs"):
        told, original = (getattr(one, name)() for one in (session, stock))
        assert [(a.name, a.shape, a.type) for a in told] == [(b.name, b.shape, b.type) for b in original]
    assert session.get_modelmeta().graph_name == stock.get_modelmeta().graph_name
    with pytest.raises(SessionClosedError, match="next run tries it again"):
        session._sess.run([], {}, None)
    room[:] = [False, False, True]
    with pytest.raises(MemoryError):
        session.io_binding()
    assert session.io_binding()._iobinding is not None
    monkeypatch.undo()
    assert exact_outputs(session.run(None, feeds())) == STOCK
    assert room == []


def test_set_providers_keeps_lanes() -> None:
    session = ReproducibleSession(MODEL, lanes=2)
    before = session._ortlock.lanes
    session.set_providers([CPU])
    assert session._ortlock.lanes is not before
    assert session.run(["s"], feeds())[0].tolist() == [3, 5]
    # Whoever still waited for one of the lanes before runs on the new ones.
    assert before.call(onnxruntime.InferenceSession.run, ["s"], feeds())[0].tolist() == [3, 5]


@pytest.mark.parametrize("end", ["set_providers", "close"])
def test_whoever_comes_while_the_session_is_made_anew_or_closed(end: str) -> None:
    """Every way to run waits for the session that comes, or is told that there is none; nothing in between is seen."""
    session = ReproducibleSession(MODEL, lanes=2)
    stop, failed, done = threading.Event(), list[BaseException](), list[str]()

    def through_run() -> Any:
        return session.run(["s"], feeds())

    def through_values() -> Any:
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds().items()}
        return session.run(["s"], values)

    def through_asyncio() -> Any:
        return asyncio.run(session.arun(["s"], feeds()))

    def through_callback() -> Any:
        received: list[Any] = []
        came = threading.Event()

        def callback(results: Any, user_data: Any, error: str) -> None:
            received.extend((results, error))
            came.set()

        session.run_async(["s"], feeds(), callback, None)
        assert came.wait(30)
        if received[1]:
            raise SessionClosedError(received[1]) if "closed" in received[1] else RuntimeError(received[1])
        return received[0]

    def work(way: Callable[[], Any]) -> None:
        while not stop.is_set():
            try:
                assert way()[0].tolist() == [3, 5]
                done.append(way.__name__)
            except SessionClosedError:
                if end != "close":
                    failed.append(AssertionError(way.__name__))
                return
            except BaseException as error:
                failed.append(error)
                return

    ways = (through_run, through_values, through_asyncio, through_callback)
    threads = [threading.Thread(target=work, args=(way,)) for way in ways * 2]
    for thread in threads:
        thread.start()
    for _ in range(20 if end == "set_providers" else 0):
        session.set_providers([CPU])
    while len(set(done)) < len(ways) and not failed:
        pass
    if end == "close":
        session.close()
    else:
        stop.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failed == []
    assert set(done) == {way.__name__ for way in ways}


@pytest.mark.filterwarnings("ignore:Specified provider 'NoSuch' is not in available provider names")
def test_a_change_of_providers_that_fails() -> None:
    """As in the original: there is no session until providers are set that can be had."""
    for session in (onnxruntime.InferenceSession(MODEL), ReproducibleSession(MODEL, lanes=2)):
        with pytest.raises(RuntimeError, match="Unknown Provider Type: NoSuch"):
            session.set_providers(["NoSuch"])
        with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
            session.run(None, feeds())
        session.set_providers([CPU])
        assert exact_outputs(session.run(None, feeds())) == STOCK


def test_arun_side_by_side() -> None:
    session = ReproducibleSession(MODEL, lanes=2)

    async def many() -> list[Any]:
        runs = (session.arun(["s"], feeds(float(n), float(n))) for n in range(30))
        return list(await asyncio.gather(*runs))

    assert [outputs[0].tolist() for outputs in asyncio.run(many())] == [[2 * n + 1] * 2 for n in range(30)]


@pytest.mark.parametrize("lanes", [None, 2])
def test_arun_raises_as_run(lanes: int | None) -> None:
    session = ReproducibleSession(MODEL, lanes=lanes)
    with pytest.raises(ValueError, match="missing"):
        asyncio.run(session.arun(None, {}))


def test_run_async_outlives_its_session() -> None:
    session = ReproducibleSession(MODEL, lanes=1)
    lane = session._ortlock.lanes.pool.take()
    lanes = session._ortlock.lanes
    received: list[Any] = []
    done = threading.Event()

    def callback(*got: Any) -> None:
        received.append(got)
        done.set()

    session.run_async(None, feeds(), callback, "mine")
    gone = weakref.ref(session)
    del session
    lanes.pool.give(lane)
    assert done.wait(30)
    assert exact_outputs(received[0][0]) == STOCK
    assert received[0][1:] == ("mine", "")
    del lanes, lane
    for _ in range(1000):
        gc.collect()
        if gone() is None:
            break
        threading.Event().wait(0.01)
    assert gone() is None


def test_a_callback_that_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told_of: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: told_of.append(arguments.exc_type))
    session = ReproducibleSession(MODEL, lanes=1)

    def callback(*received: Any) -> None:
        raise KeyError("mine")

    session.run_async(None, feeds(), callback, None)
    # One lane has one thread, which takes what is started in order.
    session._ortlock.lanes.start(lambda: None).result(30)
    assert told_of == [KeyError]


# What a closed session was set to can still be asked.
OF_SETTINGS = ("get_session_options", "get_providers", "get_provider_options")

USES: tuple[Callable[[ReproducibleSession], Any], ...] = (
    lambda session: session.run(None, feeds()),
    lambda session: session.run_with_ort_values(None, {}),
    lambda session: session.run_async(None, feeds(), None, None),
    lambda session: session.run_with_iobinding(None),
    lambda session: session.io_binding(),
    lambda session: asyncio.run(session.arun(None, feeds())),
    lambda session: session.report(),
    lambda session: session.save_lockfile(),
    lambda session: session.end_profiling(),
    lambda session: session.set_providers([CPU]),
    lambda session: session.verify(feeds()),
    lambda session: session.localise(feeds()),
    lambda session: session.batch_invariance(feeds()),
    lambda session: session.measure_placement(feeds()),
    lambda session: session.digest([feeds()["a"]], ["s"]),
    lambda session: session.digest([]),
    *(
        (lambda session, name=name: getattr(session, name)())
        for name in dir(onnxruntime.InferenceSession)
        if name.startswith("get_") and name not in OF_SETTINGS
    ),
)


@pytest.mark.parametrize("mode", ["pin", "strict"])
@pytest.mark.parametrize("lanes", [None, 2])
def test_a_closed_session(lanes: int | None, mode: str) -> None:
    with ReproducibleSession(MODEL, lanes=lanes, mode=mode) as session:
        underlying = weakref.ref(session._sess)
        assert session.run(["s"], feeds())[0].tolist() == [3, 5]
    assert underlying() is None
    for use in USES:
        with pytest.raises(SessionClosedError, match="closed"):
            use(session)
    assert session.get_providers() == [CPU]
    session.close()


@pytest.mark.parametrize("lanes", [None, 2])
def test_sessions_are_copied_and_pickled_as_the_original(lanes: int | None) -> None:
    session = ReproducibleSession(MODEL, lanes=lanes)
    assert exact_outputs(copy.copy(session).run(None, feeds())) == STOCK
    for stock_or_ours in (onnxruntime.InferenceSession(MODEL), session):
        for act in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"cannot pickle '.*Session' object"):
                act(stock_or_ours)

    class Rebuilt(ReproducibleSession):
        def __getstate__(self) -> object:
            return {"lanes": lanes}

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.__init__(MODEL, **state)  # type: ignore[misc]

    assert exact_outputs(copy.deepcopy(Rebuilt(MODEL, lanes=lanes)).run(None, feeds())) == STOCK


def test_explicit_lanes_cannot_be_had_in_observe() -> None:
    with pytest.raises(ValueError, match="observe"):
        ReproducibleSession(MODEL, lanes=2, mode="observe")


def test_no_warning_where_lanes_are_as_asked(recwarn: pytest.WarningsRecorder) -> None:
    ReproducibleSession(MODEL, lanes=2).run(None, feeds())
    assert not [entry for entry in recwarn if issubclass(entry.category, ReproducibilityWarning)]


PRELUDE = """
import os, sys, threading
import numpy as np
from ortlock import ReproducibleSession, SessionClosedError
from ortlock.lanes import forks
from tests.cpu.session_models import add_model, feeds
"""

# On the CPU: what a session on CUDA would be told.
FORKED = """
session = ReproducibleSession(add_model(), lanes=2)
session.run(None, feeds())
forks.watch(session)
child = os.fork()
if child == 0:
    try:
        session.run(None, feeds())
    except SessionClosedError as error:
        told = "spawn" in str(error)
    else:
        os._exit(1)
    try:
        forks.check()
    except SessionClosedError:
        os._exit(0 if told else 2)
    os._exit(3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
forks.check()
print(session.run(["s"], feeds())[0].tolist())
"""

SPAWNED = """
import multiprocessing

def work(n):
    with ReproducibleSession(add_model(), lanes=2) as session:
        return session.run(["s"], feeds(float(n), 2.0))[0].tolist()

if __name__ == "__main__":
    here = ReproducibleSession(add_model(), lanes=2)
    here.run(None, feeds())
    forks.watch(here)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, [1, 2]))
"""

# The process ends while runs wait, callbacks are due and a daemon thread is at work.
ENDING = """
session = ReproducibleSession(add_model(), lanes=2)

def forever():
    while True:
        session.run(None, feeds())

def again():
    print(session.run(["s"], feeds())[0].tolist())

import atexit
atexit.register(again)
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
received = []
for _ in range(50):
    session.run_async(None, feeds(), lambda results, data, error: received.append(error), None)
print("end")
"""


@pytest.mark.parametrize(
    ("script", "printed"), [(FORKED, "[3.0, 5.0]"), (SPAWNED, "[[3.0, 5.0], [5.0, 5.0]]"), (ENDING, "end\n[3.0, 5.0]")]
)
def test_processes(script: str, printed: str, tmp_path: Any) -> None:
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + script)
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed
