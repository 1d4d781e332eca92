"""``ortlock lock``, as a user calls it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortlock import ReproducibleSession, models, native
from ortlock.cli import main
from ortlock.cli.feeds import parse_widths
from ortlock.cli.inputs import InputError
from ortlock.lockfile import read
from tests.cpu.test_session_lock import KEY, OTHER, PLAN, elsewhere, image, ran


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
        (("--widths", "8", "--dim", "size=8"), "--widths varies size; leave it out of --dim"),
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
    status, _, err = call(capsys, net, "-o", tmp_path / "l.json", "--widths", "8:32:8")
    assert (status, "--widths: size of x has no size; set it with --dim" in err) == (2, True)


def test_widths_of_square_images(capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path) -> None:
    """One name is one size: with the width the height varies."""
    status, out, _ = call(capsys, net, "-o", tmp_path / "l.json", "--widths", "8,16", "--json")
    assert (status, json.loads(out)["shapes"]) == (0, 2)


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


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A net whose height and width have names of their own."""
    import onnx

    model = onnx.load_model_from_string(models.conv_net(1))
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
    path = tmp_path / "wide.onnx"
    onnx.save_model(model, str(path))
    return path


def recorded(path: Path) -> dict[str, dict[str, int]]:
    """Engines by key, by environment."""
    held = read(path)
    assert held is not None
    return {
        name: {key: choice.engine for key, choice in section.choices.items()}
        for name, section in held.environments.items()
    }


def replaying(monkeypatch: pytest.MonkeyPatch, *plans: native.PlanRecord, others: int = 0) -> None:
    """Let the first session have chosen ``plans``, and every later one have found all but ``others`` in the file."""
    tokens: list[int] = []

    def records(token: int) -> native.SessionRecords:
        if token not in tokens:
            tokens.append(token)
        again = tokens.index(token) > 0
        sources = ["lockfile" if again and index >= others else "ranking" for index in range(len(plans))]
        found = (replace(plan, source=source) for plan, source in zip(plans, sources, strict=True))
        return native.SessionRecords(9, 3, tuple(found), ())

    monkeypatch.setattr(native, "records", records)


def test_choices_are_counted(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    replaying(monkeypatch, PLAN, replace(PLAN, key=OTHER, engine=9))
    status, out, err = call(capsys, net, "-o", path, "--dim", "size=8")
    assert (status, err) == (0, "")
    (environment,) = recorded(path)
    first, second = out.splitlines()
    assert first.startswith(f"{path}: 2 choices for 1 shape on CPUExecutionProvider, 2 of them new (environment ")
    assert f"(environment {environment}, " in first
    assert second == "replayed in a new session: 2 choices from the file, 0 others, same bits for 1 of 1 shape"
    assert recorded(path) == {environment: {KEY: 58, OTHER: 9}}


def test_json_has_these_keys(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    replaying(monkeypatch, PLAN)
    status, out, err = call(capsys, net, "-o", path, "--shapes", "x:1x3x8x8,1x3x4x4", "--json")
    result = json.loads(out)
    assert (status, err) == (0, "")
    assert result.pop("seconds") >= 0
    assert result == {
        "model": str(net),
        "lockfile": str(path),
        "provider": "CPUExecutionProvider",
        "environment": next(iter(recorded(path))),
        "shapes": 2,
        "choices": 1,
        "written": 1,
        "check": {"replayed": 1, "others": 0, "same": 2},
    }


def test_choices_of_another_run_and_other_environments_stay(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    replaying(monkeypatch, PLAN)
    call(capsys, net, "-o", path, "--dim", "size=8")
    (here,) = recorded(path)
    elsewhere(path)
    (there,) = recorded(path)
    for engine, plan in ((3, replace(PLAN, engine=3)), (3, replace(PLAN, key=OTHER, engine=4))):
        replaying(monkeypatch, plan)
        status, out, _ = call(capsys, net, "-o", path, "--dim", "size=12", "--json")
        assert (status, json.loads(out)["written"]) == (0, 1)
        assert recorded(path)[here][KEY] == engine
    assert json.loads(out)["choices"] == 2
    assert recorded(path) == {there: {KEY: 58}, here: {KEY: 3, OTHER: 4}}
    # Chosen anew, what is there is replaced; what no shape of this run needs stays.
    replaying(monkeypatch, replace(PLAN, engine=77))
    status, out, _ = call(capsys, net, "-o", path, "--dim", "size=8", "--update", "--json")
    assert (status, json.loads(out)["written"]) == (0, 1)
    assert recorded(path) == {there: {KEY: 58}, here: {KEY: 77, OTHER: 4}}


def test_a_second_time_nothing_is_written(capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "lock.json"
    call(capsys, net, "-o", path, "--dim", "size=8")
    before = image(path.parent)
    for more in ((), ("--update",), ("--no-check",)):
        status, out, _ = call(capsys, net, "-o", path, "--dim", "size=8", *more)
        assert (status, "0 of them new" in out, "replayed" in out) == (0, True, "--no-check" not in more)
        gc.collect()
        assert image(path.parent) == before


def test_a_choice_that_is_not_from_the_file_does_not_hold(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaying(monkeypatch, PLAN, replace(PLAN, key=OTHER), others=1)
    status, out, err = call(capsys, net, "-o", tmp_path / "lock.json", "--dim", "size=8")
    assert (status, err) == (1, "")
    assert out.endswith("1 choice from the file, 1 other, same bits for 1 of 1 shape\n")
    assert call(capsys, net, "-o", tmp_path / "lock.json", "--dim", "size=8", "--no-check")[0] == 0


def test_other_bits_do_not_hold(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ReproducibleSession.run

    def run(self: Any, names: Any, feed: Any) -> Any:
        outputs = real(self, names, feed)
        replays = self.report().lockfile.mode == "replay"
        return [output + 1 for output in outputs] if replays and feed["x"].shape[2] == 8 else outputs

    monkeypatch.setattr(ReproducibleSession, "run", run)
    arguments = (net, "-o", tmp_path / "lock.json", "--shapes", "x:1x3x8x8,1x3x16x16")
    status, out, _ = call(capsys, *arguments)
    assert (status, out.endswith("same bits for 1 of 2 shapes\n")) == (1, True)
    status, out, _ = call(capsys, *arguments, "--json")
    assert (status, json.loads(out)["check"]["same"]) == (1, 1)


def test_widths_give_these_shapes(
    capsys: pytest.CaptureFixture[str], wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    real = ReproducibleSession.run

    def run(self: Any, names: Any, feed: Any) -> Any:
        shapes.append(feed["x"].shape)
        return real(self, names, feed)

    monkeypatch.setattr(ReproducibleSession, "run", run)
    for widths, expected in (("8", [8]), ("16,8,16", [16, 8]), ("8:13:4", [8, 12]), ("30,8:10", [30, 8, 9, 10])):
        shapes.clear()
        status, _, err = call(
            capsys, wide, "-o", tmp_path / "lock.json", "--dim", "size=6", "--widths", widths, "--no-check"
        )
        assert (status, err) == (0, "")
        assert shapes == [(1, 3, 6, width) for width in expected]


def test_widths_need_one_input_that_has_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    def model(*shapes: list[int | str | None]) -> Path:
        values = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, shape) for n, shape in enumerate(shapes)]
        nodes = [helper.make_node("Relu", [value.name], [f"y_{value.name}"]) for value in values]
        outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes]
        graph = helper.make_graph(nodes, "g", values, outputs)
        path = tmp_path / "relu.onnx"
        opsets = [helper.make_opsetid("", 13)]
        path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
        return path

    cases: list[tuple[list[list[int | str | None]], str]] = [
        ([["n", 4], ["n", 5]], "which of the inputs x0, x1 has the width cannot be told; give --shapes."),
        ([["n", 4]], "the last axis of x0 is 4 in the model; leave it out."),
        ([["n", None, "w"]], "axis 1 of x0 has no size"),
        ([[]], "which of the inputs x0 has the width"),
    ]
    for number, (shapes, text) in enumerate(cases):
        status, out, err = call(capsys, model(*shapes), "-o", tmp_path / f"{number}.json", "--widths", "8")
        assert (status, out, err.count("\n"), err.startswith("ortlock: --widths: ")) == (2, "", 1, True)
        assert text in err
    status, out, _ = call(
        capsys, model(["n", "w"], [2]), "-o", tmp_path / "two.json", "--widths", "8,9", "--dim", "n=3", "--json"
    )
    assert (status, json.loads(out)["shapes"]) == (0, 2)


@given(st.text(alphabet="0123456789:,- x", max_size=8))
def test_any_text_is_widths_or_told(text: str) -> None:
    told = ""
    try:
        sizes = parse_widths(text)
    except InputError as error:
        sizes, told = [1], str(error)
    assert told in ("", f"--widths {text!r}: give sizes, 64,96,128, or FIRST:LAST:STEP, e.g. 64:1280:32.")
    assert min(sizes) > 0
    assert len(set(sizes)) == len(sizes)


def test_no_output_is_bad_input(capsys: pytest.CaptureFixture[str], net: Path) -> None:
    status, out, err = call(capsys, net)
    assert (status, out, err) == (2, "", "ortlock: Missing option '-o' / '--output'.\n")


def test_files_that_are_no_lockfile_are_left_alone(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(models.trivial())
    path = tmp_path / "lock.json"
    assert call(capsys, other, "-o", path)[0] == 0
    binary = tmp_path / "weights.bin"
    binary.write_bytes(b"\xff" * 9)
    before = image(tmp_path)
    for output, text in (
        (path, "it is for another model: other.onnx with sha256 "),
        (binary, "weights.bin: it is no lockfile: it is no text. Remedy: Give another path. It was left as it is."),
        (tmp_path, "it cannot be read: Is a directory."),
    ):
        for more in ((), ("--update",), ("--json",)):
            status, out, err = call(capsys, net, "-o", output, "--dim", "size=8", *more)
            assert (status, out, err.count("\n"), text in err) == (2, "", 1, True)
    gc.collect()
    assert image(tmp_path) == before


@pytest.mark.parametrize(
    "arguments",
    [("--widths", "x"), (), ("--inputs", "none.npz"), ("--dim", "nope=1"), ("--shapes", "x:1x3x0x0")],
    ids=str,
)
def test_bad_input_makes_no_file(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert call(capsys, net, "-o", tmp_path / "lock.json", *arguments)[0] == 2
    gc.collect()
    assert [item.name for item in tmp_path.iterdir()] == ["net.onnx"]


def test_a_file_that_cannot_be_written_is_told_in_one_line(net: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ortlock", "lock", str(net), "-o", "none/lock.json", "--dim", "size=8"]
    done = subprocess.run(
        [*command, "--provider", "cpu"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "ortlock: none/lock.json: it cannot be written: No such file or directory. Remedy: Check that its folder is "
        "there and can be written to."
    ]


def test_observe_in_the_environment_is_told_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, net: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORTLOCK_MODE", "observe")
    status, _, err = call(capsys, net, "-o", tmp_path / "lock.json", "--dim", "size=8")
    assert status == 0 or "cannot load" not in err


def test_a_size_for_the_width_beside_widths_is_told(
    capsys: pytest.CaptureFixture[str], wide: Path, tmp_path: Path
) -> None:
    arguments = ("--dim", "size=8", "--dim", "width=5", "--widths", "8")
    assert call(capsys, wide, "-o", tmp_path / "lock.json", *arguments)[0] == 2


def test_a_choice_that_could_not_be_made_counts_once(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    for _ in range(2):
        ran(monkeypatch, PLAN)  # by the rule, also where the file holds the key
        _, out, _ = call(capsys, net, "-o", path, "--dim", "size=8", "--no-check", "--json")
    assert json.loads(out)["choices"] == len(next(iter(recorded(path).values())))


def test_update_with_the_same_choices_has_nothing_new(
    capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock.json"
    for _ in range(2):
        replaying(monkeypatch, PLAN)
        _, out, _ = call(capsys, net, "-o", path, "--dim", "size=8", "--update")
    assert "1 choice for 1 shape on CPUExecutionProvider, 0 of them new" in out
