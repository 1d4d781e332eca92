"""``ortlock lock``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortlock import models
from ortlock.cli import main
from ortlock.cli.inputs import InputError
from ortlock.cli.lock import parse_widths


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.conv_net(2))
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["lock", *map(str, arguments), "--provider", "cpu"])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_it_says_what_it_wrote(capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    status, out, err = call(capsys, net, "-o", path, "--shapes", "x:1x3x16x16,x:1x3x24x24")
    first, second = out.splitlines()
    assert (status, err) == (0, "")
    assert first.startswith(f"{path}: 0 choices for 2 shapes on CPUExecutionProvider, 0 of them new (environment ")
    assert second == "replayed in a new session: 0 choices from the file, 0 others, same bits for 2 of 2 shapes"
    assert json.loads(path.read_text())["model"]["name"] == "net.onnx"


def test_json(capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    status, out, _ = call(capsys, net, "-o", path, "--dim", "size=16", "--json")
    result: dict[str, Any] = json.loads(out)
    assert status == 0
    assert result["check"] == {"replayed": 0, "others": 0, "same": 1}
    assert (result["shapes"], result["choices"], result["written"]) == (1, 0, 0)
    assert list(json.loads(path.read_text())["environments"]) == [result["environment"]]
    status, out, _ = call(capsys, net, "-o", path, "--dim", "size=16", "--json", "--no-check", "--update")
    assert (status, json.loads(out)["check"]) == (0, None)


def test_inputs_from_a_file(capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path) -> None:
    values = tmp_path / "x.npz"
    np.savez(values, x=np.zeros((1, 3, 8, 8), np.float32))
    assert call(capsys, net, "-o", tmp_path / "l.json", "--inputs", values, "--inputs", values)[0] == 0
    status, _, err = call(capsys, net, "-o", tmp_path / "l.json", "--inputs", values, "--widths", "8")
    assert status == 2
    assert "--inputs gives the shapes itself" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--widths", "8,x"), "--widths '8,x': give sizes"),
        (("--widths", "8"), "--widths: size of x has no size; set it with --dim"),
        (("--widths", "8", "--shapes", "x:1x3x8x8"), "both give shapes"),
        ((), "no size: size. Set them with --dim size=N"),
        (("--shapes", "x:1x4x8x8"), "axis 1 is 3 in the model, not 4"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    status, out, err = call(capsys, net, "-o", tmp_path / "lock.json", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert text in err


def test_models_and_lockfiles_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path
) -> None:
    path = tmp_path / "lock.json"
    status, _, err = call(capsys, tmp_path / "none.onnx", "-o", path)
    assert (status, "none.onnx: no such file" in err) == (2, True)
    (tmp_path / "broken.onnx").write_bytes(b"\xff" * 50)
    status, _, err = call(capsys, tmp_path / "broken.onnx", "-o", path)
    assert (status, "broken.onnx: ONNX Runtime cannot load it" in err, err.count("\n")) == (2, True, 1)
    assert not path.exists()
    for content, text in (("{", "line 1: no valid JSON"), ("{}", "no lockfile")):
        path.write_text(content)
        status, _, err = call(capsys, net, "-o", path, "--dim", "size=8")
        assert (status, err.count("\n"), text in err) == (2, 1, True)
        assert path.read_text() == content
    assert call(capsys, net, "-o", tmp_path / "missing" / "lock.json", "--dim", "size=8")[0] == 2


def test_widths_vary_the_last_axis(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import onnx

    model = onnx.load_model_from_string(models.conv_net(1))
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
    net = tmp_path / "wide.onnx"
    onnx.save_model(model, str(net))
    status, out, _ = call(capsys, net, "-o", tmp_path / "l.json", "--dim", "size=8", "--widths", "8:32:8", "--json")
    assert (status, json.loads(out)["shapes"]) == (0, 4)


@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=5), st.integers(1, 500), st.integers(0, 300), st.integers(1, 99)
)
def test_every_form_of_widths(sizes: list[int], first: int, span: int, step: int) -> None:
    expected = list(dict.fromkeys([*sizes, *range(first, first + span + 1, step)]))
    assert parse_widths(f"{','.join(map(str, sizes))},{first}:{first + span}:{step}") == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "5:1", "1:2:3:4", "1:2:0", "1,,2", "٣"])
def test_what_is_no_width(text: str) -> None:
    with pytest.raises(InputError, match="FIRST:LAST:STEP"):
        parse_widths(text)
