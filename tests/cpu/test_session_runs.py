"""Every way to run a session does what it does in stock."""

from __future__ import annotations

import gc
import pickle
import re
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortlock
from ortlock import ReproducibleSession, native
from tests.cpu.session_models import CPU, Array, add_model, exact_outputs, feeds, version

MODEL = add_model()
MODES = ("observe", "pin", "strict")
WAYS: dict[str, Callable[[Any], Any]] = {
    "all outputs": lambda session: exact_outputs(session.run(None, feeds())),
    "no names": lambda session: exact_outputs(session.run([], feeds())),
    "some outputs": lambda session: exact_outputs(session.run(["p"], feeds())),
    "outputs in another order": lambda session: exact_outputs(session.run(("p", "s"), feeds())),
    "by keyword": lambda session: exact_outputs(
        session.run(output_names=["s"], input_feed=feeds(), run_options=onnxruntime.RunOptions())
    ),
    "an OrtValue as input": lambda session: exact_outputs(session.run(None, ort_values())),
    "run_with_ort_values": lambda session: exact_outputs(
        [value.numpy() for value in session.run_with_ort_values(["s", "p"], ort_values())]
    ),
    "run_with_ort_values by keyword": lambda session: exact_outputs(
        [value.numpy() for value in session.run_with_ort_values(None, input_dict_ort_values=ort_values())]
    ),
    "io binding": lambda session: exact_outputs(bound(session)),
    "vectors": lambda session: exact_outputs(vectors(session)),
    "a missing input": lambda session: session.run(None, {"a": feeds()["a"]}),
    "an input too many": lambda session: session.run(None, {**feeds(), "c": feeds()["a"]}),
    "an input of another type": lambda session: session.run(None, {**feeds(), "b": np.ones(2, np.int64)}),
    "an input of another rank": lambda session: session.run(None, {**feeds(), "b": np.ones((1, 2), np.float32)}),
    "shapes that do not fit": lambda session: session.run(None, {**feeds(), "b": np.ones(3, np.float32)}),
    "no such output": lambda session: session.run(["q"], feeds()),
    "no feeds": lambda session: session.run(None, None),
    "options that are none": lambda session: session.run(None, feeds(), 5),
    "a terminated run": lambda session: session.run(None, feeds(), terminated()),
    "ort values that are arrays": lambda session: session.run_with_ort_values(None, feeds()),
    "a binding that is none": lambda session: session.run_with_iobinding(5),
    "a binding without inputs": lambda session: session.run_with_iobinding(session.io_binding()),
    "asynchronously": lambda session: asynchronous(session, feeds()),
    "asynchronously with a missing input": lambda session: asynchronous(session, {}),
    "asynchronously with shapes that do not fit": lambda session: asynchronous(
        session, {**feeds(), "b": np.ones(3, np.float32)}
    ),
    "asynchronously with a callback that is none": lambda session: session.run_async(None, feeds(), 5, None),
    "inputs": lambda session: [(value.name, value.type, value.shape) for value in session.get_inputs()],
    "outputs": lambda session: [(value.name, value.type, value.shape) for value in session.get_outputs()],
    "initializers": lambda session: list(session.get_overridable_initializers()),
    "metadata": lambda session: (session.get_modelmeta().graph_name, session.get_modelmeta().producer_name),
    "providers": lambda session: (session.get_providers(), session.get_provider_options()),
    "other providers": lambda session: session.set_providers([CPU], [{}]),
    "providers that are none": lambda session: session.set_providers(5),
    "running after other providers": lambda session: (
        session.set_providers([CPU]),
        exact_outputs(session.run(None, feeds())),
    ),
    "tuning results": lambda session: session.get_tuning_results(),
    "fallback": lambda session: (session.disable_fallback(), session._enable_fallback),
}


def ort_values() -> dict[str, Any]:
    return {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feeds().items()}


def bound(session: Any) -> list[Array]:
    binding = session.io_binding()
    for name, value in feeds().items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("s")
    binding.bind_output("p")
    session.run_with_iobinding(binding)
    session.run_with_iobinding(binding, run_options=onnxruntime.RunOptions())
    return list(binding.copy_outputs_to_cpu())


def vectors(session: Any) -> list[Array]:
    from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

    inputs, outputs = C.OrtValueVector(), C.OrtValueVector()
    for value in ort_values().values():
        inputs.push_back(value._ortvalue)
    device = C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)
    session.run_with_ortvaluevector(onnxruntime.RunOptions(), ["a", "b"], inputs, ["s", "p"], outputs, [device, device])
    return [value.numpy() for value in outputs]


def terminated() -> Any:
    options = onnxruntime.RunOptions()
    options.terminate = True
    return options


KEPT: list[Any] = []
"""Sessions with asynchronous runs: ONNX Runtime, stock too, can hang where one is dropped before its run has ended."""


def asynchronous(session: Any, inputs: dict[str, Array]) -> Any:
    KEPT.append(session)
    done, received = threading.Event(), []
    mine = object()

    def callback(results: Any, user_data: Any, error: str) -> None:
        received.append((exact_outputs(results), user_data is mine, error))
        done.set()

    returned = session.run_async(None, inputs, callback, mine)
    assert done.wait(30)
    return returned, received


def told(use: Callable[[Any], Any], session: Any) -> Any:
    try:
        return "value", use(session)
    except Exception as error:
        return type(error), re.sub("0x[0-9a-f]+", "ADDRESS", str(error))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_same_as_stock(way: str, mode: str) -> None:
    stock = told(WAYS[way], onnxruntime.InferenceSession(MODEL))
    ours = told(WAYS[way], ReproducibleSession(MODEL, mode=mode))
    assert ours == stock
    if way.split()[0] in ("all", "no", "some", "outputs", "by", "run_with_ort_values", "io", "vectors"):
        assert stock[0] == "value" or way in ("no such output", "no feeds")


def test_a_run_belongs_to_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ReproducibleSession(MODEL)
    inside = []

    class Watching:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def run(self, *arguments: Any) -> Any:
            token = native.enter(0)
            native.enter(token)
            inside.append(token)
            return real.run(*arguments)

    real, session._sess = session._sess, Watching()
    session.run(None, feeds())
    assert inside == [session._ortlock.number]
    assert native.enter(0) == 0
    with pytest.raises(ValueError, match="missing"):
        session.run(None, {})
    assert native.enter(0) == 0


def test_async_without_callback() -> None:
    # ONNX Runtime takes None; there is nothing to see then but that the session lives on.
    session = ReproducibleSession(MODEL)
    KEPT.append(session)
    session.run_async(None, feeds(), None, None)
    assert session.run(["s"], feeds())[0].tolist() == [3, 5]


def test_async_run_does_not_keep_the_session() -> None:
    class Later:
        """Keeps what it is given, as ONNX Runtime's threads do until the run is over."""

        def run_async(self, names: Any, inputs: Any, callback: Callable[..., None], *more: Any) -> None:
            held.append(callback)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    held: list[Callable[..., None]] = []
    received: list[Any] = []
    session = ReproducibleSession(MODEL)
    real, session._sess = session._sess, Later()
    session.run_async(None, feeds(), lambda *arguments: received.append(arguments), None)
    gone = weakref.ref(session)
    del session
    gc.collect()
    # Otherwise the last reference could go on a thread of the session's own, which would wait for itself.
    assert gone() is None
    held[0]([1], 2, "")
    assert received == [([1], 2, "")]


def test_async_run_keeps_its_inputs() -> None:
    class Later:
        def run_async(self, names: Any, inputs: Any, callback: Callable[..., None], *more: Any) -> None:
            held.append(callback)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    held: list[Callable[..., None]] = []
    session = ReproducibleSession(MODEL)
    real, session._sess = session._sess, Later()
    inputs = feeds()
    arrays = [weakref.ref(value) for value in inputs.values()]
    session.run_async(None, inputs, lambda *arguments: None, None)
    # ONNX Runtime would go on reading memory that is used for something else: wrong values without an error.
    inputs.clear()
    assert all(array() is not None for array in arrays)
    held[0]([], None, "")
    assert all(array() is None for array in arrays)


def test_many_async_runs() -> None:
    session = ReproducibleSession(MODEL, mode="strict")
    KEPT.append(session)
    expected = exact_outputs(session.run(None, feeds()))
    received: list[Any] = []
    done = threading.Semaphore(0)

    def callback(outputs: Any, number: int, error: str) -> None:
        received.append((number, exact_outputs(outputs), error))
        done.release()

    for number in range(50):
        session.run_async(None, feeds(), callback, number)
    for _ in range(50):
        assert done.acquire(timeout=30)
    assert sorted(received) == [(number, expected, "") for number in range(50)]


@pytest.mark.parametrize("mode", MODES)
def test_many_threads(mode: str) -> None:
    session = ReproducibleSession(MODEL, mode=mode)
    inputs = [feeds(*np.arange(n, n + 50, dtype=np.float32)) for n in range(8)]
    expected = [session.digest(session.run(None, feed)) for feed in inputs]

    def work(index: int) -> bool:
        return session.digest(session.run(None, inputs[index % 8])) == expected[index % 8]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))
    assert len(set(expected)) == 8


def test_token_is_closed_with_the_session() -> None:
    session = ReproducibleSession(MODEL)
    number = session._ortlock.number
    assert native.records(number).failures == ()
    del session
    gc.collect()
    with pytest.raises(KeyError):
        native.records(number)


def test_session_is_freed_without_the_collector() -> None:
    session = ReproducibleSession(MODEL)
    session.run(None, feeds())
    gone = weakref.ref(session)
    gc.disable()
    try:
        del session
        assert gone() is None
    finally:
        gc.enable()


def test_digest_is_of_names_and_outputs() -> None:
    session = ReproducibleSession(MODEL)
    outputs = session.run(None, feeds())
    assert session.digest(outputs) == ortlock.digest(outputs, ["s", "p"])
    assert session.digest(session.run(["p"], feeds()), ["p"]) == ortlock.digest([outputs[1]], ["p"])
    assert session.digest(outputs) != session.digest(outputs[::-1])
    with pytest.raises(ValueError, match=r"1 output and 2 names \(s, p\)"):
        session.digest(session.run(["p"], feeds()))
    # As many rows as the model has outputs.
    wrong: list[tuple[Any, str]] = [
        (np.zeros((2, 3), np.float32), "ndarray. Put a single output into a list."),
        ({"s": outputs[0], "p": outputs[1]}, "dict."),
        (None, "None."),
    ]
    for value, told in wrong:
        with pytest.raises(TypeError) as raised:
            session.digest(value)
        assert str(raised.value) == f"outputs: give the list of outputs that a run returned, not {told}"
    with pytest.raises(TypeError, match="output_names='sp': give a list of names"):
        session.digest(outputs, "sp")


def test_subclass_and_mixin() -> None:
    calls = []

    class Counting(onnxruntime.InferenceSession):  # type: ignore[misc]
        def run(self, *arguments: Any, **kwargs: Any) -> Any:
            calls.append(len(arguments))
            return super().run(*arguments, **kwargs)

    class Both(ReproducibleSession, Counting):
        def __init__(self, model: bytes) -> None:
            super().__init__(model, providers=[CPU], mode="strict")

    assert Both(MODEL).run(["s"], feeds())[0].tolist() == [3, 5]
    assert calls == [3]


class Picklable(ReproducibleSession):
    """The way that ONNX Runtime's users make sessions picklable."""

    def __getstate__(self) -> bytes:
        return MODEL

    def __setstate__(self, model: bytes) -> None:
        self.__init__(model, mode="observe")  # type: ignore[misc]


def test_pickle_through_a_subclass() -> None:
    session = pickle.loads(pickle.dumps(Picklable(MODEL)))
    assert session.mode == "observe"
    assert session.run(["s"], feeds())[0].tolist() == [3, 5]


def test_pickle_is_refused_as_in_stock() -> None:
    for session in (onnxruntime.InferenceSession(MODEL), ReproducibleSession(MODEL)):
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(session)


@pytest.mark.skipif(version() < (1, 26), reason="ONNX Runtime 1.19 has none of these")
def test_newer_methods() -> None:
    stock, ours = onnxruntime.InferenceSession(MODEL), ReproducibleSession(MODEL)
    for name in ("get_input_memory_infos", "get_output_memory_infos", "get_input_epdevices"):
        assert len(getattr(ours, name)()) == len(getattr(stock, name)())
    with pytest.raises(RuntimeError, match="No options were provided"):
        stock.set_ep_dynamic_options({})
    with pytest.raises(RuntimeError, match="No options were provided"):
        ours.set_ep_dynamic_options({})


def test_wrapper_adds_no_frames_that_keep_outputs_alive() -> None:
    session = ReproducibleSession(MODEL)
    (output,) = session.run(["s"], feeds())
    assert sys.getrefcount(output) == 2
