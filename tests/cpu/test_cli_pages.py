"""``--html``: what a page may take the place of, and what is told when it cannot be written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ortlock.cli import main
from ortlock.cli import page as cli_page
from ortlock.cli.page import MARKER
from ortlock.html import comparison_page
from tests.cpu.planted import chain
from tests.cpu.test_compare import plain
from tests.cpu.test_pytest_plugin import drawing

QUICK = ("--provider", "cpu", "--runs", "1", "--stress", "again")
SIDES = ("--a", "cpu", "--b", "cpu,threads=1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, its inputs, a lockfile, a text and an empty file, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(chain(3))
    np.savez("in.npz", x=np.ones(4, np.float32))
    Path("notes.txt").write_text("by hand")
    Path("empty.html").touch()
    assert main(["lock", "m.onnx", "-o", "lock.json", "--provider", "cpu", "--dim", "n=4"]) == 0
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(arguments)
    shown = capsys.readouterr()
    return status, shown.out, shown.err


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("m.onnx", "the command uses this file itself"),
        ("./in.npz", "the command uses this file itself"),
        ("lock.json", "the command uses this file itself"),
        ("link.html", "the command uses this file itself"),
        ("notes.txt", "cannot be written: there is a file that is no page of ortlock's"),
        ("none/page.html", "cannot be written: there is no folder none"),
        (".", "cannot be written: it is a folder"),
        ("/dev/null", "cannot be written: it is no regular file"),
        ("-", "a page goes to a file"),
    ],
)
def test_pages_take_the_place_of_nothing_else(
    capsys: pytest.CaptureFixture[str], folder: Path, page: str, told: str
) -> None:
    (folder / "link.html").symlink_to("m.onnx")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    verify = ("verify", "m.onnx", *QUICK, "--inputs", "in.npz", "--lock", "lock.json")
    compare = ("compare", "m.onnx", "--a", "cpu", "--b", "cpu,lockfile=lock.json", "--inputs", "in.npz")
    for arguments in (verify, compare):
        status, out, err = call(capsys, *arguments, "--html", page)
        assert (status, out) == (2, "")
        assert err.startswith(f"ortlock: --html {Path(page)}: ")
        assert told in err
        assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_model_of_the_other_side_is_kept(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "b.onnx").write_bytes(chain(4))
    sides = ("--a", "cpu", "--b", "cpu,model=b.onnx")
    status, _, err = call(capsys, "compare", "m.onnx", *sides, "--html", "b.onnx")
    assert status == 2
    assert err == (
        "ortlock: --html b.onnx: the command uses this file itself, as the model of side 'cpu,model=b.onnx'. "
        "Give another path.\n"
    )
    assert (folder / "b.onnx").read_bytes() == chain(4)


def test_older_pages_and_empty_files_are_replaced(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    page = folder / "empty.html"
    assert call(capsys, "verify", "m.onnx", *QUICK, "--dim", "n=4", "--html", "empty.html")[0] == 0
    assert MARKER in page.read_bytes()[:1024]
    assert call(capsys, "compare", "m.onnx", *SIDES, "--dim", "n=4", "--html", "empty.html")[0] == 0
    assert "Comparison: same bits" in page.read_text()
    assert not list(folder.glob(".*"))


def full(*_: object) -> object:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("model", "status", "said"), [(chain, 2, "holds"), (drawing, 1, "violated")])
def test_a_page_that_fails_at_the_end_hides_no_result(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    model: Callable[..., bytes],
    status: int,
    said: str,
    as_json: bool,
) -> None:
    (folder / "m.onnx").write_bytes(chain(3) if model is chain else drawing())
    monkeypatch.setattr(cli_page, "replacing", full)
    more = ("--mode", "observe", "--html", "page.html", *(("--json",) if as_json else ()))
    found, out, err = call(capsys, "verify", "m.onnx", *QUICK, *more)
    assert found == status
    assert (json.loads(out)["evidence"]["status"] == said) if as_json else f"{said}: " in out
    assert err == (
        "ortlock: --html page.html: cannot be written: No space left on device. The result is told in full.\n"
    )


def test_one_page_shows_one_comparison(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("ortlock.compare.run.compare", full)
    status, out, err = call(capsys, "compare", "m.onnx", *SIDES, "--shapes", "x:4,5", "--html", "page.html")
    assert (status, out) == (2, "")
    assert err == "ortlock: --html shows one comparison, and there are 2; give one shape.\n"
    assert not (folder / "page.html").exists()


def test_every_page_has_the_marker() -> None:
    from ortlock.compare.run import compare

    found = compare(plain(chain(1)), plain(chain(1)), {"x": np.ones(4, np.float32)})
    assert comparison_page(found).encode().index(MARKER) < 200
