"""What only a GPU can show. Each test makes few, small sessions."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ortlock import NotReproducibleError, ReproducibilityWarning, ReproducibleSession, digest, models, native
from ortlock.report import Verdict

CUDA = "CUDAExecutionProvider"
PROVIDERS: list[Any] = [(CUDA, {"cudnn_conv_algo_search": "EXHAUSTIVE"})]
TRANSPOSED = [((1, 128, 28, 28), 64), ((1, 512, 7, 7), 256), ((1, 64, 112, 112), 3)]


def run_digests(session: Any, x: Any, runs: int) -> list[str]:
    return [digest(session.run(None, {"x": x})) for _ in range(runs)]


@pytest.mark.parametrize(("shape", "channels"), TRANSPOSED)
def test_conv_transpose(shape: Sequence[int], channels: int) -> None:
    model, x = models.conv_transpose(shape, channels), models.seeded_input(shape)
    # Several sessions: where the algorithm is timed, a single one may have chosen a deterministic one.
    stock = [run_digests(onnxruntime.InferenceSession(model, providers=PROVIDERS), x, 3) for _ in range(6)]
    assert len({value for values in stock for value in values}) > 1
    sessions = [ReproducibleSession(model, providers=PROVIDERS, mode=mode) for mode in ("strict", "strict", "pin")]
    ours = {value for session in sessions for value in run_digests(session, x, 12)}
    assert len(ours) == 1
    report = sessions[0].report()
    assert report.verdict is Verdict.BITWISE
    assert all(plan.deterministic == (plan.status == "used") for plan in report.plans)
    assert "used" in {plan.status for plan in report.plans}
    # The same values up to rounding: TF32 on one side, other orders of addition on the other.
    mine: Any = sessions[0].run(None, {"x": x})[0]
    theirs: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    assert np.abs(mine - theirs).max() < 0.02 * np.abs(theirs).max()


def test_observe_changes_nothing_and_says_so() -> None:
    shape, channels = TRANSPOSED[0]
    session = ReproducibleSession(models.conv_transpose(shape, channels), providers=PROVIDERS, mode="observe")
    assert len(set(run_digests(session, models.seeded_input(shape), 12))) > 1
    report = session.report()
    assert report.verdict is Verdict.VIOLATED
    assert "plan-nondeterministic" in {reason.code for reason in report.reasons}


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean"])
def test_reductions(op_type: str) -> None:
    shape = (64, 1000, 100)
    model, x = models.reduction(op_type, shape), models.seeded_input(shape)
    sessions = [ReproducibleSession(model, providers=PROVIDERS, mode="strict") for _ in range(2)]
    assert len({value for session in sessions for value in run_digests(session, x, 12)}) == 1
    assert sessions[0].report().verdict is Verdict.BITWISE


def test_fused_conv_sessions_agree() -> None:
    model, x = models.fused_conv_net(4), models.seeded_input((1, 64, 56, 56))
    values = set()
    for _ in range(6):
        session = ReproducibleSession(model, providers=PROVIDERS, mode="strict")
        values |= set(run_digests(session, x, 2))
    assert len(values) == 1
    plans = session.report().plans
    assert {plan.api for plan in plans} == {"legacy"}
    assert all(plan.deterministic for plan in plans if plan.status == "used")


@pytest.mark.parametrize("mode", ["ORT_SEQUENTIAL", "ORT_PARALLEL"])
def test_every_entry_point_gives_the_same_bits(mode: str) -> None:
    """run, OrtValues, IO binding, run_async and threads, with sequential and parallel execution."""
    shape, channels = TRANSPOSED[0]
    x = models.seeded_input(shape)
    options = onnxruntime.SessionOptions()
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    options.inter_op_num_threads = 4
    options.intra_op_num_threads = 2
    model = models.conv_transpose(shape, channels)
    expected = digest(ReproducibleSession(model, providers=PROVIDERS, mode="strict").run(None, {"x": x}))

    session = ReproducibleSession(model, options, providers=PROVIDERS, mode="strict")
    found = {"async": _run_async(session, x)}  # first, so that it is the one that plans
    found["run"] = digest(session.run(None, {"x": x}))
    values = session.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})
    found["ort values"] = digest([value.numpy() for value in values])
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    found["binding"] = digest(binding.copy_outputs_to_cpu())
    in_threads: list[str] = []
    workers = [threading.Thread(target=lambda: in_threads.extend(run_digests(session, x, 5))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(in_threads) == 40
    assert set(found.values()) | set(in_threads) == {expected}
    report = session.report()
    assert report.verdict is Verdict.BITWISE
    assert report.executions > 0
    assert {plan.status for plan in report.plans} == {"refused", "used"}


def _run_async(session: Any, x: Any) -> str:
    done = threading.Event()
    results: list[Any] = []

    def finished(outputs: Any, _: Any, error: str) -> None:
        results.append(error or digest(outputs))
        done.set()

    session.run_async(None, {"x": x}, finished, None)
    assert done.wait(60)
    return str(results[0])


def test_stock_sessions_of_the_process_are_left_alone() -> None:
    shape, channels = TRANSPOSED[0]
    model, x = models.conv_transpose(shape, channels), models.seeded_input(shape)
    strict = ReproducibleSession(model, providers=PROVIDERS, mode="strict")
    outputs: dict[str, set[str]] = {"strict": set(), "stock": set()}
    for _ in range(8):
        stock = onnxruntime.InferenceSession(model, providers=PROVIDERS)
        outputs["stock"] |= set(run_digests(stock, x, 1))
        outputs["strict"] |= set(run_digests(strict, x, 1))
    assert len(outputs["strict"]) == 1
    assert len(outputs["stock"]) > 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_fused_bias_is_overridden_or_refused(dtype: str) -> None:
    if tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < (1, 20):
        pytest.skip("this ONNX Runtime has no fuse_conv_bias")
    model = models.biased_conv(dtype)
    x = models.seeded_input((1, 64, 28, 28), dtype)
    providers: list[Any] = [(CUDA, {"fuse_conv_bias": "1"})]
    with pytest.warns(ReproducibilityWarning, match="fuse_conv_bias='1'") as caught:
        session = ReproducibleSession(model, providers=providers, mode="pin")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReproducibilityWarning)
        for _ in range(3):
            output: Any = session.run(None, {"x": x})[0]
            assert (output == 7).all()
    assert session.get_providers()[0] == CUDA
    with pytest.raises(NotReproducibleError, match="fuse_conv_bias"):
        ReproducibleSession(model, providers=providers, mode="strict")


def test_scatter_is_refused_in_strict_and_named() -> None:
    from onnx import TensorProto, helper

    node = helper.make_node("ScatterND", ["x", "indices", "x2"], ["y"], name="adder", reduction="add")
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [8]),
            helper.make_tensor_value_info("indices", TensorProto.INT64, [4, 1]),
            helper.make_tensor_value_info("x2", TensorProto.FLOAT, [4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8])],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8).SerializeToString()
    with pytest.raises(NotReproducibleError) as caught:
        ReproducibleSession(data, providers=PROVIDERS, mode="strict", placement="off")
    assert "adder (ScatterND)" in caught.value.subject
    assert ReproducibleSession(data, providers=PROVIDERS).report().verdict is Verdict.VIOLATED


LATE = """
import json, sys
import numpy as np, onnxruntime
sys.path.insert(0, {folder!r})
from test_late_helper import model
first = onnxruntime.InferenceSession(model(), providers=["CUDAExecutionProvider"])
first.run(None, {{"x": np.ones((1, 3, 8, 8), np.float32)}})
import ortlock
from ortlock.cli import main
pin = ortlock.ReproducibleSession(model(), providers=["CUDAExecutionProvider"])
pin.run(None, {{"x": np.ones((1, 3, 8, 8), np.float32)}})
try:
    ortlock.ReproducibleSession(model(), providers=["CUDAExecutionProvider"], mode="strict")
    error = ""
except ortlock.NotReproducibleError as caught:
    error = str(caught)
status = main(["demo", "--provider", "cuda", "--sessions", "1"])
state = ortlock.native.state()
verdict = pin.report().verdict
print(json.dumps({{"late": state.late, "style": state.style, "error": error, "verdict": verdict, "cli": status}}))
"""


def test_too_late_is_said(tmp_path: Any) -> None:
    """A CUDA session that ran a Conv before ortlock was imported: an error in strict where calls escape the hooks."""
    (tmp_path / "test_late_helper.py").write_text(
        "from pathlib import Path\ndef model():\n    return Path(__file__).with_name('m.onnx').read_bytes()\n"
    )
    (tmp_path / "m.onnx").write_bytes(models.conv_net(1, size=8))
    code = LATE.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    if result["late"]:
        assert result["style"] == "dlsym"
        assert "before ortlock was there" in result["error"]
        assert result["verdict"] == "not guaranteed"
        assert result["cli"] == 2
        assert done.stderr.count("ortlock: CUDAExecutionProvider") == 1
    else:
        assert result["style"] == "direct"
        assert (result["error"], result["verdict"], result["cli"]) == ("", "bitwise", 0)


def test_detaching_and_attaching_again() -> None:
    shape, channels = TRANSPOSED[0]
    model, x = models.conv_transpose(shape, channels), models.seeded_input(shape)
    before = native.state()
    assert before.attached
    assert not native.detach().attached
    stock = run_digests(onnxruntime.InferenceSession(model, providers=PROVIDERS), x, 12)
    assert len(set(stock)) > 1
    assert native.attach().attached
    session = ReproducibleSession(model, providers=PROVIDERS, mode="strict")
    assert len(set(run_digests(session, x, 12))) == 1


def test_environment_is_read_from_the_loaded_libraries() -> None:
    values = ReproducibleSession(models.conv_net(1, size=8), providers=PROVIDERS).report().to_dict()["environment"]
    for key in ("name", "compute_capability", "sm_count", "driver", "cuda_driver", "cuda_runtime", "cudnn", "cublas"):
        assert values["gpu"][key], key
