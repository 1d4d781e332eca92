"""Operators that draw at random: refused, or started from their seed in every run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock import NotReproducibleError, ReproducibleSession, digest
from ortlock.session import options as session_options
from ortlock.session.options import EXTERNAL_FOLDER
from tests.cpu.random_models import build, dropout, looped, one, value
from tests.cpu.session_models import CPU, add_model, version

Array = np.ndarray[Any, Any]

X = np.full((200, 300), 0.3, np.float32)


def restarting(model: bytes | str, mode: str = "strict", **options: Any) -> ReproducibleSession:
    return ReproducibleSession(model, providers=[CPU], mode=mode, random_ops="restart", **options)


def drawn(model: bytes, **feed: Any) -> Array:
    """Run twice in one session and once in another; return the output that all have."""
    session = restarting(model)
    feed = feed or ({"x": X} if session.get_inputs() else {})
    outputs = [made.run(None, feed)[0] for made in (session, session, restarting(model))]
    assert len({output.tobytes() for output in outputs}) == 1
    assert session.report().verdict == "bitwise"
    first: Array = outputs[0]
    return first


def words(text: str, count: int, *loops: int) -> tuple[Array, Array]:
    """Compute the generator's words in NumPy, as documented."""
    key = np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], "<u4").astype(np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    right, left, step = np.arange(count, dtype=np.uint64), key[1], key[0]
    for iteration in loops:
        left = (left * np.uint64(0x9E3779B1) + np.uint64(iteration)) & mask
    left = np.full(count, left)
    for _ in range(8):
        reduced = (right + step) & np.uint64(0x7FFFFFFF)
        left, right = right, ((reduced * reduced >> np.uint64(15)) + left) & mask
        step = (step + np.uint64(0x9E3779B9)) & mask
    return left, right


def test_words_of_any_seeds_and_iterations_do_not_go_together() -> None:
    """Correlations of a good generator are normal, of variance 1 / count; here in units of their deviation."""
    count = 30_000
    drawn_words = [
        words(f"seed {seed}", count, *loops)[i] for seed in range(8) for loops in ((), (0,), (1,)) for i in (0, 1)
    ]
    # Without a loop and in the first iteration of one the words differ as well: the key is multiplied.
    matrix: Array = np.asarray(np.corrcoef(np.array(drawn_words, np.float64)))
    correlations = matrix[np.triu_indices(48, 1)] * np.sqrt(count)
    assert abs(correlations.std() - 1) < 0.1
    assert np.abs(correlations).max() < 4.8
    bits = np.array([[(word >> np.uint64(bit)) & np.uint64(1) for bit in range(32)] for word in drawn_words])
    balance = (bits.mean(axis=2) - 0.5) * 2 * np.sqrt(count)
    assert abs(balance.std() - 1) < 0.1
    assert np.abs(balance).max() < 5


def test_uniform_numbers_are_the_documented_ones() -> None:
    _, right = words("RandomUniformLike seed 7.0", X.size)
    expected = (right >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
    assert drawn(one("RandomUniformLike", seed=7.0)).tobytes() == expected.tobytes()


def test_uniform_doubles_are_the_documented_ones() -> None:
    left, right = words("RandomUniform number 0", 12)
    whole = (left >> np.uint64(5)) * np.uint64(1 << 26) + (right >> np.uint64(6))
    found = drawn(one("RandomUniform", TensorProto.DOUBLE, shape=[3, 4], dtype=TensorProto.DOUBLE))
    assert found.tobytes() == (whole.astype(np.float64) * 2.0**-53).reshape(3, 4).tobytes()


@pytest.mark.parametrize("opset", [11, 13, 16, 21])
@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomNormalLike"])
def test_normal_numbers(op_type: str, opset: int) -> None:
    shape: dict[str, Any] = {"shape": [200, 300]} if op_type == "RandomNormal" else {}
    found = drawn(one(op_type, opset=opset, mean=2.0, scale=3.0, seed=1.0, **shape))
    assert found.shape == X.shape
    assert found.dtype == np.float32
    scaled = (found.astype(np.float64) - 2) / 3
    # Four standard deviations of the mean, and of the second and the fourth moment.
    assert abs(scaled.mean()) < 4 / np.sqrt(X.size)
    assert abs((scaled**2).mean() - 1) < 4 * np.sqrt(2 / X.size)
    assert abs((scaled**4).mean() - 3) < 4 * np.sqrt(96 / X.size)
    assert np.abs(scaled).max() > 3.5


@pytest.mark.parametrize(
    ("element", "dtype"),
    [(TensorProto.DOUBLE, np.float64), (TensorProto.FLOAT16, np.float16), (TensorProto.FLOAT, "f4")],
)
def test_types(element: int, dtype: Any) -> None:
    found = drawn(one("RandomNormalLike", element, dtype=element))
    assert found.dtype == dtype
    assert abs(found.astype(np.float64).std() - 1) < 0.02


@pytest.mark.parametrize("op_type", ["RandomUniform", "RandomUniformLike"])
def test_uniform_numbers(op_type: str) -> None:
    shape: dict[str, Any] = {"shape": [200, 300]} if op_type == "RandomUniform" else {}
    found = drawn(one(op_type, low=-1.0, high=3.0, seed=1.0, **shape)).reshape(-1)
    counts, _ = np.histogram(found, 100, (-1, 3))
    assert counts.sum() == X.size
    # Chi squared of 99 degrees of freedom: beyond these bounds once in 100,000.
    assert 47 < ((counts - X.size / 100) ** 2 / (X.size / 100)).sum() < 169
    # Neighbours, in either direction, do not go together.
    for step in (1, 2, 300):
        assert abs(np.corrcoef(found[:-step], found[step:])[0, 1]) < 4 / np.sqrt(X.size)


@pytest.mark.parametrize("dtype", [None, TensorProto.INT32, TensorProto.DOUBLE])
def test_bernoulli(dtype: int | None) -> None:
    element = dtype or TensorProto.FLOAT
    found = drawn(one("Bernoulli", element, **({} if dtype is None else {"dtype": dtype})))
    assert found.dtype == helper.tensor_dtype_to_np_dtype(element)
    assert set(np.unique(found)) == {0, 1}
    assert abs(found.astype(np.float64).mean() - 0.3) < 4 * np.sqrt(0.21 / X.size)
    assert drawn(one("Bernoulli"), x=np.array([[0, 1]] * 1000, np.float32)).tolist() == [[0, 1]] * 1000


@pytest.mark.parametrize("opset", [11, 13])
def test_multinomial(opset: int) -> None:
    weights = np.array([[0.1, 0.0, 0.6, 0.3, 0.0], [0.0, 0.5, 0.0, 0.0, 0.5]], np.float32)
    with np.errstate(divide="ignore"):
        logits = np.log(weights) + 5
    found = drawn(one("Multinomial", TensorProto.INT64, opset, sample_size=20_000, dtype=TensorProto.INT64), x=logits)
    assert found.shape == (2, 20_000)
    for row, expected in zip(found, weights, strict=True):
        shares = np.bincount(row, minlength=5) / 20_000
        assert np.abs(shares - expected).max() < 4 * np.sqrt(0.25 / 20_000)
        assert not shares[expected == 0].any()
    single = drawn(one("Multinomial", TensorProto.INT32, opset, sample_size=7), x=np.ones((3, 1), np.float32))
    assert single.dtype == np.int32
    assert single.tolist() == [[0] * 7] * 3


def test_dropout_in_training() -> None:
    session = restarting(dropout(True))
    outputs = [session.run(None, {"x": X}) for _ in range(2)]
    assert digest(outputs[0]) == digest(outputs[1])
    y, mask = outputs[0]
    assert abs(mask.mean() - 0.75) < 4 * np.sqrt(0.1875 / X.size)
    assert np.array_equal(y, np.where(mask, X * np.float32(4 / 3), 0).astype(np.float32))


def test_dropout_whose_mode_is_fed() -> None:
    session = restarting(dropout(None))
    y, mask = session.run(None, {"x": X, "t": np.array(False)})
    assert y.tobytes() == X.tobytes()
    assert mask.all()
    y, mask = session.run(None, {"x": X, "t": np.array(True)})
    assert 0.7 < mask.mean() < 0.8
    assert session.report().random.restarted == ("drop (Dropout)",)


def test_dropout_in_inference_is_left_alone() -> None:
    session = restarting(dropout(False))
    assert session.run(["y"], {"x": X})[0].tobytes() == X.tobytes()
    assert session.report().random.restarted == ()


def test_seeds_tell_nodes_apart() -> None:
    seeds = [1.0, 1.0, 2.0, None, None]
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], [f"y{i}"], **({} if seed is None else {"seed": seed}))
        for i, seed in enumerate(seeds)
    ]
    session = restarting(build(nodes, [value(f"y{i}") for i in range(len(seeds))]))
    draws = [output.reshape(-1) for output in session.run(None, {"x": X})]
    assert draws[0].tobytes() == draws[1].tobytes()
    for first, second in ((0, 2), (0, 3), (2, 3), (3, 4)):
        assert abs(np.corrcoef(draws[first], draws[second])[0, 1]) < 4 / np.sqrt(X.size)
    assert session.report().random.restarted == tuple(f"RandomNormalLike #{i} (RandomNormalLike)" for i in range(5))


def test_each_iteration_of_nested_loops_draws_its_own() -> None:
    small = X[:2, :50]
    found = drawn(looped(), x=small)
    assert found.shape == (2, 3, 2, 50)
    for outer in range(2):
        for inner in range(3):
            _, right = words("RandomUniformLike seed 5.0", small.size, outer, inner)
            expected = (right >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
            assert found[outer, inner].tobytes() == expected.tobytes()
    session = restarting(looped())
    assert session.report().random.restarted == ("outer/body/inner/body: noise (RandomUniformLike)",)


def test_a_branch_and_a_function() -> None:
    def branch(seed: float) -> Any:
        node = helper.make_node("Noisy", ["x"], ["z"], domain="f", seed=seed)
        return helper.make_graph([node], "b", [], [value("z")])

    body = helper.make_node("RandomUniformLike", ["a"], ["b"])
    body.attribute.append(onnx.AttributeProto(name="seed", type=onnx.AttributeProto.FLOAT, ref_attr_name="seed"))
    function = helper.make_function("f", "Noisy", ["a"], ["b"], [body], [helper.make_opsetid("", 16)], ["seed"])
    node = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branch(1.0), else_branch=branch(2.0))
    model = build(
        [node], [value("y")], [value("x", shape=["n", "m"]), value("c", TensorProto.BOOL, [])], functions=[function]
    )
    first = drawn(model, x=X, c=np.array(True))
    assert first.tobytes() == drawn(one("RandomUniformLike", seed=1.0)).tobytes()
    assert drawn(model, x=X, c=np.array(False)).tobytes() == drawn(one("RandomUniformLike", seed=2.0)).tobytes()


def test_few_and_no_elements() -> None:
    assert drawn(one("RandomNormalLike"), x=np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert drawn(one("RandomNormalLike"), x=np.zeros((3, 0), np.float32)).shape == (3, 0)
    assert drawn(one("RandomNormalLike"), x=np.zeros((1, 1), np.float32)).shape == (1, 1)


CODE = """
import sys
import numpy as np
from ortlock import ReproducibleSession, digest
session = ReproducibleSession(sys.argv[1], providers=["CPUExecutionProvider"], mode="strict", random_ops="restart")
print(digest(session.run(None, {"x": np.full((200, 300), 0.3, np.float32)})))
"""


def test_another_process_and_the_callers_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = one("RandomNormalLike", seed=1.0)
    path.write_bytes(model)
    session = restarting(str(path))
    here = digest(session.run(None, {"x": X}))
    done = subprocess.run([sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here
    assert path.read_bytes() == model
    assert session._model_path == str(path)
    assert session.report().model.sha256 == hashlib.sha256(model).hexdigest()


def test_external_data_is_found(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.arange(60_000, dtype=np.float32).reshape(200, 300), "w")
    nodes = [helper.make_node("RandomUniformLike", ["x"], ["z"]), helper.make_node("Add", ["z", "w"], ["y"])]
    model = onnx.load_model_from_string(build(nodes, [value("y")], inits=[weights]))
    path = tmp_path / "m.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    if version() < (1, 21):
        with pytest.raises(NotReproducibleError, match="does not find the external data"):
            restarting(str(path))
        return
    for options in (None, onnxruntime.SessionOptions()):
        session = restarting(str(path), sess_options=options)
        first, second = (session.run(None, {"x": X})[0] for _ in range(2))
        assert first.tobytes() == second.tobytes()
        assert np.floor(first[:10]).tobytes() == np.arange(3000, dtype=np.float32).reshape(10, 300).tobytes()


def scanned() -> bytes:
    body = helper.make_graph(
        [helper.make_node("RandomNormalLike", ["s"], ["z"], name="noise")],
        "b",
        [value("s", shape=["m"])],
        [value("z", shape=["m"])],
    )
    return build([helper.make_node("Scan", ["x"], ["y"], name="scan", body=body, num_scan_inputs=1)], [value("y")])


def same_names() -> bytes:
    model = onnx.load_model_from_string(looped())
    inner = model.graph.node[0].attribute[0].g.node[0].attribute[0].g
    inner.input[0].name = "i0"
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("model", "subject", "reason"),
    [
        (scanned, "scan/body: noise (RandomNormalLike)", "inside of scan (Scan)"),
        (
            same_names,
            "outer/body/inner/body: noise (RandomUniformLike)",
            "the same name to their iteration numbers: i0",
        ),
        (lambda: one("RandomNormalLike", opset=10), "noise (RandomNormalLike)", "version 10 of ONNX's operators"),
        (lambda: one("RandomNormalLike", dtype=TensorProto.INT32), "noise (RandomNormalLike)", "INT32"),
    ],
)
@pytest.mark.parametrize("mode", ["pin", "strict"])
def test_what_cannot_start_anew_is_refused(model: Callable[[], bytes], subject: str, reason: str, mode: str) -> None:
    with pytest.raises(NotReproducibleError) as raised:
        restarting(model(), mode)
    assert raised.value.subject == subject
    assert reason in raised.value.reason
    assert raised.value.remedy


def test_unknown_type_is_refused_or_taken_from_the_input() -> None:
    nodes = [helper.make_node("Odd", ["x"], ["z"], domain="f"), helper.make_node("RandomNormalLike", ["z"], ["y"])]
    with pytest.raises(NotReproducibleError, match="The type of its input z is not known"):
        restarting(build(nodes, [value("q")], opset=13))


def test_default_refuses_in_strict_and_points_to_restart() -> None:
    model = one("RandomNormalLike", seed=1.0)
    asked: tuple[dict[str, Any], ...] = ({}, {"random_ops": "error"})
    for options in asked:
        with pytest.raises(NotReproducibleError, match=r"noise \(RandomNormalLike\)") as raised:
            ReproducibleSession(model, providers=[CPU], mode="strict", **options)
        assert "with a seed too" in raised.value.reason
        assert "random_ops='restart'" in raised.value.remedy
    session = ReproducibleSession(model, providers=[CPU], mode="pin")
    stock = onnxruntime.InferenceSession(model, providers=[CPU])
    assert [session.run(None, {"x": X})[0].tobytes() for _ in range(2)] == [
        stock.run(None, {"x": X})[0].tobytes() for _ in range(2)
    ]
    report = session.report()
    assert report.verdict == "violated"
    assert report.to_dict()["random"] == {"random_ops": "error", "restarted": []}


def test_every_way_to_run_and_threads_draw_the_same() -> None:
    session = restarting(one("RandomNormalLike"), mode="pin")
    expected = session.run(None, {"x": X})[0].tobytes()
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tobytes() == expected
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(session.run(None, {"x": X})[0].tobytes())) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6
    session.set_providers([CPU])
    assert session.run(None, {"x": X})[0].tobytes() == expected


def test_the_report_names_what_was_done() -> None:
    session = restarting(one("RandomNormalLike"))
    report = session.report()
    assert report.to_dict()["random"] == {"random_ops": "restart", "restarted": ["noise (RandomNormalLike)"]}
    assert "random operators: start from their seed in each run: noise (RandomNormalLike)" in str(report)
    assert "Each run starts from the seed: noise (RandomNormalLike)." in report.to_markdown()
    assert {finding.status for finding in report.operators} == {"deterministic"}


def test_without_random_operators_nothing_changes() -> None:
    session = restarting(add_model())
    values = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}
    assert [output.tolist() for output in session.run(None, values)] == [[2, 2], [1, 1]]
    assert session._ortlock.restarted is None


def test_wrong_words_and_wrong_models(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="random_ops='often' is not known; choose 'error' or 'restart'"):
        ReproducibleSession(add_model(), random_ops="often")
    with pytest.raises(ValueError, match="mode='observe' changes nothing"):
        restarting(add_model(), "observe")
    with pytest.raises(C.InvalidProtobuf):
        restarting(b"corrupt")
    with pytest.raises(C.NoSuchFile):
        restarting(str(tmp_path / "absent.onnx"))
    with pytest.raises(NotReproducibleError, match=r"\.ort format cannot be rewritten"):
        restarting(b"\x18\x00\x00\x00ORTM" + bytes(64))


@pytest.mark.skipif(version() < (1, 21), reason="ONNX Runtime finds no external data of a model in memory")
def test_options_that_cannot_be_copied_need_the_entry_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = numpy_helper.from_array(np.ones((200, 300), np.float32), "w")
    nodes = [helper.make_node("RandomUniformLike", ["x"], ["z"]), helper.make_node("Add", ["z", "w"], ["y"])]
    path = tmp_path / "m.onnx"
    onnx.save_model(
        onnx.load_model_from_string(build(nodes, [value("y")], inits=[weights])),
        str(path),
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    # As with providers registered in them.
    monkeypatch.setattr(session_options, "has_providers", lambda options: True)
    options = onnxruntime.SessionOptions()
    with pytest.raises(NotReproducibleError, match="add_session_config_entry"):
        restarting(str(path), sess_options=options)
    options.add_session_config_entry(EXTERNAL_FOLDER, str(tmp_path))
    session = restarting(str(path), sess_options=options)
    assert session.run(None, {"x": X})[0].min() >= 1
