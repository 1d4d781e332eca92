"""Lockfiles on a GPU: recorded in one process, replayed in another without a word with cuDNN's heuristics."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortlock import NotReproducibleError, ReproducibilityWarning, ReproducibleSession, models

CUDA = "CUDAExecutionProvider"
PROVIDERS: list[Any] = [(CUDA, {"cudnn_conv_algo_search": "EXHAUSTIVE"})]

WORKER = """
import dataclasses, json, sys, warnings
warnings.simplefilter("ignore")
from ortlock import ReproducibleSession, digest, models, native
model, lockfile, lock_mode, mode, shapes = sys.argv[1:]
providers = [("CUDAExecutionProvider", {"cudnn_conv_algo_search": "EXHAUSTIVE"})]
session = ReproducibleSession(model, providers=providers, mode=mode, lockfile=lockfile, lock_mode=lock_mode)
digests = [digest(session.run(None, {"x": models.seeded_input(shape)})) for shape in json.loads(shapes)]
report = session.report()
print(json.dumps({
    "digests": digests,
    "book": dataclasses.asdict(native.book()),
    "lock": dataclasses.asdict(report.lockfile),
    "verdict": str(report.verdict),
    "machine": [reason.code for reason in report.machine_reasons],
    "plans": sorted((plan.key, plan.engine, plan.status) for plan in report.plans if plan.status == "used"),
}))
"""

NETS: dict[str, tuple[bytes, list[list[int]]]] = {
    "conv": (models.conv_net(3), [[1, 3, size, size] for size in (64, 48, 80)]),
    "transposed": (models.decoder(), [[1, 128, size, size] for size in (14, 10)]),
    "fused": (models.fused_conv_net(3, size="size"), [[1, 64, size, size] for size in (28, 20)]),
}


def work(model: Path, lockfile: Path, lock_mode: str, mode: str, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Run shapes in a process of their own."""
    command = [sys.executable, "-c", WORKER, str(model), str(lockfile), lock_mode, mode, json.dumps(shapes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("name", NETS)
def test_recorded_here_replayed_there(tmp_path: Path, name: str) -> None:
    data, shapes = NETS[name]
    model, lockfile = tmp_path / "model.onnx", tmp_path / "model.lock.json"
    model.write_bytes(data)
    recorded = work(model, lockfile, "record", "pin", shapes)
    assert recorded["book"]["queries"] > 0
    replayed = work(model, lockfile, "replay", "strict", shapes[::-1])
    assert replayed["book"]["queries"] == 0
    assert replayed["digests"] == recorded["digests"][::-1]
    assert replayed["plans"] == recorded["plans"]
    assert replayed["verdict"] == "bitwise"
    assert replayed["lock"]["replayed"] == len(replayed["plans"])
    assert replayed["lock"]["others"] == 0
    assert "ranking-by-machine" not in replayed["machine"]
    held = json.loads(lockfile.read_text())["environments"]
    assert [len(section["choices"]) for section in held.values()] == [len(recorded["plans"])]


def test_strict_refuses_a_shape_that_was_not_recorded(tmp_path: Path) -> None:
    model, lockfile = models.conv_net(2), tmp_path / "lock.json"
    first = {"x": models.seeded_input((1, 3, 32, 32))}
    recording = ReproducibleSession(model, providers=PROVIDERS, lockfile=lockfile, lock_mode="record")
    expected: Any = recording.run(None, first)[0]
    assert recording.save_lockfile() == 0  # the first choices are written at once
    session = ReproducibleSession(model, providers=PROVIDERS, mode="strict", lockfile=lockfile)
    other = {"x": models.seeded_input((1, 3, 40, 40))}
    for _ in range(2):
        with pytest.raises(NotReproducibleError, match=r"conv_0 \(Conv\)") as raised:
            session.run(None, other)
        assert str(lockfile) in raised.value.reason
    mine: Any = session.run(None, first)[0]
    assert mine.tobytes() == expected.tobytes()
    assert session.report().lockfile is not None
    # pin runs it and says on whose word.
    pin = ReproducibleSession(model, providers=PROVIDERS, lockfile=lockfile)
    pin.run(None, other)
    assert pin.report().plans[0].source == "ranking"
    assert "ranking-by-machine" in {reason.code for reason in pin.report().machine_reasons}


def test_another_setting_is_another_environment(tmp_path: Path) -> None:
    model, lockfile = models.conv_net(1), tmp_path / "lock.json"
    x = {"x": models.seeded_input((1, 3, 16, 16))}
    ReproducibleSession(model, providers=PROVIDERS, lockfile=lockfile, lock_mode="record").run(None, x)
    exact = [(CUDA, {"use_tf32": "0"})]
    with pytest.raises(NotReproducibleError, match=r"setting use_tf32: 1 in the file, 0 here"):
        ReproducibleSession(model, providers=exact, mode="strict", lockfile=lockfile)
    with pytest.warns(ReproducibilityWarning, match="use_tf32"):
        pin = ReproducibleSession(model, providers=exact, lockfile=lockfile)
    pin.run(None, x)
    report = pin.report()
    assert report.verdict == "bitwise"
    assert report.lockfile is not None
    assert not report.lockfile.applied


def test_tensor_cores_are_left_alone_where_the_caller_wants_that() -> None:
    model, x = models.conv_net(4, size=64), models.seeded_input((1, 3, 64, 64))
    reference: Any = ReproducibleSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    errors = {}
    for tf32 in ("1", "0", "1"):
        session = ReproducibleSession(model, providers=[(CUDA, {"use_tf32": tf32})], mode="strict")
        output: Any = session.run(None, {"x": x})[0]
        errors[tf32] = float(np.abs(output - reference).max() / np.abs(reference).max())
        used = [plan for plan in session.report().plans if plan.status == "used"]
        if used[0].api == "graph":  # the legacy API has no such notes
            assert any("TENSOR_CORE" in plan.numerical_notes for plan in used) == (tf32 == "1")
    assert errors["0"] < 1e-5 < errors["1"]


THREADS = """
import json, random, sys, threading, warnings
warnings.simplefilter("ignore")
from ortlock import ReproducibleSession, digest, models
seed, lockfile, lock_mode = int(sys.argv[1]), *sys.argv[2:]
shapes = [(1, 3, size, size) for size in range(32, 64, 4)]
feeds = [{"x": models.seeded_input(shape)} for shape in shapes]
providers = [("CUDAExecutionProvider", {"cudnn_conv_algo_search": "EXHAUSTIVE"})]
more = {"lockfile": lockfile, "lock_mode": lock_mode} if lock_mode else {}
session = ReproducibleSession(models.conv_net(4), providers=providers, mode="pin", **more)
seen = [set() for _ in feeds]
def work(number):
    order = list(range(len(feeds))) * 3
    random.Random(seed * 100 + number).shuffle(order)
    for index in order:
        seen[index].add(digest(session.run(None, feeds[index])))
workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print(json.dumps([sorted(values) for values in seen]))
"""


def test_shuffled_shapes_on_8_threads_of_3_processes_give_the_same_bits(tmp_path: Path) -> None:
    lockfile = tmp_path / "lock.json"
    found = []
    for seed, lock_mode in ((1, ""), (2, "record"), (3, "replay")):
        command = [sys.executable, "-c", THREADS, str(seed), str(lockfile), lock_mode]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert [len(values) for values in found[0]] == [1] * 8
    assert found[0] == found[1] == found[2]
    assert len({values[0] for values in found[0]}) == 8
