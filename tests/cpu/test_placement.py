"""Which nodes are moved or rewritten, that the copies compute the same, and that sessions run them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from ortlock import ReproducibleSession, models
from ortlock.placement import Action, place, resolve_placement
from ortlock.policy import Mode
from tests import placement_models as made

CUDA = "CUDAExecutionProvider"


def run(model: bytes, feed: dict[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feed)


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("reduction", ["add", "mul", "none"])
def test_scatter_is_moved(operator: str, reduction: str) -> None:
    placement = place(None, made.scatter(operator, reduction))
    assert placement is not None
    assert [(one.node.label, one.action) for one in placement.nodes] == [(f"scatter ({operator})", Action.MOVED)]
    assert placement.one_thread == (operator == "ScatterND")
    assert placement.entries(None) == {"session.name_based_layer_assignment": f"cpu({placement.mark})"}
    (node,) = onnx.load_model_from_string(placement.model).graph.node
    assert placement.mark in node.name
    assert placement.number(f"inlined_{node.name}_token_4") == 0
    feed = made.scatter_feed(operator)
    np.testing.assert_allclose(run(placement.model, feed)[0], made.scattered(feed, reduction), rtol=1e-4)


def test_the_callers_own_assignment_is_kept() -> None:
    placement = place(None, made.scatter("ScatterND", "add"))
    assert placement is not None
    entries = placement.entries("gpu(layers.);")
    assert entries["session.name_based_layer_assignment"] == f"gpu(layers.); cpu({placement.mark})"


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
def test_narrow_scatter_is_widened_and_rounded_once(operator: str) -> None:
    placement = place(None, made.scatter(operator, "add", np.float16))
    assert placement is not None
    assert placement.nodes[0].action is Action.WIDENED
    feed = made.scatter_feed(operator, np.float16)
    (result,) = run(placement.model, feed)
    wide = {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in feed.items()}
    (exact,) = run(made.scatter(operator, "add"), wide)
    np.testing.assert_array_equal(result, exact.astype(np.float16))


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("opset", [17, 18])
def test_group_norm_is_rewritten(silu: bool, opset: int) -> None:
    model = onnx.load_model_from_string(made.group_norm(np.float32, silu))
    model.opset_import[0].version = opset
    placement = place(None, model.SerializeToString())
    assert placement is not None
    assert [one.action for one in placement.nodes] == [Action.REWRITTEN]
    assert not placement.moves
    assert placement.entries(None) == {}
    x = np.random.default_rng(1).standard_normal((2, 9, 7, 256)).astype(np.float32) * 3 + 1
    np.testing.assert_allclose(run(placement.model, {"x": x})[0], made.group_norm_of(x, silu), rtol=2e-4, atol=2e-5)


def test_group_norm_keeps_its_type() -> None:
    placement = place(None, made.group_norm(np.float16))
    assert placement is not None
    x = np.random.default_rng(1).standard_normal((1, 4, 4, 256)).astype(np.float16)
    (result,) = run(placement.model, {"x": x})
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, made.group_norm_of(x, False), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("model", [models.demo_model(), models.reduction("ReduceSum", (8, 8))])
def test_models_without_such_nodes_are_left_alone(model: bytes) -> None:
    assert place(None, model) is None


def test_operators_without_any_deterministic_kernel_stay() -> None:
    assert place(None, made.group_norm(operator="SkipGroupNorm")) is None


def test_inside_subgraphs() -> None:
    placement = place(None, made.loop())
    assert placement is not None
    assert [one.node.label for one in placement.nodes] == ["scatter (ScatterElements)"]
    feed = made.scatter_feed("ScatterElements")
    expected = feed["x"].astype(np.float64)
    for _ in range(3):
        np.add.at(expected, feed["i"][:, 0], feed["u"])
    np.testing.assert_allclose(run(placement.model, feed)[0], expected, rtol=1e-4)


def test_unnamed_nodes_and_names_that_hold_the_mark() -> None:
    model = onnx.load_model_from_string(made.scatter("ScatterND", "add", name="a__ortlock_placed_0_"))
    other = helper.make_node("ScatterND", ["y", "i", "u"], ["z"], reduction="add")
    model.graph.node.append(other)
    model.graph.output.append(made.value("z", np.float32, [made.ROWS, made.WIDTH]))
    placement = place(None, model.SerializeToString())
    assert placement is not None
    names = [node.name for node in onnx.load_model_from_string(placement.model).graph.node]
    assert [placement.number(name) for name in names] == [0, 1]
    assert placement.number("a__ortlock_placed_0_") is None
    assert placement.nodes[1].node.label == "an unnamed ScatterND"


def test_external_weights_stay_where_they_are(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(made.mixed())
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    placement = place(str(path), None)
    assert placement is not None
    assert len(placement.model) < len(before["weights.bin"])
    session = placed_session(str(path))
    (y, conv) = session.run(None, made.mixed_feed())
    expected = run(made.mixed(), made.mixed_feed())
    np.testing.assert_array_equal(conv, expected[1])
    np.testing.assert_array_equal(y, expected[0])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def placed_session(model: Any, **arguments: Any) -> ReproducibleSession:
    """Return a session that places nodes and falls back to the CPU, where CUDA is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReproducibleSession(model, providers=[CUDA], placement="cpu", **arguments)


def test_a_session_runs_the_copy_and_reports_it() -> None:
    model, feed = made.scatter("ScatterND", "add"), made.scatter_feed("ScatterND")
    session = placed_session(model)
    assert session._model_bytes == model
    assert session.get_session_options().intra_op_num_threads == 1
    np.testing.assert_allclose(session.run(None, feed)[0], made.scattered(feed, "add"), rtol=1e-4)
    report = session.report()
    assert [(one.node, one.milliseconds) for one in report.placed] == [("scatter (ScatterND)", None)]
    assert [finding.examples for finding in report.operators] == [("scatter (ScatterND)",)]
    costs = session.measure_placement(feed, runs=3)
    assert 0 < costs["scatter (ScatterND)"] < 1000
    assert [one.milliseconds for one in session.report().placed] == [costs["scatter (ScatterND)"]]
    assert "placed: scatter (ScatterND) runs on the CPU provider" in str(session.report())
    assert session.report().to_dict()["placed"][0]["node"] == "scatter (ScatterND)"


def test_the_callers_threads_are_kept() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = placed_session(made.scatter("ScatterND", "add"), sess_options=options)
    assert session.get_session_options().intra_op_num_threads == 2
    reasons = [reason for reason in session.report().reasons if reason.code == "operator-nondeterministic"]
    assert [reason.subject for reason in reasons] == ["scatter (ScatterND) on CPUExecutionProvider"]


def test_a_rewritten_group_norm_runs_in_a_session() -> None:
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 256)).astype(np.float32)
    session = placed_session(made.group_norm(np.float32))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], made.group_norm_of(x, False), rtol=2e-4, atol=2e-5)
    assert session.measure_placement({"x": x})["norm (com.microsoft.GroupNorm)"] > 0


def test_without_placement_nothing_is_copied() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = ReproducibleSession(made.scatter("ScatterND", "add"), providers=[CUDA])
    assert session.report().placed == ()
    assert session.measure_placement(made.scatter_feed("ScatterND")) == {}


def test_what_placement_may_be() -> None:
    assert resolve_placement(None, Mode.STRICT)
    assert not resolve_placement(None, Mode.PIN)
    assert not resolve_placement("off", Mode.STRICT)
    with pytest.raises(ValueError, match="placement='gpu': use one of cpu, off"):
        ReproducibleSession(models.demo_model(), placement="gpu")
    with pytest.raises(ValueError, match="mode='observe'"):
        ReproducibleSession(models.demo_model(), placement="cpu", mode="observe")
    session = ReproducibleSession(models.demo_model(), providers=["CPUExecutionProvider"])
    with pytest.raises(ValueError, match="runs=0"):
        session.measure_placement({}, runs=0)


def test_strict_refuses_where_nodes_cannot_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.layer_assignment_settings", "cpu(a)")
    with pytest.raises(Exception, match=r"scatter \(ScatterND\) on CUDAExecutionProvider.*layer_assignment_settings"):
        ReproducibleSession(made.scatter("ScatterND", "add"), options, providers=[CUDA], mode="strict")
    monkeypatch.setattr(onnxruntime, "__version__", "1.27.0")
    with pytest.raises(Exception, match=r"1\.27\.0 cannot move single nodes.*Use ONNX Runtime 1\.30 or later"):
        ReproducibleSession(made.scatter("ScatterND", "add"), providers=[CUDA], mode="strict")
