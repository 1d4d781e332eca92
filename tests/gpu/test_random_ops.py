"""``random_ops="restart"`` on CUDA: the same numbers in each run, session and process, and on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from ortlock import NotReproducibleError, ReproducibleSession, digest
from ortlock.report import Verdict
from tests.cpu.random_models import dropout, looped, one

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
X = np.full((300, 500), 0.3, np.float32)
LOGITS = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], np.float32))


def restarting(model: bytes, provider: str) -> ReproducibleSession:
    return ReproducibleSession(model, providers=[provider], mode="strict", random_ops="restart")


# The name of each model, its input, and how far the providers may be apart: 0 where integers decide.
CASES: dict[str, tuple[bytes, Any, float]] = {
    "RandomNormal": (one("RandomNormal", shape=[300, 500], seed=1.0), None, 1e-5),
    "RandomNormalLike": (one("RandomNormalLike", seed=1.0), X, 1e-5),
    "RandomNormalLike fp64": (one("RandomNormalLike", TensorProto.DOUBLE, dtype=TensorProto.DOUBLE), X, 1e-12),
    "RandomUniform": (one("RandomUniform", shape=[300, 500], low=-1.0, high=3.0), None, 0),
    "RandomUniformLike": (one("RandomUniformLike"), X, 0),
    "RandomUniformLike fp16": (one("RandomUniformLike", TensorProto.FLOAT16, dtype=TensorProto.FLOAT16), X, 0),
    "Bernoulli": (one("Bernoulli"), X, 0),
    "Multinomial": (one("Multinomial", TensorProto.INT32, sample_size=1000), LOGITS, 0),
    "Dropout": (dropout(True), X, 0),
    "in nested loops": (looped(), X, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_calls_give_equal_bytes(name: str) -> None:
    model, x, tolerance = CASES[name]
    feed = {} if x is None else {"x": x}
    sessions = [restarting(model, CUDA) for _ in range(2)]
    runs = [session.run(None, feed) for session in sessions for _ in range(6)]
    assert len({digest(outputs) for outputs in runs}) == 1
    report = sessions[0].report()
    assert report.verdict is Verdict.BITWISE
    assert len(report.random.restarted) == 1
    ours, theirs = (np.asarray(outputs[0], np.float64) for outputs in (runs[0], restarting(model, CPU).run(None, feed)))
    assert len(np.unique(ours)) > 1
    if name == "Multinomial":
        # Sums of probabilities are rounded: a number on the edge of a class may fall to either side.
        assert (ours != theirs).mean() < 0.001
    else:
        assert np.abs(ours - theirs).max() <= tolerance


def test_each_iteration_draws_its_own() -> None:
    found = restarting(looped(), CUDA).run(None, {"x": X})[0].reshape(6, -1)
    assert np.abs(np.corrcoef(found)[np.triu_indices(6, 1)]).max() < 5 / np.sqrt(X.size)


CODE = """
import sys
import numpy as np
from ortlock import ReproducibleSession, digest
session = ReproducibleSession(sys.argv[1], providers=["CUDAExecutionProvider"], mode="strict", random_ops="restart")
print(digest(session.run(None, {"x": np.full((300, 500), 0.3, np.float32)})))
"""


def test_another_process(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(one("RandomNormalLike", seed=1.0))
    here = digest(restarting(path.read_bytes(), CUDA).run(None, {"x": X}))
    done = subprocess.run([sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == here


def test_default_refuses_it() -> None:
    with pytest.raises(NotReproducibleError, match=r"noise \(RandomNormalLike\).*random_ops='restart'"):
        ReproducibleSession(one("RandomNormalLike", seed=1.0), providers=[CUDA], mode="strict")
