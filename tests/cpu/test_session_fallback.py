"""ONNX Runtime's own fallback to the CPU: silent in observe, loud in pin, off in strict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import NotReproducibleError, ReproducibilityWarning, ReproducibleSession
from ortlock.report import Status
from tests.cpu.session_models import CPU, CUDA, Failing, add_model, exact_outputs, feeds

MODEL = add_model()
EXPECTED = exact_outputs(onnxruntime.InferenceSession(MODEL).run(None, feeds()))
RUNS: dict[str, Callable[[Any], Any]] = {
    "run": lambda session: exact_outputs(session.run(None, feeds())),
    "run_with_ort_values": lambda session: exact_outputs(
        [
            value.numpy()
            for value in session.run_with_ort_values(
                None, {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in feeds().items()}
            )
        ]
    ),
}


def failing(session: Any, error: Exception | None = None, times: int = 1_000_000) -> Any:
    session._sess = Failing(session._sess, error or C.EPFail("CUDA failure 700"), times)
    return session


def events(session: ReproducibleSession) -> list[tuple[str, str]]:
    return [(event.code, str(event.status)) for event in session.report().events]


@pytest.mark.parametrize("way", RUNS)
def test_pin_warns_once_and_reports(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    session = failing(ReproducibleSession(MODEL))
    with pytest.warns(ReproducibilityWarning, match="fell back from the default to CPUExecutionProvider") as caught:
        assert RUNS[way](session) == EXPECTED
    assert [Path(entry.filename).name for entry in caught] == [Path(__file__).name]
    assert "during a run" in str(caught[0].message)
    assert "CUDA failure 700" in str(caught[0].message)
    assert "Falling back to ['CPUExecutionProvider']" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RUNS[way](session) == EXPECTED
    assert events(session) == [("fallback-at-run", "violated")]
    report = session.report()
    assert report.verdict == "violated"
    assert "CUDA failure 700" in str(report)
    # As in stock: only once.
    assert session._enable_fallback is False


def test_a_second_failure_is_raised_as_in_stock() -> None:
    session = failing(ReproducibleSession(MODEL))
    with pytest.warns(ReproducibilityWarning):
        session.run(None, feeds())
    failing(session)
    with pytest.raises(C.EPFail, match="CUDA failure 700"):
        session.run(None, feeds())


def test_observe_reports_without_a_warning() -> None:
    session = failing(ReproducibleSession(MODEL, mode="observe"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RUNS["run"](session) == EXPECTED
    assert events(session) == [("fallback-at-run", "violated")]


@pytest.mark.parametrize("mode", ["observe", "pin"])
def test_fallback_switched_off_is_off(mode: str) -> None:
    session = failing(ReproducibleSession(MODEL, mode=mode))
    session.disable_fallback()
    with pytest.raises(C.EPFail, match="CUDA failure 700") as raised:
        session.run(None, feeds())
    assert not getattr(raised.value, "__notes__", [])
    assert events(session) == []
    session.enable_fallback()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert RUNS["run"](session) == EXPECTED


@pytest.mark.parametrize("way", RUNS)
def test_strict_raises_and_says_why(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    session = failing(ReproducibleSession(MODEL, mode="strict"), times=1)
    with pytest.raises(C.EPFail, match="CUDA failure 700") as raised:
        RUNS[way](session)
    assert len(raised.value.__notes__) == 1
    assert "fallback to the CPU is off in strict mode" in raised.value.__notes__[0]
    assert capsys.readouterr().out == ""
    assert RUNS[way](session) == EXPECTED
    assert session.report().verdict == "bitwise"


def test_strict_refuses_to_switch_it_on() -> None:
    for value in (1, "1", True):
        with pytest.raises(NotReproducibleError, match=r"enable_fallback=1: .* is off in strict mode"):
            ReproducibleSession(MODEL, mode="strict", enable_fallback=value)
    session = ReproducibleSession(MODEL, mode="strict", enable_fallback=0)
    assert session._enable_fallback is False
    with pytest.raises(NotReproducibleError, match=r"enable_fallback\(\): .* Remedy: Leave it out"):
        session.enable_fallback()
    assert session._enable_fallback is False
    session.set_providers([CPU])
    assert session._enable_fallback is False


class Unable(ReproducibleSession):
    """A session whose first attempt fails in ONNX Runtime, as with a provider that cannot be made."""

    error: Exception = RuntimeError("no device")

    def _register_ep_custom_ops(self, options: Any, providers: Any, *more: Any) -> None:
        if providers != [CPU]:
            raise self.error


def test_failing_creation_falls_back_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns() as caught:
        session = Unable(MODEL, providers=["NoSuchExecutionProvider"])
    texts = [str(entry.message) for entry in caught if entry.category is ReproducibilityWarning]
    assert len(texts) == 1
    assert "fell back from NoSuchExecutionProvider to CPUExecutionProvider when the session was made" in texts[0]
    assert "no device" in texts[0]
    assert "Falling back to ['CPUExecutionProvider']" in capsys.readouterr().out
    assert RUNS["run"](session) == EXPECTED
    assert events(session) == [("fallback-at-creation", "unknown")]
    report = session.report()
    assert report.verdict == "not guaranteed"
    assert report.requested_providers == ("NoSuchExecutionProvider",)


def test_failing_creation_is_raised_in_strict(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.warns(UserWarning, match="not in available provider names"),
        pytest.raises(RuntimeError, match="no device") as raised,
    ):
        Unable(MODEL, providers=["NoSuchExecutionProvider"], mode="strict")
    assert "fallback to the CPU is off in strict mode" in raised.value.__notes__[0]
    assert capsys.readouterr().out == ""


def test_own_change_of_providers_is_no_fallback() -> None:
    session = ReproducibleSession(MODEL)
    try:
        raise C.EPFail("handled by the caller")
    except C.EPFail:
        session.set_providers([CPU])
    assert events(session) == []
    assert session.report().requested_providers == (CPU,)


def test_wrong_arguments_fall_back_as_in_stock(capsys: pytest.CaptureFixture[str]) -> None:
    wrong: Any = [5]
    with pytest.warns(ReproducibilityWarning, match="'providers' values must be"):
        session = ReproducibleSession(MODEL, providers=wrong)
    assert "EP Error" in capsys.readouterr().out
    assert RUNS["run"](session) == EXPECTED
    with pytest.raises(ValueError, match="'providers' values must be"):
        ReproducibleSession(MODEL, providers=wrong, mode="strict")


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (
            C.RuntimeException("Non-zero status returned while running Conv node. Name:'c' Failed to allocate"),
            True,
        ),
        (C.Fail("Non-zero status code returned while running Reshape node. Name:'r'"), False),
        (C.InvalidArgument("Got invalid dimensions for input: a"), False),
    ],
)
@pytest.mark.parametrize("mode", ["observe", "pin"])
def test_observe_says_what_a_failed_run_means_for_later_ones(error: Exception, noted: bool, mode: str) -> None:
    session = ReproducibleSession(add_model(), providers=[CPU], mode=mode)
    assert session.report().scope("run").status is Status.HOLDS
    session._ortlock.requested = (CUDA, CPU)
    session._sess = Failing(session._sess, error, times=1)
    session._enable_fallback = False
    with pytest.raises(type(error)):
        session.run(None, feeds())
    texts = [event.text for event in session.report().events if event.code == "failed-run"]
    # In pin the sessions of lanes are made anew; this one has none.
    assert len(texts) == (1 if noted and mode == "observe" else 0)
    if texts:
        assert "while running Conv node. Name:'c'" in texts[0]
        assert session.report().scope("run").status is Status.UNKNOWN
