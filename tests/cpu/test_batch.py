"""Batch invariance: rows alone, in batches and at other positions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from ortlock import ReproducibleSession, models
from ortlock.cli import main
from ortlock.configuration import Source
from ortlock.localise import SessionMaker
from ortlock.report import Status
from ortlock.verify.batch import BatchClaim, batch_invariance
from ortlock.verify.rows import NoBatchError, RowAxis, batched_inputs, chosen_rows, enlarged, row_axis
from tests.cpu.planted import CPU, OBSERVE, chain, serialized

ROWS = {"x": np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)}


def dependent() -> bytes:
    """Rows depend on each other through a mean over the batch, after and before nodes that keep them apart."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], name="neg"),
        helper.make_node("ReduceMean", ["n"], ["m"], axes=[0], name="mean"),
        helper.make_node("Sub", ["n", "m"], ["s"], name="sub"),
        helper.make_node("Softmax", ["s"], ["c"], axis=0, name="over_the_batch"),
        helper.make_node("Abs", ["c"], ["y"], name="abs"),
    ]
    return serialized(nodes, ["n", 6])


def measure(model: bytes, feed: dict[str, np.ndarray] = ROWS) -> BatchClaim:
    return batch_invariance(SessionMaker(OBSERVE, Source(data=model)), model, feed)


def test_rows_that_keep_to_themselves() -> None:
    found = measure(chain(4), {"x": np.arange(3, dtype=np.float32)})
    assert (found.status, found.batch, found.nodes) == (Status.HOLDS, 8, ())
    assert [one.rows for one in found.runs] == [8, 24, 8, 7, 16]
    assert {one.differing for one in found.runs} == {0}
    assert "63 rows had the same bits as alone" in found.reason


def test_the_nodes_that_break_it_are_named() -> None:
    found = measure(dependent())
    assert found.status is Status.VIOLATED
    # Both of them, though the second one's inputs depend on the batch already; and no other.
    assert [node.name for node in found.nodes] == ["mean", "over_the_batch"]
    assert found.unjudged == ()
    company = {one.text: one.differing for one in found.runs}
    assert company["in a batch of 8"] == 8
    assert found.nodes[0].worst is not None
    assert (found.nodes[0].worst.max_abs or 0) > 0.1
    assert "broken by mean (ReduceMean)" in str(found)


def test_what_has_no_batch_is_unknown() -> None:
    fixed = measure(models.conv_net(1, size=16), {"x": models.seeded_input((1, 3, 16, 16))})
    assert (fixed.status, fixed.runs) == (Status.UNKNOWN, ())
    assert "no input has a first axis of variable size" in fixed.reason
    total = measure(serialized([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], ["n", 6]))
    assert total.status is Status.UNKNOWN
    assert "rows cannot be told apart" in total.reason


def test_inputs_that_are_missing_are_named() -> None:
    for feed, told in (({}, "x is missing"), ({"q": ROWS["x"]}, "x is missing, and q is none of the model's inputs")):
        with pytest.raises(ValueError, match=f"^inputs: {told}. The model takes x.$"):
            measure(chain(2), feed)


def test_nodes_that_hold_the_batch_size_are_not_judged() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], name="mean"),
        helper.make_node("Sub", ["x", "m"], ["d"], name="sub"),
        helper.make_node("Reshape", ["d", "s"], ["y"], name="reshape"),
    ]
    found = measure(serialized(nodes, ["n", 6]))
    assert [node.name for node in found.nodes] == ["mean"]
    assert found.unjudged == ("reshape (Reshape)",)


STRINGS = np.array(["a", "b", "a longer one"], object)


def of_strings() -> bytes:
    model = onnx.load_model_from_string(serialized([helper.make_node("Identity", ["x"], ["y"])], ["n"]))
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    return bytes(model.SerializeToString())


def test_rows_that_are_strings() -> None:
    found = ReproducibleSession(of_strings(), providers=[CPU]).batch_invariance({"x": STRINGS})
    assert (found.status, found.batch) == (Status.HOLDS, 8)
    larger = enlarged({"x": STRINGS}, ["x"], 3, 8)["x"]
    assert larger.dtype == object
    assert larger.tolist() == ["a", "b", "a longer one"] * 2 + ["a", "b"]


def test_rows_are_found_by_shapes() -> None:
    assert row_axis((8, 5), (1, 5), 8) == RowAxis(0, 1)
    assert row_axis((5, 8), (5, 1), 8) == RowAxis(1, 1)
    assert row_axis((24, 5), (3, 5), 8) == RowAxis(0, 3)
    assert row_axis((8, 5), (8, 5), 8) is None
    assert row_axis((7, 5), (1, 5), 8) is None
    assert row_axis((8, 8), (1, 1), 8) is None
    assert RowAxis(0, 2).row(np.arange(6), 1).tolist() == [2, 3]


def test_rows_are_made_and_chosen() -> None:
    feed = {"x": np.array([[1, 2, 3], [4, 5, 6]]), "scale": np.array(2.0)}
    larger = enlarged(feed, ["x"], 2, 4)
    assert larger["x"][:2].tolist() == feed["x"].tolist()
    assert sorted(larger["x"][2].tolist()) == [1, 2, 3]
    assert larger["scale"] is feed["scale"]
    assert chosen_rows(feed, ["x"], [1, 0])["x"].tolist() == [[4, 5, 6], [1, 2, 3]]
    with pytest.raises(NoBatchError, match=r"no common batch \(a: 1, b: 2\)"):
        batched_inputs({"a": np.zeros(1), "b": np.zeros(2)}, {"a": ["n"], "b": ["m"]})


def test_the_report_tells_it_beside_its_verdict() -> None:
    session = ReproducibleSession(dependent(), providers=[CPU])
    before = session.report()
    assert before.batch is None
    found = session.batch_invariance(ROWS)
    report = session.report()
    assert report.batch == found
    assert report.verdict is before.verdict
    line = found.summary()
    assert line.endswith("Broken by mean (ReduceMean), over_the_batch (Softmax).")
    assert line in str(report)
    assert "## Batch invariance" in report.to_markdown()
    assert json.loads(json.dumps(report.to_dict()))["batch"]["status"] == "violated"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    quick = ["--provider", "cpu", "--runs", "1", "--stress", "again", "--batch"]
    for model, status, said in (
        (dependent(), 1, "batch invariance violated"),
        (chain(2), 0, "batch invariance holds"),
        (of_strings(), 0, "batch invariance holds"),
        (models.trivial(), 2, "batch invariance unknown"),
    ):
        path.write_bytes(model)
        assert main(["verify", str(path), *quick]) == status
        assert said in capsys.readouterr().out


def test_what_was_verified_is_shown_where_batches_do_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    shape = {"shape": np.array([1, 6])}
    path.write_bytes(serialized([helper.make_node("Reshape", ["x", "shape"], ["y"])], ["n", 6], shape))
    quick = ["--provider", "cpu", "--runs", "1", "--stress", "again", "--batch"]
    assert main(["verify", str(path), *quick]) == 2
    shown = capsys.readouterr().out
    assert "holds: 1 run" in shown
    assert "batch invariance unknown: it cannot be measured with these inputs: [ONNXRuntimeError]" in shown
    assert main(["verify", str(path), *quick, "--json"]) == 2
    values = json.loads(capsys.readouterr().out)
    assert (values["evidence"]["status"], values["batch"]["status"]) == ("holds", "unknown")
