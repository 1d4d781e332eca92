"""Golden outputs beside a lockfile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortlock import GoldenOutputsError, ReproducibleSession, digest, models
from ortlock.cli import main
from ortlock.lockfile import read
from ortlock.verify.golden_outputs import GoldenOutputs, check_verified, write_outputs
from tests.cpu.planted import CPU

SHAPES = ("--shapes", "x:1x3x16x16,x:1x3x24x24")
Y = {"y": np.array([1, 2], np.float32)}
Z = {"y": np.array([3, -0.0], np.float32)}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model, and where its lockfile and golden outputs go."""
    model = tmp_path / "net.onnx"
    model.write_bytes(models.conv_net(2))
    return model, tmp_path / "net.lock.json", tmp_path / "net.npz"


def call(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path, Path], *more: str) -> tuple[int, str, str]:
    model, lock, outputs = map(str, files)
    quick = ("--provider", "cpu", "--runs", "1", "--stress", "again")
    status = main(["verify", model, *quick, "--lock", lock, "--golden-outputs", outputs, *more])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def shifted(files: tuple[Path, Path, Path]) -> None:
    """Make one element of every golden output another one, in the file and in the lockfile's digests."""
    _, lock, outputs = files
    text, changed = lock.read_text(), {}
    for golden, arrays in GoldenOutputs(outputs).held.items():
        new = {name: array.copy() for name, array in arrays.items()}
        for array in new.values():
            array.flat[0] = np.nextafter(array.flat[0], np.float32(np.inf))
        found = digest(new)
        text, changed[found] = text.replace(golden, found), new
    lock.write_text(text)
    write_outputs(outputs, changed, ())


def test_outputs_are_written_and_their_distance_told(
    capsys: pytest.CaptureFixture[str], files: tuple[Path, Path, Path]
) -> None:
    model, lock, outputs = files
    assert call(capsys, files, "--golden", *SHAPES)[0] == 0
    held = read(lock)
    assert held is not None
    (section,) = held.environments.values()
    found = GoldenOutputs(outputs).held
    assert set(found) == {golden.outputs for golden in section.golden.values()}
    assert all(digest(arrays) == golden for golden, arrays in found.items())
    assert str(outputs) not in lock.read_text()
    status, out, _ = call(capsys, files, *SHAPES, "--json")
    assert (status, [one["differences"] for one in json.loads(out)["golden"]]) == (0, [[], []])
    shifted(files)
    status, out, _ = call(capsys, files, *SHAPES, "--json")
    assert status == 1
    for one in json.loads(out)["golden"]:
        (output,) = one["differences"]
        measured = output["difference"]
        assert (measured["max_ulp"], measured["size"] - measured["equal"]) == (1, 1)
        assert 0 < measured["max_abs"] < 1e-5
    name = ReproducibleSession(model, providers=[CPU]).get_outputs()[0].name
    status, out, _ = call(capsys, files, *SHAPES)
    assert status == 1
    assert "max ULP" in out
    assert any(name in line and " 1 " in line for line in out.splitlines())


def test_what_the_lockfile_names_is_kept(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path, Path]) -> None:
    for size in ("16", "24"):
        assert call(capsys, files, "--golden", "--dim", f"size={size}")[0] == 0
    assert len(GoldenOutputs(files[2]).held) == 2
    assert call(capsys, files, "--shapes", "x:1x3x24x24")[0] == 0
    write_outputs(files[2], {digest(Y): Y}, ())
    assert set(GoldenOutputs(files[2]).held) == {digest(Y)}


def broken(files: tuple[Path, Path, Path], change: Any) -> None:
    held = GoldenOutputs(files[2]).held
    arrays = {f"{key.removeprefix('sha256:')}/{name}": a for key, of in held.items() for name, a in of.items()}
    np.savez(files[2], **{change[0](key): change[1](array) for key, array in arrays.items()})


@pytest.mark.parametrize(
    ("key", "array", "said"),
    [
        (lambda key: f"{key}2", lambda a: a, "it lacks the output "),
        (lambda key: f"0{key[1:]}" if key[0] != "0" else f"1{key[1:]}", lambda a: a, "it holds no outputs with the"),
        (lambda key: key, lambda a: a.astype(np.float64), " is float64["),
        (lambda key: key, lambda a: a.reshape(-1), ", and the model gives float32[1,"),
        (lambda key: key, lambda a: a + 1, "its outputs are not those with the digest sha256:"),
        (lambda key: "y", lambda a: a, "it holds no golden outputs: an array is named 'y'"),
    ],
)
def test_other_files_are_one_clear_line(
    capsys: pytest.CaptureFixture[str], files: tuple[Path, Path, Path], key: Any, array: Any, said: str
) -> None:
    call(capsys, files, "--golden", "--dim", "size=16")
    broken(files, (key, array))
    status, out, err = call(capsys, files, "--dim", "size=16")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(f"ortlock: {files[2]}: ")
    assert said in err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path, Path]) -> None:
    status, _, err = call(capsys, files, "--dim", "size=16")
    assert (status, len(err.splitlines())) == (2, 1)
    assert f"{files[2]}: it cannot be read: No such file or directory." in err
    assert main(["verify", str(files[0]), "--golden-outputs", str(files[2])]) == 2
    assert "--golden-outputs goes with the golden digests of a lockfile" in capsys.readouterr().err


def test_a_file_of_another_kind_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.npz"
    path.write_text("notes")
    with pytest.raises(GoldenOutputsError, match="it cannot be read"):
        write_outputs(path, {digest(Y): Y}, ())
    assert path.read_text() == "notes"
    with pytest.raises(GoldenOutputsError, match="it cannot be written"):
        write_outputs(tmp_path / "none" / "file.npz", {digest(Y): Y}, ())


def test_only_what_was_verified_is_written(tmp_path: Path) -> None:
    check_verified(tmp_path, Y, digest(Y))
    with pytest.raises(GoldenOutputsError, match="one more run gave other bits"):
        check_verified(tmp_path, Z, digest(Y))
