"""Lockfiles as files: what is written comes back, what is damaged is told with its line, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlock import LockfileError
from ortlock.environment import Cpu, Environment, Gpu
from ortlock.lockfile import (
    LockedChoice,
    Lockfile,
    ModelRecord,
    Section,
    describe_difference,
    digest_of,
    fingerprint,
    identity,
    merge,
    read,
)
from ortlock.native import PlanRecord
from ortlock.settings import Kind, Origin, SettingState

MODEL = ModelRecord("model.onnx", "ab" * 32, 1234)
HERE: dict[str, str | None] = {"gpu": "NVIDIA H200", "cudnn": "9.19.0", "setting use_tf32": "1", "cublas": None}
ENV = fingerprint(HERE)
KEY = "0123456789abcdef0123456789abcdef"


def choice(engine: int = 58, **changes: Any) -> LockedChoice:
    values: dict[str, Any] = {
        "api": "graph",
        "operation": "ConvolutionForward",
        "tensors": ("x f32[1,3,8,8]", "w f32[4,3,3,3]", "y f32[1,4,8,8]"),
        "attributes": "pad=1,1",
        "engine": engine,
        "knobs": {"2": 1, "28": 5},
        "math_type": None,
        "numerical_notes": ("TENSOR_CORE",),
        "behavior_notes": (),
        "workspace_bytes": 4096,
    }
    return LockedChoice(**{**values, **changes})


def add(path: Path, key: str = KEY, engine: int = 58, name: str = ENV, *, replace: bool = False) -> int:
    return merge(path, MODEL, name, Section(HERE, {key: choice(engine)}), replace=replace)


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    assert read(path) is None
    assert add(path) == 1
    assert read(path) == Lockfile("ortlock lockfile", 1, MODEL, {ENV: Section(HERE, {KEY: choice()})})
    lines = path.read_text().splitlines()
    assert lines[0] == "{"
    assert f'    "{KEY}": {{' in lines
    # Sorted, so that two versions compare line by line; nothing left behind but the lock.
    assert json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True) == path.read_text().rstrip("\n")
    assert sorted(item.name for item in tmp_path.iterdir()) in (["lock.json"], ["lock.json", "lock.json.lock"])


def test_merging_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    add(path)
    assert add(path, engine=7) == 0
    assert add(path, KEY[::-1], 9) == 1
    there: dict[str, str | None] = {**HERE, "cudnn": "9.20.0"}
    assert merge(path, MODEL, fingerprint(there), Section(there, {KEY: choice()}), replace=False) == 1
    held = read(path)
    assert held is not None
    assert {key: one.engine for key, one in held.environments[ENV].choices.items()} == {KEY: 58, KEY[::-1]: 9}
    assert set(held.environments) == {ENV, fingerprint(there)}
    assert add(path, engine=7, replace=True) == 1
    again = read(path)
    assert again is not None
    assert {key: one.engine for key, one in again.environments[ENV].choices.items()} == {KEY: 7, KEY[::-1]: 9}


def test_nothing_new_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    add(path)
    before = path.stat().st_mtime_ns, path.stat().st_ino
    assert add(path) == 0
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_the_files_mode_and_links_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    add(target)
    target.chmod(0o640)
    link.symlink_to(target)
    assert add(link, KEY[::-1]) == 1
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    held = read(target)
    assert held is not None
    assert len(held.environments[ENV].choices) == 2


def damaged(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "lock.json"
    add(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "marked", "reason"),
    [
        ('"engine": 58', '"engine": 58,,', '"engine": 58,,', "no valid JSON"),
        ('"engine": 58', '"engine": "58"', '"engine": "58"', "Expected `int`, got `str`"),
        ('"engine": 58', '"engine": -1', '"engine": -1', "Expected `int` >= 0"),
        ('"api": "graph"', '"api": "graph",\n"speed": 1', '"speed"', "unknown field `speed`"),
        ('"knobs": {', '"knobs": {\n"5": 0, "x": 1,\n"3": 1,', '"x"', "matching regex"),
        ('"28": 5', '"28": "5"', '"28"', "Expected `int`, got `str`"),
        ('"y f32[1,4,8,8]"', "\n777777", "777777", "Expected `str`, got `int` - at `$.tensors[2]`"),
        (',\n     "workspace_bytes": 4096', "", f'"{KEY}"', "missing required field `workspace_bytes`"),
        ('"knobs": {', '"knobs": {},\n"empty": {', '"empty"', "unknown field `empty`"),
        ('"size": 1234', '"size": -5', '"size"', "Expected `int` >= 0 - at `$.model.size`"),
        ('"cublas": null', '"cublas": 13', '"cublas"', "Expected `str | null`, got `int`"),
        ('"model": {', '"modell": {},\n"model": {', '"modell"', "unknown field `modell`"),
        ('"engine": 58', '"engine": 58, "engine": 59', '"engine": 58', "'engine' comes twice"),
        ('"cublas": null', '"engine": "1",\n"engine": "2"', '"engine": "2"', "'engine' comes twice"),
        (f'"{KEY}"', '"not a key"', '"not a key"', "matching regex"),
        ('"version": 1', '"version": 2', '"version": 2', "version 2; this ortlock reads 1"),
        ("{\n", "<<<<<<< HEAD\n{\n", "<<<<<<< HEAD", "no valid JSON"),
        ('"api": "graph"', '"api": "\\uD83D"', '"\\uD83D"', "\\ud83d is half a character"),
        (f'"{ENV}"', '"\\udc00"', '"\\udc00"', "\\udc00 is half a character"),
    ],
)
def test_damage_is_told_with_its_line(tmp_path: Path, old: str, new: str, marked: str, reason: str) -> None:
    path = damaged(tmp_path, old, new)
    text = path.read_text()
    line = next(number for number, content in enumerate(text.splitlines(), 1) if marked in content)
    for act in (lambda: read(path), lambda: add(path, KEY[::-1])):
        with pytest.raises(LockfileError) as raised:
            act()
        assert f"line {line}:" in raised.value.reason
        assert reason in raised.value.reason
        assert str(raised.value).startswith(f"{path}: ")
        assert "Remedy: " in str(raised.value)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "line 1: no valid JSON"),
        (b"[1, 2]", "no lockfile"),
        (b"{}", "no lockfile"),
        (b"\xff\xfe\x00", "no text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"format": "ortlock lockfile", "version": 1}', "missing required field"),
    ],
)
def test_what_is_no_lockfile_is_left_alone(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "lock.json"
    path.write_bytes(content)
    with pytest.raises(LockfileError, match=reason):
        add(path)
    assert path.read_bytes() == content


def test_another_models_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    add(path)
    text = path.read_text()
    with pytest.raises(LockfileError, match=r"another model: model.onnx .* not other.onnx with cdcd"):
        merge(path, ModelRecord("other.onnx", "cd" * 32, 1), ENV, Section(HERE, {}), replace=True)
    assert path.read_text() == text


@pytest.mark.parametrize("where", ["missing/lock.json", "folder"])
def test_a_place_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(LockfileError, match=r"cannot be (written|read): (No such file|Is a directory)"):
        add(tmp_path / where)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that makes no files")
def test_a_lock_that_cannot_be_made_is_not_waited_for() -> None:
    with pytest.raises(LockfileError, match=r"^/proc/l\.json: it cannot be written: No such file or directory\. "):
        add(Path("/proc/l.json"))


def test_whole_characters_in_escapes_are_none_to_refuse(tmp_path: Path) -> None:
    path = damaged(tmp_path, '"model.onnx"', '"\\ud83d\\ude00.onnx"')
    held = read(path)
    assert held is not None
    assert held.model.name == "\U0001f600.onnx"


WRITER = """
import sys
from pathlib import Path
from tests.cpu.test_lockfile import add
number, path = int(sys.argv[1]), Path(sys.argv[2])
for index in range(40):
    add(path, f"{number:08x}{index:024x}", number)
"""


def test_processes_that_record_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    command = [sys.executable, "-c", WRITER]
    root = Path(__file__).parents[2]
    writers = [subprocess.Popen([*command, str(number), str(path)], cwd=root) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    held = read(path)
    assert held is not None
    expected = {f"{number:08x}{index:024x}": number for number in range(3) for index in range(40)}
    assert {key: one.engine for key, one in held.environments[ENV].choices.items()} == expected


hexadecimal = st.text("0123456789abcdef", min_size=32, max_size=32)
choices = st.builds(
    choice,
    engine=st.integers(0, 2**63 - 1),
    api=st.sampled_from(["graph", "legacy"]),
    operation=st.text(),
    tensors=st.lists(st.text(), max_size=3).map(tuple),
    knobs=st.dictionaries(st.integers(0, 99).map(str), st.integers(-(2**63), 2**63 - 1)),
    math_type=st.none() | st.integers(0, 3),
    workspace_bytes=st.integers(0, 2**63 - 1),
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(hexadecimal, choices, max_size=4), st.dictionaries(hexadecimal, choices, max_size=4))
def test_any_choices_survive_two_writes(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, LockedChoice], second: dict[str, LockedChoice]
) -> None:
    path = tmp_path_factory.mktemp("lock") / "lock.json"
    for part in (first, second):
        merge(path, MODEL, ENV, Section(HERE, part), replace=False)
    held = read(path)
    assert held is not None
    assert held.environments[ENV].choices == {**second, **first}


def test_choices_turn_into_those_of_the_extension_and_back() -> None:
    plan = PlanRecord(
        *("graph", "ConvolutionForward", ("x f32[1]",), "pad=0", 58, ((2, 1), (10, 3)), None, ("FFT",), ()),
        *(77, "used", 3, KEY),
    )
    locked = LockedChoice.of(plan)
    native = locked.native(KEY)
    assert (native.key, native.legacy, native.engine, native.knobs) == (KEY, False, 58, ((2, 1), (10, 3)))
    assert (native.math_type, native.workspace_bytes) == (0, 77)
    assert digest_of({KEY: locked}) == digest_of({KEY: LockedChoice.of(plan)})
    assert digest_of({KEY: locked}) != digest_of({KEY: choice()})


def surroundings(**gpu: Any) -> Environment:
    cpu = Cpu("x86_64", "some CPU", ("avx2",), 8, 4)
    values: dict[str, Any] = {
        "device_id": 0,
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "sm_count": 132,
        "driver": "580.1",
        "cuda_driver": "13.0",
        "cuda_runtime": "13.0",
        "cudnn": "9.19.0",
        "cublas": "13.1.0",
        "cublas_lt": "13.1.0",
    }
    device = Gpu(**{**values, **gpu}) if gpu != {"name": None} else None
    return Environment("0.1", "CPython 3.12", "Linux", "glibc", cpu, "1.31.1", "build", device, (("A", "1"),), ())


def setting(key: str, value: str, kind: Kind = Kind.PROVIDER_OPTION, provider: str | None = None) -> SettingState:
    return SettingState(key, str(kind), provider, value, None, Origin.DEFAULT, "", breaks=False)


def test_identity_holds_what_decides_and_nothing_else() -> None:
    states = [
        setting("use_tf32", "1", provider="CUDAExecutionProvider"),
        setting("intra_op_num_threads", "8", Kind.SESSION_OPTION),
        setting("OMP", "2", Kind.ENVIRONMENT),
        setting("absent", ""),
    ]
    here = identity(surroundings(), states)
    assert {name for name in here if name.startswith("setting")} == {"setting use_tf32"}
    assert here["cudnn"] == "9.19.0"
    assert here["variable A"] == "1"
    assert "cpu" not in here
    assert fingerprint(here) == fingerprint(identity(surroundings(device_id=3, cuda_driver="13.1"), states))
    for change in ({"driver": "581"}, {"cudnn": "9.20"}, {"sm_count": 114}, {"name": "NVIDIA H100"}):
        assert fingerprint(identity(surroundings(**change), states)) != fingerprint(here)
    assert fingerprint(identity(surroundings(), [setting("use_tf32", "0")])) != fingerprint(here)
    assert identity(surroundings(name=None), [])["cpu"] == "some CPU"


def test_differences_are_told_of_the_nearest() -> None:
    here = {"gpu": "A", "cudnn": "9.19", "driver": None}
    near = {"gpu": "A", "cudnn": "9.20", "driver": None}
    far = {"gpu": "B", "cudnn": "9.20", "driver": "1"}
    told = describe_difference(here, [far, near])
    assert told == "the nearest of 2 environments in it differs in cudnn: 9.20 in the file, 9.19 here"
    assert describe_difference(here, [far]).count(";") == 2
    assert "no environment" in describe_difference(here, [])
