"""The files that commands read and write, as a user names them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ortlock import ReproducibleSession
from ortlock.cli import main
from ortlock.pytest_plugin import assert_reproducible
from tests.cpu.planted import CPU, chain

QUICK = ("--provider", "cpu", "--runs", "1", "--stress", "again")
GOLDEN = ("verify", "m.onnx", *QUICK, "--inputs", "in.npz", "--golden")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, links to it, its inputs and a text, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(chain(3))
    Path("m.lock").write_bytes(chain(3))
    Path("soft").symlink_to("m.onnx")
    Path("hard").hardlink_to("m.onnx")
    Path("loop").symlink_to("loop")
    np.savez("in.npz", x=np.ones(4, np.float32))
    Path("notes.txt").write_text("by hand")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """Return the one line of a command that must leave everything as it is."""
    files = [path for path in folder.iterdir() if path.name != "loop"]
    before = {path: path.read_bytes() for path in files}
    capsys.readouterr()
    status = main(arguments)
    shown = capsys.readouterr()
    assert (status, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.name != "loop"} == before
    return shown.err.removeprefix("ortlock: ").rstrip("\n")


USED_TWICE = {
    "the model": (("lock", "m.onnx", "-o", "m.onnx"), "-o m.onnx", "MODEL"),
    "a soft link to it": (("lock", "m.onnx", "-o", "soft"), "-o soft", "MODEL"),
    "a hard link to it": (("lock", "m.onnx", "-o", "hard"), "-o hard", "MODEL"),
    "another way to it": (("lock", "soft", "-o", "./none/../m.onnx"), "-o none/../m.onnx", "MODEL"),
    "the inputs": (("lock", "m.onnx", "-o", "in.npz", "--inputs", "in.npz"), "-o in.npz", "--inputs"),
    "verify, the model": (("verify", "m.onnx", "--lock", "m.onnx", "--golden"), "--lock m.onnx", "MODEL"),
    "verify, the inputs": ((*GOLDEN, "--lock", "in.npz"), "--lock in.npz", "--inputs"),
    "verify, golden outputs": (
        (*GOLDEN, "--lock", "new.json", "--golden-outputs", "in.npz"),
        "--golden-outputs in.npz",
        "--inputs",
    ),
    "verify, both new": (
        (*GOLDEN, "--lock", "new.json", "--golden-outputs", "new.json"),
        "--golden-outputs new.json",
        "--lock",
    ),
    "verify, a new page": ((*GOLDEN, "--lock", "new.json", "--html", "new.json"), "--html new.json", "--lock"),
    "compare": (("compare", "m.onnx", "--a", "cpu", "--b", "cpu,threads=1", "--html", "soft"), "--html soft", "MODEL"),
}


@pytest.mark.parametrize("case", USED_TWICE)
def test_no_file_is_used_for_two_things(capsys: pytest.CaptureFixture[str], folder: Path, case: str) -> None:
    arguments, written, other = USED_TWICE[case]
    told = refused(capsys, folder, *arguments)
    assert told == f"{written}: the command uses this file itself, as {other}. Give another path."


def test_a_lock_is_no_other_file(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    told = refused(capsys, folder, "lock", "m.lock", "-o", "m")
    assert told == "-o m: the command locks it with m.lock, which is MODEL. Give another path."
    told = refused(capsys, folder, *GOLDEN, "--lock", "new.json", "--golden-outputs", "new.json.lock")
    assert told == (
        "--golden-outputs new.json.lock: the command locks --lock new.json with this file. Give another path."
    )


def test_golden_outputs_that_cannot_be_added_to_are_told_first(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    told = refused(capsys, folder, *GOLDEN, "--lock", "new.json", "--golden-outputs", "notes.txt")
    assert told.startswith("notes.txt: it cannot be read: this is no .npz file.")
    assert main([*GOLDEN, "--lock", "new.json", "--golden-outputs", "new.npz"]) == 0
    assert main([*GOLDEN, "--lock", "new.json", "--golden-outputs", "new.npz"]) == 0
    # What only reads them may be given what it likes, and says what is wrong with it.
    told = refused(capsys, folder, "verify", "m.onnx", *QUICK, "--inputs", "in.npz", "--lock", "m.onnx")
    assert told == "m.onnx: it is no lockfile: it is no text. Remedy: Give another path. It was left as it is."


def test_links_that_go_round_are_told(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert refused(capsys, folder, "lock", "m.onnx", "-o", "loop", "--dim", "n=4").startswith("loop: it cannot be ")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("verify", ""), "MODEL"),
        (("audit", ""), "MODEL"),
        (("bench", ""), "MODEL"),
        (("lock", "m.onnx", "-o", ""), "-o"),
        (("lock", "m.onnx", "--output", "", "-o", "new.json", "--inputs", ""), "--inputs"),
        (("verify", "m.onnx", "--lock", ""), "--lock"),
        ((*GOLDEN, "--lock", "new.json", "--golden-outputs", ""), "--golden-outputs"),
        (("compare", "m.onnx", "--a", "cpu", "--b", "cpu", "--html", ""), "--html"),
    ],
)
def test_empty_paths(capsys: pytest.CaptureFixture[str], folder: Path, arguments: tuple[str, ...], name: str) -> None:
    assert refused(capsys, folder, *arguments) == f"{name}: the path is empty. Give the path of a file."


def test_empty_paths_of_sessions(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^lockfile='': the path is empty; give the path of a file\.$"):
        ReproducibleSession("m.onnx", providers=[CPU], lockfile="")
    assert main(["lock", "m.onnx", "-o", "new.json", "--provider", "cpu", "--inputs", "in.npz"]) == 0
    with pytest.raises(ValueError, match=r"^golden_outputs='': the path is empty; give the path of a file\.$"):
        assert_reproducible("m.onnx", {"x": np.ones(4, np.float32)}, "new.json", providers=[CPU], golden_outputs="")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("lock", "m.onnx", "-o", "-"), "-o -: a lockfile goes to a file. Give a path, e.g. -o model.lock.json."),
        ((*GOLDEN, "--lock", "-"), "--lock -: a lockfile goes to a file. Give a path, e.g. --lock model.lock.json."),
        (
            (*GOLDEN, "--lock", "new.json", "--golden-outputs", "-"),
            "--golden-outputs -: an .npz archive goes to a file. Give a path, e.g. --golden-outputs golden.npz.",
        ),
    ],
)
def test_nothing_is_written_to_standard_output(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: tuple[str, ...], told: str
) -> None:
    assert refused(capsys, folder, *arguments) == told


def test_a_file_may_be_called_so(folder: Path) -> None:
    assert main(["lock", "m.onnx", "-o", "./-", "--provider", "cpu", "--inputs", "in.npz"]) == 0
    assert '"format"' in (folder / "-").read_text()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_that_the_terminal_cannot_show(folder: Path, encoding: str) -> None:
    name = "modelé 中.onnx"
    (folder / name).write_bytes(chain(3))
    escaped = name.encode(encoding, "backslashreplace")
    # A locale of UTF-8, so that the file's name is what it is here.
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "ortlock", "verify", name, *QUICK, "--inputs", "in.npz"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(escaped + b" on CPUExecutionProvider: 1 input,")
    missing = [sys.executable, "-m", "ortlock", "audit", f"no {name}"]
    done = subprocess.run(missing, capture_output=True, check=False, env=environment, timeout=120)
    assert (done.returncode, done.stderr.startswith(b"ortlock: no " + escaped)) == (2, True)
