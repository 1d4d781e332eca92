"""The commands, as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ortlock import __version__, models
from ortlock.cli import main
from ortlock.cli.errors import does_not_run
from ortlock.report.model import Status
from ortlock.verify.result import Evidence

CUDA_HERE = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.conv_net(2))
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ortlock", "--version"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, f"ortlock {__version__}\n")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys)[0] == 2
    status, out, _ = call(capsys, "--help")
    assert status == 0
    for name in ("demo", "doctor", "bench", "Exit status"):
        assert name in out


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "demo", "--provider", "cpu", "--sessions", "2", "--runs", "1", "--threads", "2")
    assert status == 0
    assert out.startswith("Distinct outputs of 4 runs: 2 sessions, 2 threads each, CPUExecutionProvider\n")
    assert "This ran on the CPU provider" in out
    for output in models.DEMO_OUTPUTS:
        assert output in out
    assert "bitwise (mode strict, CPUExecutionProvider)" in out


def test_demo_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("demo", "--provider", "cpu", "--sessions", "1", "--runs", "2", "--threads", "1", "--json")
    status, out, err = call(capsys, *arguments)
    result: dict[str, Any] = json.loads(out)
    assert status == 0
    assert err == ""
    assert result["runs"] == 2
    assert result["holds"] is True
    assert result["distinct"]["conv_transpose"] == {"stock": 1, "ortlock": 1}
    assert result["report"]["schema"] == 1
    assert result["report"]["verdict"] == "bitwise"


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "doctor", "--json")
    result = json.loads(out)
    assert status == 0
    assert result["works"] is True
    assert result["available_providers"] == onnxruntime.get_available_providers()
    assert result["environment"]["onnxruntime"] == onnxruntime.__version__
    assert {setting["key"] for setting in result["settings"]} >= {
        "intra_op_num_threads",
        "use_deterministic_compute",
    } - (set() if CUDA_HERE else {"use_deterministic_compute"})
    if not CUDA_HERE:
        assert result["cuda_usable"] is False
        assert result["interposer"]["attached"] is False
        assert "no CUDA provider" in result["advice"][0]
    assert call(capsys, "doctor")[0] == 0


def test_bench_fixed_shape(capsys: pytest.CaptureFixture[str], net: Path) -> None:
    few = ("--rounds", "2", "--runs", "2", "--warmup", "1", "--sessions", "2", "--provider", "cpu", "--dim", "size=16")
    status, out, _ = call(capsys, "bench", str(net), *few, "--json")
    result = json.loads(out)
    assert status == 0
    assert result["holds"] is True
    assert list(result["sides"]) == ["stock", "observe", "pin", "strict"]
    for side in result["sides"].values():
        assert side["distinct"] == 1
        assert side["fixed"]["ms"] > 0
        assert "changing" not in side
    assert result["sides"]["stock"]["fixed"]["ratio"] == 1
    status, out, _ = call(capsys, "bench", str(net), *few)
    assert status == 0
    assert "distinct of 4" in out


def test_bench_several_shapes_and_files(capsys: pytest.CaptureFixture[str], net: Path, tmp_path: Path) -> None:
    few = ("--rounds", "2", "--runs", "2", "--warmup", "0", "--sessions", "1", "--provider", "cpu", "--json")
    status, out, _ = call(capsys, "bench", str(net), *few, "--shapes", "x:1x3x16x16,1x3x24x24")
    result = json.loads(out)
    assert (status, result["shapes"]) == (0, 2)
    assert result["sides"]["pin"]["changing"]["ms"] > 0
    files = []
    for size in (8, 12):
        np.savez(tmp_path / f"{size}.npz", x=np.ones((1, 3, size, size), np.float32))
        files += ["--inputs", str(tmp_path / f"{size}.npz")]
    assert json.loads(call(capsys, "bench", str(net), *few, *files)[1])["shapes"] == 2


def test_bench_shows_what_strict_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="dice", seed=1.0)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    path = tmp_path / "random.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    )
    few = ("--rounds", "1", "--runs", "1", "--sessions", "2", "--provider", "cpu")
    status, out, _ = call(capsys, "bench", str(path), *few, "--json")
    result = json.loads(out)
    assert status == 1
    assert "dice (RandomNormalLike)" in result["sides"]["strict"]["refused"]
    assert result["sides"]["stock"]["distinct"] > 1
    status, out, _ = call(capsys, "bench", str(path), *few)
    assert status == 1
    assert "strict refuses: dice (RandomNormalLike)" in out


def test_bench_shapes_bind_shared_dimensions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "n"]) for name in ("x", "w", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:2], values[2:])
    path = tmp_path / "add.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    )
    few = ("--rounds", "1", "--runs", "1", "--sessions", "1", "--provider", "cpu", "--json")
    status, out, err = call(capsys, "bench", str(path), *few, "--shapes", "x:2x3,5x7")
    assert (status, err) == (0, "")
    assert json.loads(out)["shapes"] == 2


def test_json_is_alone_on_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, net: Path
) -> None:
    """ONNX Runtime tells some things with print, such as a fall back."""
    real = onnxruntime.InferenceSession.run

    def chatty(self: Any, *arguments: Any) -> Any:
        print("EP Error ... Falling back")
        return real(self, *arguments)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", chatty)
    few = ("--provider", "cpu", "--sessions", "1", "--runs", "1", "--json")
    for arguments in (("demo", "--threads", "1"), ("bench", str(net), "--rounds", "1", "--dim", "size=8")):
        status, out, err = call(capsys, *arguments, *few)
        assert status == 0
        assert json.loads(out)["holds"] is True
        assert "Falling back" in err


def test_a_session_that_moves_to_another_provider_is_no_measurement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, net: Path
) -> None:
    real = onnxruntime.InferenceSession.get_providers

    def moved(self: Any) -> Any:
        return ["OtherExecutionProvider"] if type(self) is onnxruntime.InferenceSession else real(self)

    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", moved)
    for arguments in (("demo", "--sessions", "1"), ("bench", str(net), "--rounds", "1", "--dim", "size=8")):
        status, out, err = call(capsys, *arguments, "--provider", "cpu", "--runs", "1")
        assert (status, out) == (2, "")
        assert "ONNX Runtime moved the session from CPUExecutionProvider to OtherExecutionProvider" in err
        assert err.count("\n") == 1


@pytest.mark.skipif(CUDA_HERE, reason="this ONNX Runtime has a CUDA provider")
def test_a_cuda_provider_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU package on a machine whose GPU cannot be used: auto says so and takes the CPU, doctor cannot tell."""
    offered = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: offered)
    status, out, _ = call(capsys, "doctor", "--json")
    result = json.loads(out)
    assert status == 2
    assert (result["works"], result["cuda_usable"]) == (None, False)
    assert result["cuda_problem"]
    assert "the provider cannot be used here" in result["advice"][0]
    demo = ("demo", "--sessions", "1", "--runs", "1", "--threads", "1", "--json")
    status, out, err = call(capsys, *demo)
    assert (status, json.loads(out)["provider"]) == (0, "CPUExecutionProvider")
    assert err.startswith("ortlock: CUDAExecutionProvider cannot be used: ")
    assert err.count("\n") == 1
    status, out, err = call(capsys, *demo, "--provider", "cuda")
    assert (status, out, err.count("\n")) == (2, "", 1)


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "missing file": (("bench", "no.onnx"), "no.onnx: no such file. Give the path of an ONNX model."),
    "corrupt model": (("bench", "corrupt.onnx"), "corrupt.onnx: ONNX Runtime cannot load it: "),
    "empty file": (("bench", "empty.onnx"), "empty.onnx: the file is empty."),
    "folder": (("bench", "."), ".: a folder, not a model."),
    "open dimension": (("bench", "net.onnx"), "these dimensions of the model have no size: size."),
    "wrong shape": (("bench", "net.onnx", "--shapes", "x:1x4x8x8"), "axis 1 is 3 in the model, not 4"),
    "shape that does not run": (
        ("bench", "net.onnx", "--shapes", "x:1x3x0x0"),
        "net.onnx: does not run with these inputs",
    ),
    "negative seed": (("bench", "net.onnx", "--seed", "-1"), "Invalid value for '--seed'"),
    "empty inputs": (("bench", "net.onnx", "--inputs", "empty.onnx"), "--inputs empty.onnx: No data left in file."),
    "seed of given inputs": (
        ("bench", "net.onnx", "--inputs", "in.npz", "--seed", "0"),
        "--inputs gives the values itself; leave out --seed.",
    ),
    "seconds without end": (("verify", "net.onnx", "--seconds", "inf"), "inf seconds never end."),
    "seconds that are no number": (("verify", "net.onnx", "--seconds", "nan"), "nan seconds never end."),
    "too many threads": (("verify", "net.onnx", "--threads", "1025"), "Invalid value for '--threads'"),
    "unknown command": (("lokc",), "No such command 'lokc'"),
    "bad number": (("demo", "--sessions", "0"), "Invalid value for '--sessions'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, net: Path, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corrupt.onnx").write_bytes(b"\xff" * 200)
    (tmp_path / "empty.onnx").write_bytes(b"")
    arguments, text = BAD[case]
    provider = ("--provider", "cpu") if arguments[0] in ("bench", "verify") else ()
    status, out, err = call(capsys, *arguments, *provider)
    assert status == 2
    assert out == ""
    assert err.startswith("ortlock: ")
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            RuntimeError("No corresponding Numpy type for Tensor Type. bfloat16"),
            "bfloat16. NumPy lacks",
        ),
        (RuntimeError("can't start new thread"), "can't start new thread. Give a smaller --threads."),
        (RuntimeError("Failed to allocate memory for requested buffer."), "buffer. Give smaller --shapes or --dim."),
        (
            RuntimeError("Got invalid dimensions for input: x\n Please fix it."),
            "it. See --shapes and --dim.",
        ),
        (RuntimeError("Unexpected input data type"), "does not run: Unexpected input data type."),
    ],
)
def test_remedies_go_with_the_cause(error: Exception, told: str) -> None:
    text = str(does_not_run(Path("m.onnx"), "does not run", error))
    assert text.startswith("m.onnx: does not run: ")
    assert told in text
    assert ("--shapes" in text) == ("--shapes" in told)
    assert ".." not in text


def test_no_run_is_said() -> None:
    found = Evidence(Status.UNKNOWN, (), ("sha256:0",), ("sha256:1",), "", 0.0, None)
    assert str(found) == "unknown: no run was compared, 1 input (0.0 s)"


def test_unknown_mode_in_the_environment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTLOCK_MODE", "careful")
    status, _, err = call(capsys, "doctor")
    assert status == 2
    assert err == "ortlock: ORTLOCK_MODE='careful' is no mode of ortlock; choose one of 'observe', 'pin', 'strict'.\n"


@pytest.mark.skipif(CUDA_HERE, reason="this ONNX Runtime has a CUDA provider")
def test_cuda_asked_for_and_absent(capsys: pytest.CaptureFixture[str], net: Path) -> None:
    for arguments in (("demo",), ("bench", str(net), "--dim", "size=8")):
        status, out, err = call(capsys, *arguments, "--provider", "cuda")
        assert (status, out) == (2, "")
        assert err.startswith("ortlock: CUDAExecutionProvider: asked for, and ONNX Runtime ")
        assert "ortlock doctor" in err


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("cudnn_conv_algo_search", "--option 'cudnn_conv_algo_search': give NAME=VALUE"),
        ("=EXHAUSTIVE", "give NAME=VALUE"),
        ("cudnn_conv_algo_search=HEURISTIC", "CPUExecutionProvider has no options; use --provider cuda."),
    ],
)
def test_options_of_the_provider(capsys: pytest.CaptureFixture[str], net: Path, option: str, told: str) -> None:
    status, _, err = call(capsys, "verify", str(net), "--provider", "cpu", "--runs", "1", "--option", option)
    assert status == 2
    assert told in err
    assert len(err.strip().splitlines()) == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m ortlock doctor | head -c 10"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=os.environ, timeout=120
    )
    assert "Traceback" not in done.stderr
