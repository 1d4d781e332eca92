"""A model whose files become others while sessions run it: no session, lane or report takes one for the other."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortlock import LockfileError, ModelFileError, ReproducibleSession
from ortlock.model_files import ModelFiles
from tests.cpu.session_models import CPU, model

X = {"x": np.array([3.0], np.float32)}


def scaled(path: Path, factor: float, *, external: bool = False) -> Path:
    """Write a model that multiplies by ``factor``."""
    weights = numpy_helper.from_array(np.full(2000, factor, np.float32), "w")
    nodes = [
        helper.make_node("Gather", ["w", "i"], ["f"], axis=0),
        helper.make_node("Mul", ["x", "f"], ["y"]),
    ]
    index = numpy_helper.from_array(np.array([0], np.int64), "i")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weights, index])
    proto = helper.make_model(graph, ir_version=7, opset_imports=[helper.make_opsetid("", 13)])
    if external:
        path.parent.joinpath("weights.bin").unlink(missing_ok=True)
        onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    else:
        path.write_bytes(proto.SerializeToString())
    return path


def replaced(path: Path) -> None:
    scaled(path, 5.0)


def written_over(path: Path) -> None:
    """The same name, the same size, the same time of writing."""
    before = path.stat()
    other = scaled(path.parent / "other.onnx", 7.0)
    shutil.copyfile(other, path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def removed(path: Path) -> None:
    path.unlink()


CHANGES = pytest.mark.parametrize("change", [replaced, written_over, removed])


def outputs_of_threads(session: ReproducibleSession, count: int = 6) -> set[float]:
    found: set[float] = set()

    def work() -> None:
        for _ in range(50):
            found.add(float(session.run(None, X)[0][0]))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@CHANGES
def test_lanes_never_run_another_model(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = scaled(tmp_path / "model.onnx", 2.0)
    session = ReproducibleSession(path, providers=[CPU], lanes=3, mode="strict")
    lanes = session._ortlock.lanes
    change(path)
    first = lanes.pool.take(lanes.pool.first)
    waiting = threading.Thread(target=lambda: session.run(None, X))
    waiting.start()
    while lanes.pool.waiting == 0:
        pass
    lanes.pool.give(first)
    waiting.join(60)
    assert outputs_of_threads(session) == {6.0}
    facts = session.report().lanes
    assert facts is not None
    assert (facts.count, facts.open) == (1, 1)
    assert f"{path}: It was {'removed' if change is removed else 'changed'} after the session was made" in facts.reason


@CHANGES
def test_a_bad_input_costs_no_session(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """On the CPU a run that fails leaves nothing wrong, so nothing is made anew, of whatever the file holds by then."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    weights = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "c", "h", "w"]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weights])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, ir_version=7, opset_imports=[helper.make_opsetid("", 13)]), path)
    session = ReproducibleSession(path, providers=[CPU], lanes=2)
    if change is not written_over:
        change(path)
    for _ in range(3):
        with pytest.raises(Exception, match=r"(?i)channel|shape|dimension"):
            session.run(None, {"x": np.ones((1, 2, 3, 3), np.float32)})
        assert session.run(None, {"x": np.ones((1, 1, 2, 2), np.float32)})[0].tolist() == [[[[1, 1], [1, 1]]]]
    facts = session.report().lanes
    assert facts is not None
    assert facts.replaced == 0


def test_lanes_of_a_model_with_external_data(tmp_path: Path) -> None:
    path = scaled(tmp_path / "model.onnx", 2.0, external=True)
    session = ReproducibleSession(path, providers=[CPU], lanes=2)
    scaled(tmp_path / "another.onnx", 9.0, external=True)
    assert onnxruntime.InferenceSession(path).run(None, X)[0][0] == 27.0
    assert outputs_of_threads(session) == {6.0}
    assert session._ortlock.files is not None
    assert session._ortlock.files.changed() == str(tmp_path / "weights.bin")


def test_lanes_open_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled(tmp_path / "model.onnx", 2.0)
    monkeypatch.chdir(tmp_path)
    session = ReproducibleSession("model.onnx", providers=[CPU], lanes=2)
    monkeypatch.chdir("/")
    held = [session._ortlock.lanes._take() for _ in range(2)]
    assert [float(lane.session.run(None, X)[0][0]) for lane in held] == [6.0, 6.0]
    for lane in held:
        session._ortlock.lanes.pool.give(lane)
    report = session.report()
    assert report.model.path == "model.onnx"
    assert report.model.sha256 == hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()
    found = session.verify(X, runs=20, stresses=["again", "fresh session", "fresh process"])
    assert [(stress.distinct, stress.failed) for stress in found.stresses] == [(1, 0)] * 3


@CHANGES
def test_the_report_names_no_other_model(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = scaled(tmp_path / "model.onnx", 2.0)
    session = ReproducibleSession(path, providers=[CPU])
    change(path)
    report = session.report()
    assert (report.model.path, report.model.sha256, report.model.size) == (str(path), None, None)


def test_the_report_names_the_model_that_was_seen(tmp_path: Path) -> None:
    path = scaled(tmp_path / "model.onnx", 2.0)
    session = ReproducibleSession(path, providers=[CPU])
    seen = session.report().model
    assert seen.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    replaced(path)
    assert session.report().model == seen


@CHANGES
def test_evidence_is_of_the_same_model_or_none(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = scaled(tmp_path / "model.onnx", 2.0)
    session = ReproducibleSession(path, providers=[CPU])
    change(path)
    for ask in (
        lambda: session.verify(X, runs=5),
        lambda: session.localise(X),
        lambda: session.batch_invariance(X),
    ):
        with pytest.raises(ModelFileError, match=r"model\.onnx: It was (changed|removed) after .* Make a new session"):
            ask()
    assert session.report().evidence == ()


def test_made_again_on_other_providers_it_is_the_new_model(tmp_path: Path) -> None:
    """As in the original, which reads the file again."""
    path = scaled(tmp_path / "model.onnx", 2.0)
    session = ReproducibleSession(path, providers=[CPU], lanes=1)
    before = session.report().model
    replaced(path)
    session.set_providers([CPU])
    assert session.run(None, X)[0][0] == 15.0
    assert session.report().model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() != before.sha256


def test_with_a_lockfile_it_stays_the_same_model(tmp_path: Path) -> None:
    path = scaled(tmp_path / "model.onnx", 2.0)
    session = ReproducibleSession(path, providers=[CPU], lockfile=tmp_path / "l.json", lock_mode="record")
    session.run(None, X)
    session.save_lockfile()
    replaced(path)
    with pytest.raises(ModelFileError, match="after the session was made"):
        session.set_providers([CPU])
    with pytest.raises(LockfileError):
        ReproducibleSession(path, providers=[CPU], lockfile=tmp_path / "l.json")


def test_files_of_a_model(tmp_path: Path) -> None:
    path = scaled(tmp_path / "model.onnx", 2.0)
    assert list(ModelFiles.of(str(path)).stamps) == [str(path)]
    path = scaled(tmp_path / "model.onnx", 2.0, external=True)
    files = ModelFiles.of(str(path))
    assert list(files.stamps) == [str(path), str(tmp_path / "weights.bin")]
    assert files.changed() is None
    files.check()
    (tmp_path / "weights.bin").unlink()
    assert files.changed() == str(tmp_path / "weights.bin")
    for other in (tmp_path, tmp_path / "no such", "a\0b"):
        assert ModelFiles.of(str(other)).changed() is None
    # A name that looks like it is no external data, and bytes are no file.
    (tmp_path / "named.onnx").write_bytes(model([helper.make_node("Relu", ["x"], ["y"], name="location")]))
    assert len(ModelFiles.of(str(tmp_path / "named.onnx")).stamps) == 1
    assert ReproducibleSession(model([helper.make_node("Relu", ["x"], ["y"])]), providers=[CPU])._ortlock.files is None
