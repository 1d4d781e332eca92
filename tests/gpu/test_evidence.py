"""Verify, localise and compare on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ortlock import ReproducibleSession, models
from ortlock.compare.result import Expected
from ortlock.compare.run import Compared, compare
from ortlock.compare.sides import parse_side
from ortlock.report import Status
from ortlock.settings import CUDA
from ortlock.settings.model import parse_version
from tests.cpu.planted import serialized

STRESSES = ("again", "fresh session", "threads")


def scatter() -> bytes:
    """Many float updates of few elements, added with atomics."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], name="neg"),
        helper.make_node("ScatterND", ["zeros", "indices", "n"], ["y"], name="adder", reduction="add"),
    ]
    weights = {"zeros": np.zeros(16, np.float32), "indices": random.integers(0, 16, (50_000, 1))}
    return serialized(nodes, [50_000], weights, opset=16)


VARYING: list[tuple[bytes, dict[str, Any], str]] = [
    (models.conv_transpose((1, 128, 28, 28), 64), {"x": models.seeded_input((1, 128, 28, 28))}, "ConvTranspose"),
    (models.reduction("ReduceSum", (1, 64, 256, 256)), {"x": models.seeded_input((1, 64, 256, 256))}, "ReduceSum"),
    (scatter(), {"x": models.seeded_input((50_000,))}, "ScatterND"),
]


@pytest.mark.parametrize(("model", "feed", "operator"), VARYING, ids=[case[2] for case in VARYING])
def test_verify_names_the_operator_that_varies(model: bytes, feed: dict[str, Any], operator: str) -> None:
    session = ReproducibleSession(model, providers=[CUDA], mode="observe")
    found = session.verify(feed, runs=30, stresses=STRESSES)
    assert found.status is Status.VIOLATED
    assert found.localised is not None
    assert found.localised.node is not None, str(found.localised)
    assert found.localised.node.op_type == operator
    assert found.localised.seconds < 60


# Two sets of inputs each, so that their order can be shuffled.
STEADY = [(models.demo_model(), "x", (1, 3, 112, 112)), *((case[0], "x", case[1]["x"].shape) for case in VARYING)]


@pytest.mark.parametrize(("model", "name", "shape"), STEADY, ids=["demo", *(case[2] for case in VARYING)])
def test_strict_holds_over_all_stresses(model: bytes, name: str, shape: tuple[int, ...]) -> None:
    session = ReproducibleSession(model, providers=[CUDA], mode="strict")
    found = session.verify([{name: models.seeded_input(shape, seed=seed)} for seed in range(2)], runs=8)
    assert found.status is Status.HOLDS, str(found)
    ran = {stress.name for stress in found.stresses if stress.runs}
    assert {"lanes", "memory limit", "fresh process", "shuffled shapes", "little free memory"} <= ran
    assert [stress.name for stress in found.stresses if not stress.runs] == ["fuse_conv_bias=1"]


@pytest.mark.parametrize("mode", ["pin", "strict"])
def test_twelve_threads_in_little_memory_hold(mode: str) -> None:
    session = ReproducibleSession(models.branches(size=112), providers=[CUDA], mode=mode)
    feeds = [{"x": models.seeded_input((batch, 8, 112, 112), seed=batch)} for batch in (1, 2, 3)]
    found = session.verify(feeds, runs=600, threads=12, stresses=("memory limit",))
    (stress,) = found.stresses
    assert found.status is Status.HOLDS, str(found)
    assert stress.runs >= 300
    limits = [int(text) for text in stress.note.split(" MB")[0].removeprefix("limits ").split(", ")]
    # What one run alone needs, and the other shares of it.
    assert 12 <= limits[0] <= 192
    assert limits[1] < limits[0] < limits[2] < limits[3]


def test_stock_in_little_memory_never_counts_what_failed() -> None:
    session = ReproducibleSession(models.conv_net(4), providers=[CUDA], mode="observe")
    found = session.verify({"x": models.seeded_input((1, 3, 96, 96))}, runs=40, stresses=("again", "memory limit"))
    again, limited = found.stresses
    assert again.status is Status.HOLDS
    assert limited.runs + limited.failed >= 40
    assert limited.note.startswith("limits ")


def test_a_setting_that_must_not_matter_and_does() -> None:
    import onnxruntime

    if parse_version(onnxruntime.__version__) < (1, 26):
        pytest.skip("seen from ONNX Runtime 1.26 on")
    session = ReproducibleSession(models.biased_conv(), providers=[CUDA], mode="observe")
    found = session.verify({"x": models.seeded_input((1, 64, 28, 28))}, runs=6, stresses=("again", "settings"))
    wrong = [stress.name for stress in found.stresses if stress.status is Status.VIOLATED]
    assert wrong == ["fuse_conv_bias=1"]


def test_tf32_is_told_from_rounding(tmp_path: Path) -> None:
    weights = np.full((256, 256, 3, 3), 0.1, np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)
    path = tmp_path / "ones.onnx"
    path.write_bytes(serialized([node], [1, 256, 14, 14], {"w": weights}))
    cuda, cpu = (parse_side(text, path) for text in ("precision=tf32", "cpu"))
    sides = [
        Compared(side.text, side.maker, path.read_bytes(), tf32=side.tf32, exact=exact)
        for side, exact in ((cuda, cuda.without_tf32().maker), (cpu, None))
    ]
    found = compare(sides[0], sides[1], {"x": np.ones((1, 256, 14, 14), np.float32)})
    assert found.expected is Expected.YES, found.reasons
    (conv,) = found.nodes
    assert conv.a.explained_by == "tf32"
    assert conv.a.shift == pytest.approx(0.0563, abs=1e-3)
    (output,) = found.outputs
    assert output.difference is not None
    assert output.difference.max_abs == pytest.approx(0.057, abs=2e-3)
    assert found.without_tf32 is not None
    assert found.without_tf32.expected in (Expected.YES, Expected.SAME)
    rest = found.without_tf32.outputs[0].difference
    assert rest is not None
    assert (rest.max_abs or 0) < 0.01
