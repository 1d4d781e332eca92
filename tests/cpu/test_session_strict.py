"""Strict mode refuses what it cannot promise, with the subject, the reason and the remedy."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import Mode, NotReproducibleError, ReproducibilityWarning, ReproducibleSession, native
from ortlock.session import creation, guard
from ortlock.session.guard import Guard, check_interposer
from ortlock.settings import CUDA, Kind, Origin, Resolution, SettingState
from tests.cpu.session_models import CPU, Failing, add_model, feeds, model, random_model

MODEL = add_model()
FAILURE = native.PlanFailure("ConvolutionBackwardData", ("x f16[1,8]", "y f16[1,9]"), "stride=2", 3, let_through=False)
OTHER = replace(FAILURE, operation="ConvolutionForward")
CUDNN_ERROR = C.Fail("running ConvTranspose node: CUDNN failure 9: CUDNN_STATUS_NOT_SUPPORTED")


def recorded(monkeypatch: pytest.MonkeyPatch, *failures: native.PlanFailure) -> list[native.PlanFailure]:
    """Let the hooks have recorded ``failures``; the list that is returned can be changed later."""
    held = list(failures)
    monkeypatch.setattr(native, "records", lambda token: native.SessionRecords(9, 3, (), tuple(held)))
    return held


def test_stateful_node_is_named() -> None:
    with pytest.raises(NotReproducibleError) as raised:
        ReproducibleSession(random_model(), mode="strict")
    assert raised.value.subject == f"noise (RandomNormalLike) on {CPU}"
    assert "state" in raised.value.reason
    assert "Draw the numbers outside" in raised.value.remedy


def test_pin_runs_it_and_says_so() -> None:
    session = ReproducibleSession(random_model())
    draws = {session.run(None, {"x": np.zeros(1, np.float32)})[0].tobytes() for _ in range(4)}
    assert len(draws) > 1
    report = session.report()
    assert report.verdict == "violated"
    assert report.reasons[0].subject.startswith("noise")


def test_unknown_operator_is_refused() -> None:
    node = helper.make_node("CDist", ["x", "x"], ["y"], name="odd", domain="com.microsoft", metric="euclidean")
    data = model([node], shape=(2, 2), domains=("com.microsoft",))
    with pytest.raises(NotReproducibleError, match=r"odd \(com\.microsoft\.CDist\)"):
        ReproducibleSession(data, mode="strict")


def test_refused_session_cannot_be_used_by_accident() -> None:
    class Kept(ReproducibleSession):
        instances: list[Any] = []  # noqa: RUF012

        def __init__(self, data: bytes) -> None:
            self.instances.append(self)
            super().__init__(data, mode="strict")

    with pytest.raises(NotReproducibleError):
        Kept(random_model())
    with pytest.raises((AttributeError, TypeError)):
        Kept.instances[0].run(None, {"x": np.zeros(1, np.float32)})


def test_no_plan_left_is_raised_from_onnxruntimes_error(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ReproducibleSession(MODEL, mode="strict")
    held = recorded(monkeypatch)
    real, session._sess = session._sess, Failing(session._sess, CUDNN_ERROR, times=2)
    held.append(FAILURE)
    # The hooks record it once; the second time it is the same operation.
    for _ in range(2):
        with pytest.raises(NotReproducibleError) as raised:
            session.run(None, feeds())
        assert raised.value.__cause__ is CUDNN_ERROR
        assert raised.value.subject == "ConvolutionBackwardData (x f16[1,8], y f16[1,9], stride=2)"
        assert "3 candidates" in raised.value.reason
        assert "mode='pin'" in raised.value.remedy
    # Another shape runs: what was refused did not run, so nothing is broken.
    assert session.run(["s"], feeds())[0].tolist() == [3, 5]
    session._sess = Failing(real, CUDNN_ERROR)
    held.insert(0, OTHER)
    with pytest.raises(NotReproducibleError, match="ConvolutionForward") as raised:
        session.run(None, feeds())
    assert "ConvolutionBackwardData" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    "error", [C.InvalidArgument("bad shape"), ValueError("cudnn"), C.RuntimeException("no memory")]
)
def test_other_errors_stay_themselves(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ReproducibleSession(MODEL, mode="strict")
    recorded(monkeypatch, FAILURE)
    session._ortlock._failures.add(FAILURE)
    session._sess = Failing(session._sess, error)
    with pytest.raises(type(error)) as raised:
        session.run(None, feeds())
    assert raised.value is error


def test_what_was_let_through_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ReproducibleSession(MODEL, mode="strict")
    recorded(monkeypatch, replace(FAILURE, let_through=True))
    for _ in range(2):
        with pytest.raises(NotReproducibleError, match="ConvolutionBackwardData"):
            session.run(None, feeds())


def test_pin_warns_once_of_what_was_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ReproducibleSession(MODEL)
    recorded(monkeypatch, replace(FAILURE, let_through=True), OTHER)
    session._ortlock.seen = -1
    with pytest.warns(ReproducibilityWarning, match=r"ConvolutionBackwardData .* runs nondeterm") as caught:
        session.run(None, feeds())
    assert [Path(entry.filename).name for entry in caught] == [Path(__file__).name]
    session._ortlock.seen = -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.run(None, feeds())
    assert session._ortlock.seen == 0


KEPT: list[Any] = []
"""Sessions with asynchronous runs: ONNX Runtime, stock too, can hang where one is dropped before its run has ended."""


def received(session: ReproducibleSession) -> tuple[Any, str]:
    KEPT.append(session)
    done, got = threading.Event(), []

    def callback(results: Any, user_data: Any, error: str) -> None:
        got.append((results, error))
        done.set()

    session.run_async(None, feeds(), callback, None)
    assert done.wait(30)
    return got[0][0], got[0][1]


def test_async_run_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ReproducibleSession(MODEL, mode="strict")
    recorded(monkeypatch, replace(FAILURE, let_through=True))
    results, error = received(session)
    assert results == []
    assert "ConvolutionBackwardData" in error


def test_async_error_says_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Guard(Mode.STRICT)
    recorded(monkeypatch, FAILURE)
    results, error = keeper.finished([], "CUDNN failure 9", 0)
    assert (results, error.startswith("CUDNN failure 9 (ConvolutionBackwardData")) == ([], True)
    assert keeper.finished([], "no memory", 0) == ([], "no memory")
    assert Guard(Mode.PIN).finished([], "CUDNN failure 9", 0) == ([], "CUDNN failure 9")


STATE = native.InterposerState(
    loaded=True,
    attached=True,
    style="dlsym",
    provider_path="/p",
    slots=1,
    resolved_before=(),
    cudnn_path="/c",
    cudnn_version=91900,
    calls={},
    faults=(),
)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (STATE, None),
        (replace(STATE, resolved_before=("cudnnBackendExecute",)), r"cudnnBackendExecute bypass.*Import ortlock"),
        (replace(STATE, attached=False, style="none"), r"could not be patched.*ortlock doctor"),
        (replace(STATE, attached=False, faults=("mprotect: no",)), r"mprotect: no"),
    ],
)
def test_interposer(state: native.InterposerState, text: str | None) -> None:
    problem = check_interposer(state)
    if text is None:
        assert problem is None
    else:
        assert problem is not None
        with pytest.raises(NotReproducibleError, match=text):
            raise problem


class OnCuda(ReproducibleSession):
    """A CPU session that says it runs on CUDA as well."""

    def get_providers(self) -> list[str]:
        return [CUDA, CPU]


@pytest.mark.parametrize("state", [replace(STATE, resolved_before=("cudnnFind",)), replace(STATE, attached=False)])
def test_cuda_that_escapes(state: native.InterposerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "attach", lambda: state)
    with pytest.raises(NotReproducibleError, match=CUDA):
        OnCuda(MODEL, mode="strict")
    with pytest.warns(ReproducibilityWarning, match=CUDA):
        OnCuda(MODEL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OnCuda(MODEL, mode="observe")


def test_missing_cuda_says_what_onnxruntime_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("no CUDA-capable device\n is detected")

    monkeypatch.setattr(C, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", fail)
    monkeypatch.setattr(guard, "PROVIDER_FOLDER", tmp_path)
    problem = guard.missing_cuda()
    assert "could not be made. ONNX Runtime says: no CUDA-capable device is detected." in problem.reason
    assert "ortlock doctor" in problem.remedy


def test_missing_cuda_says_what_the_dynamic_linker_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / native.CUDA_PROVIDER_LIBRARY
    library.write_bytes(b"no library at all, but long enough to be read as a header" * 2)
    monkeypatch.setattr(C, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(guard, "PROVIDER_FOLDER", tmp_path)
    reason = guard.missing_cuda().reason
    assert f"The dynamic linker says: {library}: invalid ELF header." in reason


def resolution(**fields: Any) -> Callable[..., Resolution]:
    return lambda *arguments: Resolution(**fields)


def test_first_refusal_is_raised_with_the_others_as_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = NotReproducibleError("one", "why", "do"), NotReproducibleError("two", "why", "do")
    monkeypatch.setattr(creation, "resolve", resolution(refusals=(first, second)))
    with pytest.raises(NotReproducibleError, match="one: why Remedy: do") as raised:
        ReproducibleSession(MODEL, mode="strict")
    assert raised.value.__notes__ == ["Also refused: two: why Remedy: do"]


def test_overridden_setting_warns_once_at_the_callers_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "resolve", resolution(warnings=("x=1 is overridden",)))
    with pytest.warns(ReproducibilityWarning, match="x=1 is overridden") as caught:
        session = ReproducibleSession(MODEL)
    assert [Path(entry.filename).name for entry in caught] == [Path(__file__).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.set_providers([CPU])


def test_provider_options_are_merged_over_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(creation, "resolve", resolution(provider_options={CPU: {"a": "0"}}))

    class Seeing(ReproducibleSession):
        def _register_ep_custom_ops(self, options: Any, providers: Any, provider_options: Any, *more: Any) -> None:
            seen.append((providers, provider_options))

    Seeing(MODEL, providers=[(CPU, {"a": 1, "b": 2})])
    Seeing(MODEL, providers=[CPU], provider_options=[{"b": True}])
    assert seen == [([CPU], [{"a": "0", "b": "2"}]), ([CPU], [{"b": "True", "a": "0"}])]


def test_environment_is_changed_only_while_the_session_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTLOCK_TEST_UNSET", "1")
    monkeypatch.delenv("ORTLOCK_TEST_SET", raising=False)
    changes = {"ORTLOCK_TEST_UNSET": None, "ORTLOCK_TEST_SET": "2"}
    monkeypatch.setattr(creation, "resolve", resolution(environment=changes))
    seen = []

    class Seeing(ReproducibleSession):
        def _register_ep_custom_ops(self, *arguments: Any) -> None:
            seen.append({name: os.environ.get(name) for name in changes})

    Seeing(MODEL)
    with pytest.raises(C.InvalidProtobuf):
        Seeing(b"corrupt")
    assert seen == [changes] * 2
    assert os.environ["ORTLOCK_TEST_UNSET"] == "1"
    assert "ORTLOCK_TEST_SET" not in os.environ


def test_what_onnxruntime_does_not_take_over_is_not_called_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "session.absent"

    def resolve(mode: Mode, *arguments: Any) -> Resolution:
        pinned = SettingState(key, Kind.CONFIG_ENTRY, None, "1", None, Origin.PINNED, "effect", False)
        default = replace(pinned, value="0", origin=Origin.DEFAULT, breaks=True)
        return Resolution(states=(default if mode is Mode.OBSERVE else pinned,))

    monkeypatch.setattr(creation, "resolve", resolve)
    session = ReproducibleSession(MODEL)
    (state,) = session.report().settings
    assert (state.value, state.origin, state.breaks) == ("0", Origin.NOT_PINNED, True)
    assert state.note == "ONNX Runtime did not take it over. effect"
    with pytest.raises(NotReproducibleError, match=key):
        ReproducibleSession(MODEL, mode="strict")


@pytest.mark.parametrize("threads", [1, 2])
def test_scatter_nd_on_the_cpu_needs_one_thread(threads: int) -> None:
    graph = helper.make_graph(
        [helper.make_node("ScatterND", ["d", "i", "u"], ["y"], name="scatter")],
        "g",
        [
            helper.make_tensor_value_info("d", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [2, 1]),
            helper.make_tensor_value_info("u", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    data = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 16)]).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if threads == 1:
        session = ReproducibleSession(data, options, providers=[CPU], mode="strict")
        values = {"d": np.zeros(3, np.float32), "i": np.array([[2], [0]]), "u": np.array([5, 7], np.float32)}
        assert session.run(None, values)[0].tolist() == [7, 0, 5]
        assert session.report().verdict == "bitwise"
    else:
        with pytest.raises(NotReproducibleError, match=r"scatter \(ScatterND\) .* updates get lost.* = 1"):
            ReproducibleSession(data, options, providers=[CPU], mode="strict")


def test_scatter_nd_without_duplicates_needs_nothing() -> None:
    graph = helper.make_graph(
        [helper.make_node("ScatterND", ["d", "i", "u"], ["y"], name="scatter")],
        "g",
        [
            helper.make_tensor_value_info("d", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("u", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.array([[2], [0]]), "i")],
    )
    data = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 16)]).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = ReproducibleSession(data, options, providers=[CPU], mode="strict")
    values = {"d": np.zeros(3, np.float32), "u": np.array([5, 7], np.float32)}
    assert session.run(None, values)[0].tolist() == [7, 0, 5]
    (finding,) = session.report().operators
    assert "no duplicates" in finding.reason
