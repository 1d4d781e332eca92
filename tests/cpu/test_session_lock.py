"""Sessions with a lockfile, as far as the CPU provider shows them; choices are what the hooks would have recorded."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import LockfileError, NotReproducibleError, ReproducibilityWarning, ReproducibleSession, models, native
from ortlock.lockfile import read
from ortlock.operators import nodes_with_weights
from tests.cpu.session_models import CPU, Failing, add_model, feeds

MODEL = add_model()
KEY, OTHER = "a" * 32, "b" * 32
PLAN = native.PlanRecord(
    *("graph", "ConvolutionForward", ("x f32[1,3,8,8]", "w f32[64,3,3,3]"), "pad=1,1", 58, ((2, 1),), None),
    *((), (), 4096, "used", 1, KEY),
)


def session(path: Path, lock_mode: str | None = None, mode: str = "pin", model: Any = MODEL) -> ReproducibleSession:
    return ReproducibleSession(model, providers=[CPU], mode=mode, lockfile=path, lock_mode=lock_mode)


def ran(monkeypatch: pytest.MonkeyPatch, *plans: native.PlanRecord) -> None:
    """Let the hooks have recorded ``plans``."""
    monkeypatch.setattr(native, "records", lambda token: native.SessionRecords(9, 3, tuple(plans), ()))


def choices(path: Path) -> dict[str, int]:
    """Engines in the file's one environment by key."""
    held = read(path)
    assert held is not None
    (section,) = held.environments.values()
    return {key: choice.engine for key, choice in section.choices.items()}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"lock_mode": "record"}, "without a lockfile"),
        ({"lockfile": "x", "lock_mode": "write"}, "'replay', 'record', 'update'"),
        ({"lockfile": "x", "lock_mode": "record", "mode": "observe"}, "needs mode 'pin' or 'strict'"),
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ReproducibleSession(MODEL, providers=[CPU], **arguments)  # type: ignore[arg-type]


def test_a_file_to_replay_must_be_there(tmp_path: Path) -> None:
    for mode in ("observe", "pin", "strict"):
        with pytest.raises(LockfileError, match=r"no such file to replay\. Remedy: Record it with `ortlock lock"):
            session(tmp_path / "none.json", mode=mode)
    assert list(tmp_path.iterdir()) == []


def test_record_then_replay(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    expected = [value.tolist() for value in recording.run(None, feeds())]
    assert recording.save_lockfile() == 0
    assert choices(path) == {}
    for mode in ("pin", "strict"):
        replaying = session(path, mode=mode)
        assert [value.tolist() for value in replaying.run(None, feeds())] == expected
        report = replaying.report()
        assert report.lockfile is not None
        assert (report.lockfile.mode, report.lockfile.applied, report.lockfile.path) == ("replay", True, str(path))
        assert report.to_dict()["lockfile"]["fingerprint"] == next(iter(json.loads(path.read_text())["environments"]))
        assert f"lockfile: {path} (replay, environment " in str(report)
        assert "## Lockfile" in report.to_markdown()
    assert session(path).save_lockfile() == 0
    assert ReproducibleSession(MODEL, providers=[CPU]).report().to_dict()["lockfile"] is None


def test_save_needs_a_lockfile() -> None:
    with pytest.raises(ValueError, match="no lockfile"):
        ReproducibleSession(MODEL, providers=[CPU]).save_lockfile()


def test_another_models_file_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    text = path.read_text()
    for lock_mode in ("replay", "record", "update"):
        with pytest.raises(LockfileError, match="another model"):
            session(path, lock_mode, model=models.trivial())
    path.write_text(text[:-20])
    for lock_mode in ("replay", "record", "update"):
        with pytest.raises(LockfileError, match="no valid JSON"):
            session(path, lock_mode)
    assert path.read_text() == text[:-20]


def elsewhere(path: Path) -> None:
    """Make the file one that was recorded with another ONNX Runtime."""
    held = json.loads(path.read_text())
    (section,) = held["environments"].values()
    section["identity"]["onnxruntime"] = "1.0.0"
    path.write_text(json.dumps({**held, "environments": {"0123456789abcdef": section}}))


def test_another_environment_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    elsewhere(path)
    with pytest.raises(NotReproducibleError, match=r"in it differs in onnxruntime: 1\.0\.0 in the file, .* here"):
        session(path, mode="strict")
    with pytest.warns(ReproducibilityWarning, match=r"onnxruntime: 1\.0\.0") as caught:
        pin = session(path)
    assert len(caught) == 1
    report = pin.report()
    assert report.lockfile is not None
    assert not report.lockfile.applied
    assert report.verdict == "bitwise"  # the bits are the same all the same, by ortlock's own rule
    # Recording adds this environment and keeps the other.
    session(path, "record", mode="strict").save_lockfile()
    assert len(json.loads(path.read_text())["environments"]) == 2
    session(path, mode="strict")


def test_only_what_was_chosen_here_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    ran(
        monkeypatch,
        PLAN,
        replace(PLAN, key=OTHER, status="refused"),
        replace(PLAN, key="c" * 32, status="let through"),
        replace(PLAN, key="d" * 32, source="lockfile"),
        replace(PLAN, key=""),
    )
    assert recording.save_lockfile() == 1
    assert choices(path) == {KEY: 58}
    assert recording.save_lockfile() == 0


def test_record_keeps_and_update_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    session(path, "record").save_lockfile()
    ran(monkeypatch, replace(PLAN, engine=7), replace(PLAN, key=OTHER, engine=9))
    session(path, "record").save_lockfile()
    assert choices(path) == {KEY: 58, OTHER: 9}
    session(path, "update").save_lockfile()
    assert choices(path) == {KEY: 7, OTHER: 9}


def test_what_the_extension_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    session(path, "record").save_lockfile()
    monkeypatch.undo()
    told: list[tuple[str, list[str], bool]] = []
    recording: list[int] = []

    def set_lock(token: int, name: str, choices: list[native.Choice], *, exclusive: bool) -> None:
        told.append((name, [choice.key for choice in choices], exclusive))

    monkeypatch.setattr(native, "set_lock", set_lock)
    monkeypatch.setattr(native, "set_recording", recording.append)
    session(path)
    session(path, "record")
    assert [(keys, exclusive) for _, keys, exclusive in told] == [([KEY], True), ([KEY], False)]
    assert told[0][0] != told[1][0]
    assert len(recording) == 1
    session(path, "update")
    assert told[2][1:] == ([], False)
    session(path, mode="observe")
    assert len(told) == 3
    assert len(recording) == 2


def test_new_choices_are_written_while_it_runs_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    ran(monkeypatch, PLAN)
    recording._ortlock.plans_changed(1)
    assert choices(path) == {KEY: 58}
    ran(monkeypatch, PLAN, replace(PLAN, key=OTHER))
    recording._ortlock.plans_changed(2)
    assert choices(path) == {KEY: 58}  # only a moment later
    del recording
    gc.collect()
    assert choices(path) == {KEY: 58, OTHER: 58}


def test_it_is_written_when_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    code = (
        "import sys; from ortlock import ReproducibleSession, models; "
        "kept = ReproducibleSession(models.trivial(), providers=['CPUExecutionProvider'], lockfile=sys.argv[1], "
        "lock_mode='record')"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert choices(path) == {}


def test_a_write_that_fails_costs_no_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "lock.json"
    path.parent.mkdir()
    recording = session(path, "record")
    path.parent.rmdir()
    ran(monkeypatch, PLAN)
    with pytest.warns(ReproducibilityWarning, match=r"lock.json: it cannot be written: No such file"):
        recording._ortlock.plans_changed(1)
    assert recording.run(["s"], feeds())[0].tolist() == [3, 5]
    with pytest.raises(LockfileError, match="cannot be written"):
        recording.save_lockfile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del recording
        gc.collect()


REFUSED = native.PlanFailure(
    *("ConvolutionForward", ("x f32[1,3,8,8]", "w f32[64,3,3,3]", "y f32[1,64,4,4]"), "pad=1,1", 0, False),
    *(native.NOT_LOCKED, KEY),
)


def test_a_shape_that_was_not_recorded_is_told_with_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    net = models.conv_net(2, size=8)
    session(path, "record", model=net).save_lockfile()
    strict = session(path, mode="strict", model=net)
    held = [REFUSED]
    monkeypatch.setattr(native, "records", lambda token: native.SessionRecords(9, 3, (), tuple(held)))
    place = "Non-zero status code returned while running Conv node. Name:'conv_0' Status Message: "
    x = {"x": models.seeded_input((1, 3, 8, 8))}
    real = strict._sess
    for text in (f"{place}CUDNN_FE failure 8", f"{place}Failed to allocate memory"):
        strict._sess = Failing(real, C.Fail(text))
        with pytest.raises(NotReproducibleError) as raised:
            strict.run(None, x)
        assert raised.value.subject.endswith("of conv_0 (Conv)")
        assert raised.value.reason == f"{path} holds no choice for it: this shape was not recorded."
        assert "ortlock lock MODEL" in raised.value.remedy
    # Another node's trouble is its own.
    strict._sess = Failing(real, C.Fail(f"{place.replace('conv_0', 'conv_2')}Failed to allocate memory"))
    with pytest.raises(C.Fail):
        strict.run(None, x)
    held[:] = [replace(REFUSED, cause=native.CANNOT_BE_MADE, key=OTHER)]
    strict._sess = Failing(real, C.Fail(f"{place}CUDNN_FE failure 8"))
    with pytest.raises(NotReproducibleError, match=rf"{path} names \(key {OTHER}\)"):
        strict.run(None, x)


def test_nodes_are_found_by_the_shape_of_their_weights() -> None:
    net = models.conv_net(3)
    assert nodes_with_weights(None, net, ("x f32[1]", "w f32[64,64,3,3]")) == ("conv_2 (Conv)", "conv_4 (Conv)")
    assert nodes_with_weights(None, net, ("w f32[64,3,3,3] nhwc",)) == ("conv_0 (Conv)",)
    assert nodes_with_weights(None, net, ("w f32[64,65,3,3]",)) == ()
    assert nodes_with_weights(None, net, ("x f32[64,64,3,3]",)) == ()
    assert nodes_with_weights(None, b"no model", ("w f32[64,64,3,3]",)) == ()
    assert nodes_with_weights(None, models.decoder(), ("w f32[64,32,4,4]",)) == ("convtranspose_4 (ConvTranspose)",)
