"""The benchmark verify_evidence.py, run on the CPU provider."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ortlock import models

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "verify_evidence.py"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    if not SCRIPT.exists():
        pytest.skip("the benchmarks are not here")
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("verify_parts")


def measured(folder: Path, *arguments: object) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    if not SCRIPT.exists():
        pytest.skip("the benchmarks are not here")
    output = folder / "out.json"
    command = [sys.executable, SCRIPT, "--provider", "cpu", "--quick", "--output", output, *arguments]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    return done, json.loads(output.read_text())


def test_what_varies_is_found_and_named(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    done, found = measured(tmp_path, "--parts", "observe", "memory", "localise", "--html", pages)
    assert done.returncode == 0, done.stderr
    assert found["complete"] is True
    assert (found["provider"], found["environment"]["gpu"]) == ("CPUExecutionProvider", None)
    parts = found["parts"]
    *elsewhere, draws = parts["observe"]["rows"]
    assert [row["skipped"] for row in elsewhere] == ["looked for on CUDAExecutionProvider"] * 3
    assert (draws["status"], draws["op_type"], draws["runs_until_found"]) == ("violated", "RandomNormalLike", 1)
    assert draws["distinct_of_12"] == 12
    assert "violated" in (pages / "observe_randomnormallike.html").read_text()
    assert parts["memory"]["skipped"].startswith("needs --provider cuda: ")
    (planted,) = parts["localise"]["rows"]
    assert planted["node"] == "planted (RandomNormalLike)"
    assert planted["right"] is True
    assert planted["model_nodes"] >= 60
    assert planted["looked_at"] == planted["nodes"]
    assert planted["seconds"] < 60
    assert "memory is skipped: " in done.stderr


def test_a_model_in_a_file_holds_under_every_stress(tmp_path: Path) -> None:
    model = tmp_path / "rec.onnx"
    model.write_bytes(models.conv_net(2))
    done, found = measured(tmp_path, "--parts", "ocr", "--models", model)
    assert done.returncode == 0, done.stderr
    (row,) = found["parts"]["ocr"]["rows"]
    assert (row["case"], row["status"], row["verdict"], row["distinct"]) == ("rec", "holds", "bitwise", 1)
    assert row["runs"] == sum(row["by_stress"].values()) >= 40
    assert {"again", "threads", "lanes", "busy", "poisoned memory", "fresh process"} < set(row["by_stress"])
    assert min(row["by_stress"].values()) > 1
    assert row["not_run"] == {
        "little free memory": "needs the CUDA provider",
        "memory limit": "needs the CUDA provider",
    }


@pytest.mark.parametrize(
    ("mode", "status", "distinct", "ok"),
    [("observe", "violated", 3, True), ("strict", "holds", 1, True), ("strict", "violated", 2, False)],
)
def test_what_the_command_found_in_little_memory(
    mode: str, status: str, distinct: int, ok: bool, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stress = {"runs": 900, "failed": 2700, "distinct": distinct, "note": "limits 24 MB"}
    answer = {"evidence": {"status": status, "note": "", "stresses": [stress]}}
    asked: list[str] = []

    def command_line(arguments: list[str], limit: float) -> Any:
        asked.extend(arguments)
        return subprocess.CompletedProcess(arguments, 1, json.dumps(answer), "")

    monkeypatch.setattr(parts, "command_line", command_line)
    row = parts._memory_in(parts.Settings(parts.CUDA), Path("/nowhere/net.onnx"), mode, 30)
    assert asked[:8] == ["verify", "/nowhere/net.onnx", "--mode", mode, "--threads", "12", "--stress", "memory limit"]
    assert asked[8:10] == ["--runs", "3600"]
    assert row["command"].startswith(f"ortlock verify net.onnx --mode {mode} --threads 12 --stress 'memory limit' ")
    assert (row["status"], row["runs"], row["failed"], row["distinct"]) == (status, 900, 2700, distinct)
    assert row["ok"] is ok


@pytest.mark.parametrize(
    ("mode", "code", "status", "ok"),
    [("observe", -6, "crashed", True), ("strict", -6, "crashed", False), ("observe", 2, "refused", False)],
)
def test_a_command_without_an_answer_is_told(
    mode: str, code: int, status: str, ok: bool, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess(["ortlock"], code, "", "first\nCUDA failure 700")
    monkeypatch.setattr(parts, "command_line", lambda arguments, limit: done)
    row = parts._memory_in(parts.Settings(parts.CUDA), Path("net.onnx"), mode, 30)
    assert (row["status"], row["exit_status"], row["note"], row["ok"]) == (status, code, "CUDA failure 700", ok)


def test_a_part_that_cannot_be_measured_is_told(tmp_path: Path) -> None:
    done, found = measured(tmp_path, "--parts", "settings", "ocr", "--models", tmp_path / "det.onnx")
    assert done.returncode == 1
    assert found["parts"]["settings"]["skipped"].startswith("needs --provider cuda: fuse_conv_bias")
    (row,) = found["parts"]["ocr"]["rows"]
    assert row["ok"] is False
    assert "det.onnx" in row["note"]
