"""Every argument of InferenceSession means what it means there; ortlock's own are keyword-only."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from ortlock import Mode, NotReproducibleError, ReproducibilityWarning, ReproducibleSession
from tests.cpu.session_models import CPU, CUDA, Outcome, add_model, exact_outputs, feeds, outcome

MODEL = add_model()
PROVIDERS: dict[str, tuple[Any, ...]] = {
    "none": (None,),
    "empty": ([],),
    "name": ([CPU],),
    "tuple of names": ((CPU,),),
    "name and options": ([(CPU, {})],),
    "options with values of any type": ([(CPU, {"arena": 1, 2: True})],),
    "options apart": ([CPU], [{"a": 1}]),
    "options without providers": (None, [{"a": 1}]),
    "twice": ([CPU, CPU],),
    "twice with options": ([(CPU, {"a": 1}), (CPU, {"a": 2})],),
    "not there": (["TensorrtExecutionProvider", CPU],),
    "no such provider": (["NoSuchExecutionProvider", CPU],),
    "only one that is not there": (["ROCMExecutionProvider"],),
}
BAD: dict[str, tuple[Any, ...]] = {
    "missing file": ("/nowhere/model.onnx",),
    "a folder": ("/tmp",),
    "corrupt": (b"this is no model",),
    "empty": (b"",),
    "number": (5,),
    "none": (None,),
    "options that are none": (MODEL, "fast"),
    "options that are false": (MODEL, 0),
    "providers that are no sequence": (MODEL, None, 5),
    "providers that are text": (MODEL, None, "CPU"),
    "a provider that is a number": (MODEL, None, [5]),
    "a provider with three parts": (MODEL, None, [(CPU, {}, 1)]),
    "more options than providers": (MODEL, None, [CPU], [{}, {}]),
    "options that are no dictionary": (MODEL, None, [CPU], ["a"]),
    "options that are no sequence": (MODEL, None, [CPU], {"a": 1}),
    "options twice": (MODEL, None, [(CPU, {})], [{}]),
    "two TensorRTs": (MODEL, None, ["TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"]),
    "too many": (MODEL, None, None, None, None),
}


def both(
    capsys: pytest.CaptureFixture[str], use: Callable[[Any], Any], *arguments: Any, mode: str, **kwargs: Any
) -> tuple[Outcome, Outcome]:
    """Make a stock session and one of ours with the same arguments, use both alike, and tell what each did."""

    def stock() -> Any:
        return use(onnxruntime.InferenceSession(*arguments, **kwargs))

    def ours() -> Any:
        return use(ReproducibleSession(*arguments, mode=mode, **kwargs))

    return outcome(stock, capsys), outcome(ours, capsys, ignore=ReproducibilityWarning)


def seen(session: Any) -> Any:
    """What a caller sees of a session that holds ``add_model()``."""
    outputs = session.run(None, feeds())
    return session.get_providers(), session.get_provider_options(), exact_outputs(outputs)


@pytest.mark.parametrize("mode", ["observe", "pin"])
@pytest.mark.parametrize("arguments", PROVIDERS.values(), ids=PROVIDERS)
def test_providers_in_every_form(arguments: tuple[Any, ...], mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    stock, ours = both(capsys, seen, MODEL, None, *arguments, mode=mode)
    assert ours == stock
    assert stock.error is None or "no such provider" in str(stock.error).lower()


@pytest.mark.parametrize("mode", ["observe", "pin", "strict"])
@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD)
def test_bad_arguments_raise_what_stock_raises(
    arguments: tuple[Any, ...], mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stock, ours = both(capsys, seen, *arguments, mode=mode)
    if mode == "strict":
        # Strict does not fall back, so ONNX Runtime prints nothing of it and raises the first error.
        assert ours.printed == ""
        if ours.error and ours.error[0] is NotReproducibleError:
            # Arguments that this version takes: it then runs without a provider that was asked for.
            assert "is missing" in ours.error[1]
            assert stock.warned
        elif stock.printed:
            assert ours.error is not None
            assert ours.error[1] in stock.printed
        else:
            assert (ours.value, named(ours.error)) == (stock.value, named(stock.error))
    else:
        assert named(ours.error) == named(stock.error)
        assert (ours.value, ours.printed, ours.warned) == (stock.value, stock.printed, stock.warned)


def named(error: tuple[type[BaseException], str] | None) -> Any:
    """Some texts name the class, and Python's own about too many arguments the keyword-only ones."""
    return error and (error[0], error[1].split(" takes from ")[0].replace("ReproducibleSession", "InferenceSession"))


@pytest.mark.parametrize("mode", ["observe", "pin", "strict"])
@pytest.mark.parametrize("kind", ["str", "path", "bytes"])
def test_models_in_every_form(kind: str, mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(MODEL)
    given: Any = {"str": str(file), "path": file, "bytes": MODEL}[kind]
    stock, ours = both(capsys, seen, given, mode=mode)
    assert ours == stock
    assert stock.error is None


def test_arguments_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {
        "path_or_bytes": MODEL,
        "sess_options": onnxruntime.SessionOptions(),
        "providers": [CPU],
        "provider_options": [{}],
    }
    stock, ours = both(capsys, seen, mode="pin", **arguments)
    assert ours == stock
    assert stock.error is None


@pytest.mark.parametrize(
    "kwargs",
    [
        {"enable_fallback": 0},
        {"enable_fallback": "1"},
        {"enable_fallback": "never"},
        {"disabled_optimizers": ["ConstantFolding"]},
        {"disabled_optimizers": {"ConstantFolding"}},
        {"disabled_optimizers": 5},
        {"read_config_from_model": 1},
        {"something_else": 1},
    ],
    ids=str,
)
def test_keyword_arguments(kwargs: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    def use(session: Any) -> Any:
        return session._enable_fallback, seen(session)

    stock, ours = both(capsys, use, MODEL, mode="pin", **kwargs)
    assert ours == stock


def test_configuration_in_the_model_counts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    model = onnx.load_from_string(MODEL)
    entry = model.metadata_props.add()
    entry.key, entry.value = "ort_config", json.dumps({"session_options": {"inter_op_num_threads": 3}})

    def use(session: Any) -> int:
        return int(session.get_session_options().inter_op_num_threads)

    stock, ours = both(capsys, use, model.SerializeToString(), mode="pin", read_config_from_model=1)
    assert (stock.value, ours.value) == (3, 3)


def test_own_arguments_are_keyword_only() -> None:
    ours = list(inspect.signature(ReproducibleSession).parameters.values())
    stock = list(inspect.signature(onnxruntime.InferenceSession).parameters.values())
    own = {"mode", "lockfile", "lock_mode", "placement", "random_ops", "lanes", "stream_priority"}
    assert [(p.name, p.kind, p.default) for p in ours if p.name not in own] == [
        (p.name, p.kind, p.default) for p in stock
    ]
    assert {p.name: p.kind for p in ours if p.name in own} == dict.fromkeys(own, inspect.Parameter.KEYWORD_ONLY)


@pytest.mark.parametrize("name", [name for name in dir(onnxruntime.InferenceSession) if not name.startswith("_")])
def test_methods_take_the_same_arguments(name: str) -> None:
    ours, stock = getattr(ReproducibleSession, name), getattr(onnxruntime.InferenceSession, name)
    if not callable(stock):
        assert ours == stock
        return
    assert [(p.name, p.kind, p.default) for p in inspect.signature(ours).parameters.values()] == [
        (p.name, p.kind, p.default) for p in inspect.signature(stock).parameters.values()
    ]


def test_default_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORTLOCK_MODE", raising=False)
    assert ReproducibleSession(MODEL).mode is Mode.PIN
    monkeypatch.setenv("ORTLOCK_MODE", "observe")
    assert ReproducibleSession(MODEL).mode is Mode.OBSERVE
    assert ReproducibleSession(MODEL, mode="strict").mode is Mode.STRICT
    monkeypatch.setenv("ORTLOCK_MODE", "sometimes")
    with pytest.raises(ValueError, match=r"ORTLOCK_MODE='sometimes' is no mode.*'observe', 'pin', 'strict'"):
        ReproducibleSession(MODEL)


@pytest.mark.parametrize("mode", ["PIN", "", "exact"])
def test_unknown_mode(mode: str) -> None:
    with pytest.raises(ValueError, match=f"mode='{mode}' is no mode"):
        ReproducibleSession(MODEL, mode=mode)


def test_is_an_inference_session() -> None:
    session = ReproducibleSession(MODEL, mode="strict")
    assert isinstance(session, onnxruntime.InferenceSession)
    assert [value.name for value in session.get_inputs()] == ["a", "b"]


@pytest.mark.parametrize("providers", [[CUDA, CPU], [(CUDA, {"cudnn_conv_algo_search": "HEURISTIC"})]], ids=str)
@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="this package has the CUDA provider")
def test_cuda_asked_for_and_not_there(providers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stock, ours = both(capsys, seen, MODEL, None, providers, mode="pin")
    assert ours == stock
    with pytest.warns(ReproducibilityWarning, match="built without it") as caught:
        session = ReproducibleSession(MODEL, providers=providers)
    assert [Path(entry.filename).name for entry in caught if entry.category is ReproducibilityWarning] == [
        Path(__file__).name
    ]
    assert session.report().verdict == "not guaranteed"
    with (
        pytest.warns(UserWarning, match="not in available provider names"),
        pytest.raises(NotReproducibleError, match="Install onnxruntime-gpu") as raised,
    ):
        ReproducibleSession(MODEL, providers=providers, mode="strict")
    assert raised.value.subject == CUDA
