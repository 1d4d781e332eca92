"""What is read from the machine: cores and the floating-point state of the thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlock.settings import physical_cores, probes


def topology(root: Path, siblings: list[str]) -> Path:
    for cpu, text in enumerate(siblings):
        directory = root / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "thread_siblings_list").write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("allowed", "siblings", "expected"),
    [
        ({0, 1, 2, 3}, ["0,2", "1,3", "0,2", "1,3"], 2),
        ({0, 1}, ["0,2", "1,3", "0,2", "1,3"], 2),
        ({0, 2}, ["0,2", "1,3", "0,2", "1,3"], 1),
        ({0, 1, 2}, ["0", "1", "2"], 3),
    ],
)
def test_cores_of_the_affinity_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], siblings: list[str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert physical_cores(topology(tmp_path, siblings)) == expected


def test_without_topology_logical_cpus_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert physical_cores(tmp_path) == 3


@pytest.mark.parametrize(("count", "expected"), [(8, 8), (None, 1)])
def test_without_affinity(monkeypatch: pytest.MonkeyPatch, count: int | None, expected: int) -> None:
    def unavailable(pid: int) -> set[int]:
        raise OSError("not here")

    monkeypatch.setattr(os, "sched_getaffinity", unavailable)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert physical_cores() == expected


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 8), st.integers(1, 4))
def test_cores_times_siblings(tmp_path_factory: pytest.TempPathFactory, cores: int, siblings: int) -> None:
    root = tmp_path_factory.mktemp("cpu")
    texts = [",".join(str(core + cores * way) for way in range(siblings)) for core in range(cores)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores * siblings)))
        assert physical_cores(topology(root, texts * siblings)) == cores


def test_here_it_is_within_bounds() -> None:
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)


SCRIPT = """
import sys
import numpy as np, onnxruntime
from onnx import helper
from ortlock.policy import Mode
from ortlock.settings import denormals_flushed, resolve

values = [helper.make_tensor_value_info(name, 1, [64]) for name in "aby"]
graph = helper.make_graph([helper.make_node("Mul", ["a", "b"], ["y"])], "g", values[:2], values[2:])
model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()

def session(value):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.set_denormal_as_zero", value)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

tiny = np.full(64, 1e-20, np.float32)
before = denormals_flushed()
first, second = session(sys.argv[1]), session(sys.argv[2])
kept = [bool(made.run(None, {"a": tiny, "b": tiny})[0].any()) for made in (first, second)]
refused = resolve(Mode.STRICT, onnxruntime.SessionOptions(), [], [], {}, onnxruntime.__version__).refusals
print(before, kept, denormals_flushed(), len(refused))
"""


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("0", "0", "False [True, True] False 0"),
        ("0", "1", "False [True, True] False 0"),
        ("1", "0", "False [False, False] True 1"),
    ],
)
def test_the_first_session_of_a_process_decides_about_denormals(first: str, second: str, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, first, second], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == expected


def test_the_probe_sees_kept_denormals() -> None:
    assert probes.denormals_flushed() is False
