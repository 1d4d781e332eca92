"""Sessions with a lockfile, as far as the CPU provider shows them; choices are what the hooks would have recorded."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import LockfileError, NotReproducibleError, ReproducibilityWarning, ReproducibleSession, models, native
from ortlock.environment import environment
from ortlock.lockfile import (
    LockedChoice,
    LockMode,
    ModelRecord,
    Section,
    describe_difference,
    files,
    fingerprint,
    merge,
    read,
)
from ortlock.operators import nodes_with_weights
from ortlock.session import lock as session_lock
from ortlock.session.guard import no_plan
from tests.cpu.session_models import CPU, Failing, add_model, exact_outputs, feeds, random_model

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


@pytest.mark.parametrize(("value", "kind"), [(3, "int"), (b"lock.json", "bytes")])
def test_a_lockfile_that_is_no_path_is_named(value: Any, kind: str) -> None:
    with pytest.raises(TypeError) as raised:
        ReproducibleSession(MODEL, providers=[CPU], lockfile=value)
    assert str(raised.value) == f"lockfile: give a path, not {kind}."


@pytest.mark.parametrize("mode", ["pin", "strict"])
@pytest.mark.parametrize("lock_mode", ["record", "update"])
def test_a_folder_to_record_in_must_be_there(tmp_path: Path, mode: str, lock_mode: str) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "gone" / "lock.json")
    for path in (tmp_path / "missing" / "lock.json", tmp_path / "link.json"):
        with pytest.raises(LockfileError) as raised:
            session(path, lock_mode, mode=mode)
        # In the words of a write that fails.
        with pytest.raises(LockfileError) as written:
            merge(
                tmp_path / "missing" / "lock.json",
                ModelRecord("m", "ab" * 32, 1),
                "name",
                Section({}, {}),
                replace=False,
            )
        assert raised.value.reason == written.value.reason == "it cannot be written: No such file or directory."
        assert raised.value.remedy == written.value.remedy
        assert raised.value.path == str(path)
    assert [one.name for one in tmp_path.iterdir()] == ["link.json"]


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
    path.write_text(json.dumps({**held, "environments": {fingerprint(section["identity"]): section}}))


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
    # What the last write runs into is told unless it was told before.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del recording
        gc.collect()
    path.parent.mkdir()
    recording = session(path, "record")
    path.parent.rmdir()
    with pytest.warns(ReproducibilityWarning, match=r"lock.json: it cannot be written: No such file"):
        del recording


@pytest.mark.parametrize("enabled", [0, 1])
def test_what_opening_the_file_raises_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], enabled: int
) -> None:
    with pytest.raises(LockfileError, match="cannot be read: embedded null byte"):
        ReproducibleSession(MODEL, providers=[CPU], lockfile="a\0b", enable_fallback=enabled)

    def fail(path: Path) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(session_lock, "read", fail)
    with pytest.raises(ValueError, match=r"^no such luck$"):
        ReproducibleSession(MODEL, providers=[CPU], lockfile=tmp_path / "lock.json", enable_fallback=enabled)
    assert "Falling back" not in capfd.readouterr().out


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


def image(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a folder as it is: a file that was written anew differs even if its bytes do not."""
    return {item.name: (item.read_bytes(), item.stat().st_mtime_ns) for item in path.iterdir()}


class Somewhere(os.PathLike[str]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


@pytest.mark.parametrize("kind", [str, Path, Somewhere])
def test_paths_and_modes_in_every_form(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    path = tmp_path / "lock.json"
    recording = ReproducibleSession(MODEL, providers=[CPU], lockfile=kind(path), lock_mode=LockMode.RECORD)
    assert recording.save_lockfile() == 0
    report = ReproducibleSession(MODEL, providers=[CPU], lockfile=kind(path)).report()
    assert report.lockfile is not None
    assert (report.lockfile.path, report.lockfile.mode, report.lockfile.applied) == (str(path), "replay", True)


@pytest.mark.parametrize("lock_mode", ["REPLAY", "write", " record", 1])
def test_unknown_lock_modes_touch_nothing(tmp_path: Path, lock_mode: Any) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    before = image(tmp_path)
    with pytest.raises(ValueError, match=rf"lock_mode={lock_mode!r} is no lock mode; .*'replay', 'record', 'update'"):
        session(path, lock_mode)
    assert image(tmp_path) == before


@pytest.mark.parametrize("mode", ["observe", "pin", "strict"])
def test_replay_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    before = image(tmp_path)
    ran(monkeypatch, PLAN)
    replaying = session(path, mode=mode)
    replaying._ortlock.seen = -1
    replaying.run(None, feeds())
    assert replaying.save_lockfile() == 0
    del replaying
    gc.collect()
    assert image(tmp_path) == before


def test_the_model_is_known_by_its_bytes(tmp_path: Path) -> None:
    path, file = tmp_path / "lock.json", tmp_path / "add.onnx"
    file.write_bytes(MODEL)
    session(path, "record", model=file).save_lockfile()
    held = read(path)
    assert held is not None
    assert (held.model.name, held.model.size) == ("add.onnx", len(MODEL))
    for model in (MODEL, str(file), file):
        assert session(path, mode="strict", model=model).report().lockfile is not None
    moved = file.rename(tmp_path / "renamed.onnx")
    session(path, "record", model=moved).save_lockfile()
    assert read(path) == held  # the name is for people, and stays
    session(tmp_path / "bytes.json", "record").save_lockfile()
    of_bytes = read(tmp_path / "bytes.json")
    assert of_bytes is not None
    assert of_bytes.model.name == "model given as bytes"
    assert of_bytes.model.sha256 == held.model.sha256


def test_a_model_that_cannot_be_read_is_onnxruntimes_matter(tmp_path: Path) -> None:
    for lock_mode in ("replay", "record"):
        with pytest.raises(C.NoSuchFile):
            session(tmp_path / "lock.json", lock_mode, model=str(tmp_path / "none.onnx"))
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let this be an environment with another ONNX Runtime from now on."""
    real = environment

    def move(version: str) -> None:
        monkeypatch.setattr(session_lock, "environment", lambda *a, **k: replace(real(*a, **k), onnxruntime=version))

    return move


def test_pin_in_another_environment_says_so_once_and_replays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: Callable[[str], None]
) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    session(path, "record").save_lockfile()
    moved("0.0.1")
    told: list[Any] = []
    monkeypatch.setattr(native, "set_lock", lambda *arguments, **named: told.append(arguments))
    with pytest.warns(ReproducibilityWarning, match=r"in the file, 0\.0\.1 here.* Choices are made anew\.") as caught:
        pin = session(path)
    assert [Path(entry.filename).name for entry in caught] == [Path(__file__).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pin.set_providers([CPU])
        assert exact_outputs(pin.run(None, feeds())) == exact_outputs(session(path, mode="observe").run(None, feeds()))
    assert told == []
    report = pin.report()
    (event,) = report.events
    assert (event.code, event.status) == ("lockfile-environment", "holds")
    assert report.lockfile is not None
    assert (report.lockfile.applied, report.lockfile.held, report.lockfile.others) == (False, 0, 1)
    assert f"lockfile: {path} (replay, environment {report.lockfile.fingerprint}, not in force): 0 choices held" in str(
        report
    )
    assert list(choices(path)) == [KEY]


def test_strict_in_another_environment_names_file_difference_and_remedy(
    tmp_path: Path, moved: Callable[[str], None]
) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    before = image(tmp_path)
    moved("0.0.1")
    with pytest.raises(NotReproducibleError) as raised:
        session(path, mode="strict")
    assert raised.value.subject == f"lockfile {path}"
    assert raised.value.reason.startswith("It was not recorded in this environment: the environment in it differs in ")
    assert raised.value.reason.endswith(" in the file, 0.0.1 here.")
    assert raised.value.reason.count(" in the file, ") == 1
    assert "the file keeps both" in raised.value.remedy
    assert image(tmp_path) == before


def test_observe_reads_the_file_and_does_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: Callable[[str], None]
) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    told: list[Any] = []
    monkeypatch.setattr(native, "set_lock", lambda *arguments, **named: told.append(arguments))
    moved("0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        observing = session(path, mode="observe")
    assert told == []
    report = observing.report()
    assert report.lockfile is not None
    assert (report.lockfile.applied, report.events) == (False, ())


def test_the_whole_choice_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    legacy = replace(
        PLAN, api="legacy", knobs=(), math_type=2, key=OTHER, numerical_notes=("TENSOR_CORE",), workspace_bytes=-1
    )
    ran(monkeypatch, replace(PLAN, knobs=((28, -3), (2, 1))), legacy)
    assert session(path, "record").save_lockfile() == 2
    raw = json.loads(path.read_text())
    (section,) = raw["environments"].values()
    assert section["choices"][KEY] == {
        "api": "graph",
        "operation": "ConvolutionForward",
        "tensors": ["x f32[1,3,8,8]", "w f32[64,3,3,3]"],
        "attributes": "pad=1,1",
        "engine": 58,
        "knobs": {"2": 1, "28": -3},
        "math_type": None,
        "numerical_notes": [],
        "behavior_notes": [],
        "workspace_bytes": 4096,
    }
    assert section["choices"][OTHER]["math_type"] == 2
    assert section["choices"][OTHER]["workspace_bytes"] == 0
    held = read(path)
    assert held is not None
    assert next(iter(held.environments.values())).choices[OTHER] == LockedChoice.of(legacy)


def test_choices_are_told_to_the_extension_as_they_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    session(path, "record").save_lockfile()
    told: dict[str, Any] = {}

    def set_lock(token: int, name: str, choices: list[native.Choice], *, exclusive: bool) -> None:
        told.update(token=token, name=name, choices=choices, exclusive=exclusive)

    monkeypatch.setattr(native, "set_lock", set_lock)
    replaying = session(path, mode="strict")
    assert told["token"] == replaying._ortlock.number
    assert told["choices"] == [native.Choice(KEY, False, 58, ((2, 1),), 0, 4096)]
    assert (told["name"].startswith("replay "), told["exclusive"]) == (True, True)
    first = told["name"]
    session(path)
    assert told["name"] == first  # sessions with the same choices share what the plan book keeps


def test_the_report_counts_what_came_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN, replace(PLAN, key=OTHER))
    session(path, "record").save_lockfile()
    replaying = session(path)
    ran(
        monkeypatch,
        replace(PLAN, source="lockfile"),
        replace(PLAN, source="lockfile", tensors=("the same key",)),
        replace(PLAN, key="c" * 32),
        replace(PLAN, key="d" * 32, status="let through"),
        replace(PLAN, key="e" * 32, status="refused"),
    )
    report = replaying.report()
    name = report.to_dict()["lockfile"]["fingerprint"]
    assert report.to_dict()["lockfile"] == {
        "path": str(path),
        "mode": "replay",
        "fingerprint": name,
        "applied": True,
        "held": 2,
        "replayed": 1,
        "others": 2,
        "written": 0,
    }
    line = f"{path} (replay, environment {name}, in force): 2 choices held, 1 replayed, 2 others"
    assert f"lockfile: {line}" in str(report).splitlines()
    assert f"## Lockfile\n\n{line}.\n" in report.to_markdown()
    recording = session(path, "record")
    recording.save_lockfile()
    assert ", 2 others, 1 written" in str(recording.report())


def test_writes_go_on_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    now = [100.0]
    monkeypatch.setattr(session_lock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for count, (seconds, expected) in enumerate([(0.0, 1), (1.0, 1), (1.1, 3), (1.0, 3), (1.1, 5)], 1):
        now[0] += seconds
        ran(monkeypatch, *(replace(PLAN, key=f"{number:032x}") for number in range(count)))
        recording._ortlock.plans_changed(count)
        assert len(choices(path)) == expected
    assert recording.save_lockfile() == 0


def test_a_session_that_has_nothing_new_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    session(path, "record").save_lockfile()
    before = image(tmp_path)
    for lock_mode in ("record", "update"):
        again = session(path, lock_mode)
        again._ortlock.plans_changed(1)
        again.save_lockfile()
        del again
        gc.collect()
        assert image(tmp_path) == before


def test_threads_that_run_one_session_lose_and_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    monkeypatch.setattr(session_lock, "_PAUSE_SECONDS", 0.0)
    plans: list[native.PlanRecord] = []
    monkeypatch.setattr(native, "records", lambda token: native.SessionRecords(9, 3, tuple(plans), ()))

    def work(number: int) -> None:
        for index in range(5):
            plans.append(replace(PLAN, key=f"{number:016x}{index:016x}"))
            recording._ortlock.plans_changed(len(plans))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recording.save_lockfile()
    assert set(choices(path)) == {plan.key for plan in plans}
    assert len(plans) == 30


ENDING = """
import sys
from ortlock import native
from tests.cpu.test_session_lock import KEY, OTHER, PLAN, choices, replace, session
from pathlib import Path
path = Path(sys.argv[1])
kept = session(path, "record")
plans = [PLAN]
native.records = lambda token: native.SessionRecords(9, 3, tuple(plans), ())
kept._ortlock.plans_changed(1)
plans.append(replace(PLAN, key=OTHER))
kept._ortlock.plans_changed(2)
print(list(choices(path)) == [KEY])
if sys.argv[2] == "raise":
    raise SystemError("the program fails")
sys.exit(0)
"""


@pytest.mark.parametrize("way", ["exit", "raise"])
def test_what_was_put_off_is_written_when_the_process_ends(tmp_path: Path, way: str) -> None:
    path = tmp_path / "lock.json"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", ENDING, str(path), way], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.stdout, "LockfileError" in done.stderr) == ("True\n", False)
    assert choices(path) == {KEY: 58, OTHER: 58}


def test_a_run_whose_choices_cannot_be_written_gives_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    path.write_text("<<<<<<< HEAD\n")
    ran(monkeypatch, PLAN)
    guard = recording._ortlock
    guard.seen = -1  # the hooks have seen something
    with pytest.warns(ReproducibilityWarning, match=r"lock\.json: line 1: no valid JSON") as caught:
        assert recording.run(["s"], feeds())[0].tolist() == [3, 5]
    assert [Path(entry.filename).name for entry in caught] == [Path(__file__).name]
    guard.seen = -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recording.run(["s"], feeds())[0].tolist() == [3, 5]
    assert path.read_text() == "<<<<<<< HEAD\n"
    # Once the file is whole again, nothing has been lost.
    path.unlink()
    assert recording.save_lockfile() == 1
    assert choices(path) == {KEY: 58}


def test_a_file_that_became_another_models_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    kept = [session(path, "record")]
    session(path, "record", model=models.trivial()).save_lockfile()
    text = path.read_text()
    ran(monkeypatch, PLAN)
    with pytest.raises(LockfileError, match="another model: model given as bytes"):
        kept[0].save_lockfile()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept.clear()  # it was told already
    assert path.read_text() == text


def test_two_sessions_record_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    first, second = session(path, "record"), session(path, "record", mode="strict")
    ran(monkeypatch, PLAN)
    assert first.save_lockfile() == 1
    ran(monkeypatch, replace(PLAN, key=OTHER, engine=9))
    assert second.save_lockfile() == 1
    assert choices(path) == {KEY: 58, OTHER: 9}


def test_every_refusal_is_told_in_its_own_words() -> None:
    told = no_plan(REFUSED, "m.lock.json", ("a (Conv)", "b (Conv)"))
    assert told.subject == (
        "ConvolutionForward (x f32[1,3,8,8], w f32[64,3,3,3], y f32[1,64,4,4], pad=1,1) of a (Conv) or b (Conv)"
    )
    assert told.reason == "m.lock.json holds no choice for it: this shape was not recorded."
    assert "lock_mode='record'" in told.remedy
    told = no_plan(replace(REFUSED, cause=native.CANNOT_BE_MADE), "m.lock.json")
    assert told.subject.endswith("pad=1,1)")
    assert told.reason == f"cuDNN cannot make the deterministic plan that m.lock.json names (key {KEY})."
    assert "lock_mode='update'" in told.remedy
    told = no_plan(replace(REFUSED, cause=native.NOTHING_DETERMINISTIC, candidates=4), "m.lock.json")
    assert "m.lock.json" not in str(told)
    assert "4 candidates" in told.reason


def test_an_async_run_is_told_of_the_lockfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    guard = session(path, mode="strict")._ortlock
    monkeypatch.setattr(native, "records", lambda token: native.SessionRecords(9, 3, (), (REFUSED,)))
    place = "while running Conv node. Name:'c' Status Message: "
    assert f"{path} holds no choice for it" in guard.finished([], f"{place}CUDNN_FE failure 8", 0)[1]
    assert f"{path} holds no choice for it" in guard.finished([], f"{place}Failed to allocate memory", 0)[1]
    assert guard.finished([], "while running Conv node. Name:'d' Status: no memory", 0)[1].endswith("no memory")


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    recording = ReproducibleSession(MODEL, providers=[CPU], lockfile="lock.json", lock_mode="record")
    monkeypatch.chdir(tmp_path / "later")
    recording.save_lockfile()
    assert (tmp_path / "lock.json").exists()
    assert not (tmp_path / "later" / "lock.json").exists()


def test_a_session_that_was_refused_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotReproducibleError):
        session(tmp_path / "lock.json", "record", mode="strict", model=random_model())
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_choices_stay_with_the_environment_they_were_made_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: Callable[[str], None]
) -> None:
    """As after a fall back to the CPU, or set_providers() with other options."""
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    ran(monkeypatch, PLAN)
    moved("0.0.1")
    recording.set_providers([CPU])
    recording.save_lockfile()
    held = read(path)
    assert held is not None
    found = {section.identity["onnxruntime"]: list(section.choices) for section in held.environments.values()}
    assert found.get("0.0.1", []) == []


def test_a_session_that_moves_records_in_its_new_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: Callable[[str], None]
) -> None:
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    ran(monkeypatch, PLAN)
    recording.save_lockfile()
    moved("0.0.1")
    recording.set_providers([CPU])
    ran(monkeypatch, replace(PLAN, count=2))
    recording.save_lockfile()
    held = read(path)
    assert held is not None
    assert len(held.environments) == 2


def test_a_session_that_moves_replays_the_old_environment_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: Callable[[str], None]
) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    session(path, "record").save_lockfile()
    told: list[list[str]] = []

    def set_lock(token: int, name: str, choices: list[native.Choice], *, exclusive: bool) -> None:
        told.append([choice.key for choice in choices])

    monkeypatch.setattr(native, "set_lock", set_lock)
    replaying = session(path)
    assert told == [[KEY]]
    moved("0.0.1")
    with pytest.warns(ReproducibilityWarning, match="Choices are made anew"):
        replaying.set_providers([CPU])
    assert told[-1] == []


def test_the_count_is_of_what_changed_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    first, second = session(path, "record"), session(path, "record")
    ran(monkeypatch, PLAN)
    assert first.save_lockfile() == 1
    assert second.save_lockfile() == 0  # the other was quicker
    assert session(path, "update").save_lockfile() == 0  # the same choice


def test_choices_come_back_where_the_file_is_removed_while_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    recording = session(path, "record")
    ran(monkeypatch, PLAN)
    recording.save_lockfile()
    path.unlink()
    ran(monkeypatch, PLAN, replace(PLAN, key=OTHER))
    recording.save_lockfile()
    assert set(choices(path)) == {KEY, OTHER}


def test_a_choice_that_could_not_be_made_is_not_called_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    session(path, "record").save_lockfile()
    recording = session(path, "record")
    ran(monkeypatch, replace(PLAN, engine=7))  # by the rule, although the file holds the key
    written = recording.save_lockfile()
    assert (written, choices(path)) in ((0, {KEY: 58}), (1, {KEY: 7}))


def test_a_number_without_end_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    path.write_text('{"format": "ortlock lockfile", "version": ' + "1" * 5000 + "}")
    with pytest.raises(LockfileError):
        read(path)


def test_a_damaged_file_never_starts_the_fallback(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    path.write_text('{"format": "ortlock lockfile", "version": ' + "1" * 5000 + "}")
    with pytest.raises(LockfileError):
        session(path)


def test_a_knob_beyond_64_bits_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    session(path, "record").save_lockfile()
    path.write_text(path.read_text().replace('"2": 1', f'"2": {2**63}'))
    with pytest.raises(LockfileError):
        session(path)


def test_an_environment_under_a_name_that_is_not_its_own_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    held = json.loads(path.read_text())
    (section,) = held["environments"].values()
    section["identity"]["onnxruntime"] = "1.0.0"
    path.write_text(json.dumps(held))
    with pytest.raises((LockfileError, NotReproducibleError)):
        session(path, mode="strict")


def test_a_difference_in_long_values_is_seen() -> None:
    long = "sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512bw avx512vl avx512_vnni"
    told = describe_difference({"cpu instruction sets": f"{long} amx_tile"}, [{"cpu instruction sets": long}])
    there, here = told.removeprefix("the environment in it differs in cpu instruction sets: ").split(" in the file, ")
    assert there != here.removesuffix(" here")


def test_a_session_that_ends_while_another_writes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    ran(monkeypatch, PLAN)
    first, second = session(path, "record"), session(path, "record")
    second.itself = second  # a cycle, so that the collector ends it, whenever that is
    del second
    real = files.read

    def collecting(path: Path) -> Any:
        gc.collect()
        return real(path)

    monkeypatch.setattr(files, "read", collecting)
    monkeypatch.setattr(files, "_WAIT_SECONDS", 0.05)  # 60 in earnest
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("always", category=ReproducibilityWarning)
        with warnings.catch_warnings(record=True) as caught:
            first.save_lockfile()
    assert [str(entry.message) for entry in caught] == []


def test_another_nameless_nodes_trouble_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    guard = session(path, mode="strict")._ortlock
    monkeypatch.setattr(native, "records", lambda token: native.SessionRecords(9, 3, (), (REFUSED,)))
    with pytest.raises(NotReproducibleError):
        guard.run_failed(C.Fail("while running Conv node. Name:'' Status Message: CUDNN_FE failure 8"))
    guard.run_failed(C.Fail("while running Conv node. Name:'' Status Message: Failed to allocate memory"))


def test_an_empty_lock_mode_is_no_lock_mode(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    session(path, "record").save_lockfile()
    with pytest.raises(ValueError, match="no lock mode"):
        session(path, "")
