"""Which nodes are moved or rewritten, that the copies compute the same, and that sessions run them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ortlock import NotReproducibleError, ReproducibleSession, models
from ortlock.operators.graph import model_nodes
from ortlock.operators.model_file import load
from ortlock.placement import Action, decide, place, resolve_placement
from ortlock.policy import Mode
from ortlock.session import placing
from ortlock.settings import Resolution
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
    assert placement.entries(None) == {"session.name_based_layer_assignment": f"cpu({placement.mark}cpu_)"}
    (node,) = onnx.load_model_from_string(placement.model).graph.node
    assert placement.mark in node.name
    assert placement.number(f"inlined_{node.name}_token_4") == 0
    feed = made.scatter_feed(operator)
    np.testing.assert_allclose(run(placement.model, feed)[0], made.scattered(feed, reduction), rtol=1e-4)


def test_the_callers_own_assignment_is_kept() -> None:
    placement = place(None, made.scatter("ScatterND", "add"))
    assert placement is not None
    entries = placement.entries("gpu(layers.);")
    # As the options of a session that was made with them have it.
    assert placement.entries(entries["session.name_based_layer_assignment"]) == entries
    assert entries["session.name_based_layer_assignment"] == f"gpu(layers.); cpu({placement.mark}cpu_)"


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
    model = onnx.load_model_from_string(made.scatter("ScatterND", "add", name="a__ortlock_cpu_0_"))
    other = helper.make_node("ScatterND", ["y", "i", "u"], ["z"], reduction="add")
    model.graph.node.append(other)
    model.graph.output.append(made.value("z", np.float32, [made.ROWS, made.WIDTH]))
    placement = place(None, model.SerializeToString())
    assert placement is not None
    names = [node.name for node in onnx.load_model_from_string(placement.model).graph.node]
    assert [placement.number(name) for name in names] == [0, 1]
    assert placement.number("a__ortlock_cpu_0_") is None
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


def test_external_weights_that_would_not_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load_model_from_string(made.group_norm(np.float32))
    extra = numpy_helper.from_array(np.zeros(8192, np.float32), "unused")
    model.graph.initializer.append(extra)
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    guard: Any = SimpleNamespace(places=True, restarted=None, loaded=(str(path), None), mode=Mode.STRICT)
    options, resolution = onnxruntime.SessionOptions(), Resolution()
    assert placing.prepare(guard, options, [CUDA], resolution) == resolution
    assert guard.placement.folder == str(tmp_path)
    monkeypatch.setattr(onnxruntime, "__version__", "1.20.1")
    told = r"^norm \(com.microsoft.GroupNorm\) on CUDA.*1\.20\.1 does not find the external data.*1\.21 or later"
    with pytest.raises(NotReproducibleError, match=told):
        placing.prepare(guard, options, [CUDA], resolution)
    # In one file it is found.
    path.write_bytes(made.group_norm(np.float32))
    assert placing.prepare(guard, options, [CUDA], resolution) == resolution
    assert guard.placement.folder is None


def test_only_a_model_that_needs_it_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[str | None] = []

    def counted(path: str | None, data: bytes | None) -> Any:
        whole.append(path)
        return load(path, data)

    monkeypatch.setattr(decide, "load", counted)
    path = tmp_path / "model.onnx"
    path.write_bytes(models.conv_net(2))
    monkeypatch.setattr(Path, "read_bytes", None)
    assert place(str(path), None) is None
    assert [node.op_type for node in model_nodes(str(path), None, CUDA) or ()].count("Conv") == 2
    assert whole == []
    monkeypatch.undo()
    monkeypatch.setattr(decide, "load", counted)
    path.write_bytes(made.scatter("ScatterND", "add"))
    assert place(str(path), None) is not None
    assert whole == [str(path)]


@pytest.mark.parametrize(("repeated", "moved"), [(True, 1), (False, 0)])
def test_many_constant_indices_are_looked_at(repeated: bool, moved: int) -> None:
    """More than fit into what is kept of other tensors: 3 million indices in ONNX's own integers."""
    count = 3_000_000
    rows = np.arange(count, dtype=np.int64).reshape(-1, 1)
    rows[-1] = 0 if repeated else rows[-1]
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], name="scatter")
    inputs = [made.value("x", np.float32, [count]), made.value("u", np.float32, [count])]
    indices = [numpy_helper.from_array(rows, "i")]
    graph = helper.make_graph([node], "g", inputs, [made.value("y", np.float32, [count])], indices)
    placement = place(None, made.serialized(graph))
    assert (0 if placement is None else len(placement.nodes)) == moved


def test_weights_behind_links(tmp_path: Path) -> None:
    """A cache that keeps files by their hash, with links beside each other in the model's folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    path = snapshot / "model.onnx"
    onnx.save_model(
        onnx.load_model_from_string(made.mixed()), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    for name, blob in (("model.onnx", "111"), ("w.bin", "222")):
        (snapshot / name).rename(blobs / blob)
        (snapshot / name).symlink_to(Path("..", "blobs", blob))
    placement = place(str(path), None)
    assert placement is not None
    assert placement.folder == str(blobs)
    np.testing.assert_array_equal(
        placed_session(str(path)).run(None, made.mixed_feed())[1], run(made.mixed(), made.mixed_feed())[1]
    )


def test_lengths_that_are_no_numbers_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(made.scatter("ScatterElements", "add"))
    tensor = onnx.TensorProto(name="unused", data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("length", "abc")):
        tensor.external_data.add(key=key, value=value)
    model.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    placement = place(str(path), None)
    assert placement is not None
    assert placement.folder == str(tmp_path)


def branch(kind: int, step: float) -> Any:
    """Return a graph with local names that other branches use too: d [4] of ``kind``, to which ``step`` is added."""
    nodes = [
        helper.make_node("Cast", ["x"], ["d"], to=kind),
        helper.make_node("Constant", [], ["i"], value=helper.make_tensor("i", onnx.TensorProto.INT64, [1, 1], [0])),
        helper.make_node("Constant", [], ["u"], value=helper.make_tensor("u", kind, [1], [step])),
        helper.make_node("ScatterND", ["d", "i", "u"], ["s"], reduction="add"),
        helper.make_node("Cast", ["s"], ["out"], to=onnx.TensorProto.DOUBLE),
    ]
    return helper.make_graph(nodes, "branch", [], [made.value("out", np.float64, [4])])


def test_types_are_those_of_the_nodes_own_graph() -> None:
    kinds = (onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    for then_kind, else_kind in (kinds, kinds[::-1]):
        choice = helper.make_node(
            "If", ["c"], ["y"], then_branch=branch(then_kind, 1), else_branch=branch(else_kind, 1)
        )
        inputs = [made.value("c", np.bool_, []), made.value("x", np.float64, [4])]
        graph = helper.make_graph([choice], "choice", inputs, [made.value("y", np.float64, [4])])
        placement = place(None, made.serialized(graph))
        assert placement is not None
        assert sorted(one.action for one in placement.nodes) == [Action.MOVED, Action.WIDENED]
        x = np.array([1000.123, 2, 3, 4])
        for flag, kind in ((True, then_kind), (False, else_kind)):
            (y,) = run(placement.model, {"c": np.array(flag), "x": x})
            narrow = kind == onnx.TensorProto.FLOAT16
            expected = np.float16(np.float32(np.float16(x[0])) + 1) if narrow else x[0] + 1
            assert y[0] == float(expected)


def through_a_function(nodes: list[Any], model: bytes, opset: int = 18) -> bytes:
    """Return ``model`` with its nodes inside of a function f.Body."""
    proto = onnx.load_model_from_string(model)
    names = [value.name for value in proto.graph.input] + [value.name for value in proto.graph.initializer]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(made.MICROSOFT, 1)]
    proto.functions.append(helper.make_function("f", "Body", names, ["y"], nodes, opsets))
    del proto.graph.node[:]
    proto.graph.node.append(helper.make_node("Body", names, ["y"], name="call", domain="f"))
    proto.opset_import.append(helper.make_opsetid("f", 1))
    return bytes(proto.SerializeToString())


def test_functions_are_inlined() -> None:
    for plain in (made.scatter("ScatterND", "add", np.float16), made.group_norm(np.float32)):
        nodes = list(onnx.load_model_from_string(plain).graph.node)
        placement = place(None, through_a_function(nodes, plain))
        reference = place(None, plain)
        assert placement is not None
        assert reference is not None
        assert [one.action for one in placement.nodes] == [one.action for one in reference.nodes]
        scatter = "i" in plain.decode("latin-1") and nodes[0].op_type == "ScatterND"
        x = np.random.default_rng(1).standard_normal((1, 4, 4, 256)).astype(np.float32)
        feed = made.scatter_feed("ScatterND", np.float16) if scatter else {"x": x}
        np.testing.assert_array_equal(run(placement.model, feed)[0], run(reference.model, feed)[0])


def test_rewritten_nodes_do_not_move_with_others() -> None:
    norm = onnx.load_model_from_string(made.group_norm(np.float32))
    scatter = onnx.load_model_from_string(made.scatter("ScatterElements", "add"))
    for one in (*scatter.graph.input, *scatter.graph.output):
        one.name = f"s_{one.name}"
    node = scatter.graph.node[0]
    node.input[:] = [f"s_{name}" for name in node.input]
    node.output[:] = ["s_y"]
    norm.graph.node.append(node)
    norm.graph.input.extend(scatter.graph.input)
    norm.graph.output.extend(scatter.graph.output)
    placement = place(None, norm.SerializeToString())
    assert placement is not None
    assert [one.action for one in placement.nodes] == [Action.REWRITTEN, Action.MOVED]
    (_, entry) = placement.entries(None).popitem()
    pattern = entry.removeprefix("cpu(").removesuffix(")")
    names = [node.name for node in onnx.load_model_from_string(placement.model).graph.node]
    assert [name for name in names if pattern in name] == [f"scatter{pattern}1_"]
    assert {placement.number(name) for name in names} == {0, 1}


def untyped(dtype: Any) -> bytes:
    """Return a scatter whose data and updates come from an operator that ONNX does not know."""
    model = onnx.load_model_from_string(made.scatter("ScatterND", "add", dtype))
    for name in ("x", "u"):
        model.graph.node.insert(0, helper.make_node("Mystery", [name], [f"{name}2"], domain="f"))
    scatter = model.graph.node[2]
    scatter.input[0], scatter.input[2] = "x2", "u2"
    scatter.output[0] = "hidden"
    model.graph.node.append(helper.make_node("Mystery", ["hidden"], ["y"], domain="f"))
    model.opset_import.append(helper.make_opsetid("f", 1))
    return bytes(model.SerializeToString())


def test_types_that_cannot_be_told() -> None:
    placement = place(None, untyped(np.float32))
    assert placement is not None
    assert [one.action for one in placement.nodes] == [Action.MOVED]
    with pytest.raises(
        NotReproducibleError, match=r"scatter \(ScatterND\).*the type of x2 cannot be inferred.*value_info"
    ):
        place(None, untyped(np.float16))


def test_activations_that_nobody_knows_stay() -> None:
    model = onnx.load_model_from_string(made.group_norm())
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "activation":
            attribute.i = 2
    assert place(None, model.SerializeToString()) is None


GLOBAL_POOL = """
import warnings
import onnxruntime as ort
from ortlock import NotReproducibleError, ReproducibleSession
from tests import placement_models as made

warnings.simplefilter("ignore")
ort.set_global_thread_pool_sizes(2, 1)
options = ort.SessionOptions()
options.use_per_session_threads = False
options.intra_op_num_threads = 1
model = made.scatter("ScatterND", "add")
try:
    ReproducibleSession(model, options, providers=["CPUExecutionProvider"], mode="strict")
except NotReproducibleError as error:
    print(error.subject)
placed = ReproducibleSession(model, options, providers=["CUDAExecutionProvider"], placement="cpu")
print(placed.report().verdict, [state.origin for state in placed.report().settings if "intra_op_num" in state.key][0])
"""


def test_threads_of_the_whole_process_are_not_taken_for_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GLOBAL_POOL], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.splitlines()[-2:] == [
        "scatter (ScatterND) on CPUExecutionProvider",
        "violated could not be pinned",
    ]


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
