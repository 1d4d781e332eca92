"""Nodes without a deterministic CUDA kernel: the same bits in strict, in sessions and processes, or a refusal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ortlock import NotReproducibleError, ReproducibleSession, digest
from ortlock.placement import Action
from ortlock.report import Verdict
from tests import placement_models as made

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"

if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 30):
    pytest.skip("this ONNX Runtime cannot move single nodes", allow_module_level=True)


def scatter_case(operator: str, reduction: str, dtype: Any) -> tuple[bytes, dict[str, Any], Any, float]:
    feed = made.scatter_feed(operator, dtype)
    return made.scatter(operator, reduction, dtype), feed, made.scattered(feed, reduction), 5e-3


def norm_case(dtype: Any, silu: bool) -> tuple[bytes, dict[str, Any], Any, float]:
    x = np.random.default_rng(1).standard_normal((1, 128, 128, 256)).astype(dtype)
    return made.group_norm(dtype, silu), {"x": x}, made.group_norm_of(x, silu), 5e-3


def einsum_case() -> tuple[bytes, dict[str, Any], Any, float]:
    x = np.random.default_rng(2).uniform(0, 1, (4096, 96)).astype(np.float32)
    return made.einsum_sum(), {"x": x}, x.astype(np.float64).sum(axis=0), 1e-4


def loop_case() -> tuple[bytes, dict[str, Any], Any, float]:
    feed = made.scatter_feed("ScatterElements")
    expected = feed["x"].astype(np.float64)
    for _ in range(3):
        np.add.at(expected, feed["i"][:, 0], feed["u"])
    return made.loop(), feed, expected, 1e-4


CASES: dict[str, Callable[[], tuple[bytes, dict[str, Any], Any, float]]] = {
    "ScatterND add": lambda: scatter_case("ScatterND", "add", np.float32),
    "ScatterND mul": lambda: scatter_case("ScatterND", "mul", np.float32),
    "ScatterND add float16": lambda: scatter_case("ScatterND", "add", np.float16),
    "ScatterElements add": lambda: scatter_case("ScatterElements", "add", np.float32),
    "ScatterND without reduction": lambda: scatter_case("ScatterND", "none", np.float32),
    "ScatterElements without reduction": lambda: scatter_case("ScatterElements", "none", np.float32),
    "ScatterElements mul": lambda: scatter_case("ScatterElements", "mul", np.float32),
    "ScatterElements add float16": lambda: scatter_case("ScatterElements", "add", np.float16),
    "GroupNorm float16": lambda: norm_case(np.float16, False),
    "GroupNorm float32 SiLU": lambda: norm_case(np.float32, True),
    "Einsum": einsum_case,
    "Loop": loop_case,
}
OTHER_PROCESS = """
import sys
from tests.gpu.test_placement import CASES, strict_digests
for case in CASES:
    print(*strict_digests(case, 6), sep=",")
"""


def strict_digests(case: str, runs: int) -> list[str]:
    model, feed, _, _ = CASES[case]()
    session = ReproducibleSession(model, providers=[CUDA], mode="strict")
    return [digest(session.run(None, feed)) for _ in range(runs)]


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, set[str]]:
    """Digests of every case in another process."""
    done = subprocess.run([sys.executable, "-c", OTHER_PROCESS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {case: set(line.split(",")) for case, line in zip(CASES, done.stdout.split(), strict=True)}


@pytest.mark.parametrize("case", CASES)
def test_one_result_in_strict(case: str, elsewhere: dict[str, set[str]]) -> None:
    model, feed, expected, tolerance = CASES[case]()
    stock = onnxruntime.InferenceSession(model, providers=[CUDA])
    assert len({digest(stock.run(None, feed)) for _ in range(12)}) > 1
    sessions = [ReproducibleSession(model, providers=[CUDA], mode="strict") for _ in range(2)]
    ours = {digest(session.run(None, feed)) for session in sessions for _ in range(6)}
    assert ours == elsewhere[case]
    assert len(ours) == 1
    result: Any = sessions[0].run(None, feed)[0]
    assert np.isfinite(result).all() == np.isfinite(expected.astype(result.dtype)).all()
    finite = np.isfinite(expected.astype(result.dtype))
    np.testing.assert_allclose(result[finite], expected[finite], rtol=tolerance, atol=tolerance)
    report = sessions[0].report()
    assert report.verdict is Verdict.BITWISE
    assert len(report.placed) == 1
    costs = sessions[0].measure_placement(feed)
    print(case, report.placed[0].action, costs)
    assert costs[report.placed[0].node] > 0


def placed_on_cpu(session: Any) -> list[str]:
    subgraphs = session.get_provider_graph_assignment_info()
    return [node.op_type for graph in subgraphs if graph.ep_name == CPU for node in graph.get_nodes()]


def test_exactly_the_scatter_node_of_a_mixed_model_moves() -> None:
    feed = made.mixed_feed()
    session = ReproducibleSession(made.mixed(), providers=[CUDA], mode="strict")
    assert placed_on_cpu(session) == ["ScatterND"]
    outputs = [session.run(None, feed) for _ in range(12)]
    assert len({digest(one) for one in outputs}) == 1
    assert [(one.node, one.action) for one in session.report().placed] == [("scatter (ScatterND)", Action.MOVED)]
    # What did not move computes the same bits as in stock.
    options = onnxruntime.SessionOptions()
    options.use_deterministic_compute = True
    stock = onnxruntime.InferenceSession(made.mixed(), options, providers=[CUDA]).run(None, feed)
    pinned = ReproducibleSession(made.mixed(), providers=[CUDA], mode="pin", placement="off")
    np.testing.assert_array_equal(outputs[0][1], pinned.run(None, feed)[1])
    np.testing.assert_allclose(outputs[0][0], stock[0], rtol=1e-2)


def test_the_scatter_node_in_a_loop_moves() -> None:
    session = ReproducibleSession(made.loop(), providers=[CUDA], mode="strict")
    assert "ScatterElements" in placed_on_cpu(session)


@pytest.mark.parametrize("operator", ["SkipGroupNorm"])
def test_what_has_no_other_place_is_refused(operator: str) -> None:
    with pytest.raises(NotReproducibleError, match=rf"norm \(com.microsoft.{operator}\)"):
        ReproducibleSession(made.group_norm(operator=operator), providers=[CUDA], mode="strict")


def test_placement_off_refuses() -> None:
    with pytest.raises(NotReproducibleError, match=r"scatter \(ScatterND\) on CUDAExecutionProvider"):
        ReproducibleSession(made.scatter("ScatterND", "add"), providers=[CUDA], mode="strict", placement="off")
