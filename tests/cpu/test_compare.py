"""Comparing two sides, and the answer to "is this expected?"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ortlock import ReproducibleSession, models
from ortlock.cli import main
from ortlock.compare.carried import Carried, carry
from ortlock.compare.evaluating import weights_of
from ortlock.compare.reference import Reference, to_tf32
from ortlock.compare.result import Expected
from ortlock.compare.rounding import Bound, bound_of, gamma
from ortlock.compare.run import Compared, compare
from ortlock.compare.sides import SideError, parse_side
from ortlock.compare.text import cells, to_text
from ortlock.compare.whole import OPTIMISED, judge_outputs
from ortlock.configuration import Configuration, Source
from ortlock.localise import Graph, SessionMaker
from ortlock.settings import CUDA
from tests.cpu.planted import OBSERVE, FaultyMaker, chain, serialized

FEED = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}
ONES = {"x": np.ones((1, 256, 14, 14), np.float32)}


def conv(weight: float = 0.1) -> bytes:
    """A convolution of 2,304 terms whose every weight is 0.1."""
    weights = np.full((8, 256, 3, 3), weight, np.float32)
    return serialized(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)], ["n", 256, 14, 14], {"w": weights}
    )


class Tf32Maker(SessionMaker):
    """Runs on the CPU what a GPU does in TF32: with operands of ten bits."""

    def original(self) -> Any:
        return self.derived(self.source.read(), optimised=True)

    def derived(self, model: bytes, *, optimised: bool) -> Any:
        return super().derived(self._rounded(model), optimised=optimised)

    @staticmethod
    def _rounded(model: bytes) -> bytes:
        changed = onnx.load_model_from_string(model)
        for tensor in changed.graph.initializer:
            values = to_tf32(numpy_helper.to_array(tensor).astype(np.float64)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        return bytes(changed.SerializeToString())


def plain(model: bytes, text: str = "cpu") -> Compared:
    return Compared(text, SessionMaker(OBSERVE, Source(data=model)), model)


def in_tf32(model: bytes) -> Compared:
    exact = SessionMaker(OBSERVE, Source(data=model))
    return Compared("tf32", Tf32Maker(OBSERVE, Source(data=model)), model, tf32=True, exact=exact)


def test_the_same_bits() -> None:
    found = compare(plain(chain(5)), plain(chain(5)), FEED)
    assert found.expected is Expected.SAME
    assert found.outputs[0].closer == "equal"
    assert found.differing == ()
    assert len(found.nodes) == 6


def test_tf32_explains_what_it_explains_and_no_more() -> None:
    found = compare(in_tf32(conv()), plain(conv()), ONES)
    assert found.expected is Expected.YES
    (node,) = found.nodes
    assert (node.length, node.a.explained_by, node.b.explained_by) == (2304, "tf32", "fp32")
    # 0.1 is 0.0999756 in TF32: 2,304 times that is 230.34, not 230.40.
    assert node.a.shift == pytest.approx(2304 * (float(np.float32(0.1)) - 0.0999755859375), rel=1e-6)
    assert node.a.error == pytest.approx(node.a.shift, abs=0.005)
    assert node.a.rest is not None
    assert node.a.rest < 0.005
    assert node.b.error is not None
    assert node.b.error < 0.005
    # At the corners, where 1,024 terms are summed, the limit is the smallest.
    assert node.b.limit is not None
    assert gamma(2306, 2.0**-24) * 102.3 < node.b.limit < gamma(2306, 2.0**-24) * 230.5
    (output,) = found.outputs
    assert output.closer == "B"
    assert output.difference is not None
    assert output.difference.max_abs == pytest.approx(0.0564, abs=5e-4)
    assert found.without_tf32 is not None
    assert found.without_tf32.expected is Expected.SAME
    text = to_text(found)
    assert "TF32 on A (tf32) explains 1 node: conv (Conv) is off by 0.0563" in text
    assert "makes 0.0563" in text
    assert "y: 0.057 apart; with TF32 off nothing remains." in text
    assert "B is closer" in text


def test_a_side_without_tf32_has_no_such_excuse() -> None:
    maker = Tf32Maker(OBSERVE, Source(data=conv()))
    found = compare(Compared("cpu", maker, conv()), plain(conv()), ONES)
    assert found.expected is Expected.NO
    assert found.reasons[0].startswith("conv (Conv) on A (cpu) is off by 0.0563 where rounding allows 0.031")


def test_a_planted_fault_is_not_rounding() -> None:
    model = chain(9)
    faulty = Compared("faulty", FaultyMaker(model, "t5", steady=True), model)
    found = compare(faulty, plain(model), FEED)
    assert found.expected is Expected.NO
    assert found.reasons[0].startswith("n5 (Add) on A (faulty) is off by 0.001 ")
    assert [(node.name, node.inputs_differ) for node in found.differing][:2] == [("n5", False), ("n6", True)]
    # What comes after it does right with what it is given.
    assert {node.a.explained_by for node in found.nodes if node.name != "n5"} <= {"exact", "fp32"}


def test_a_side_that_varies_is_said() -> None:
    model = chain(3)
    found = compare(Compared("faulty", FaultyMaker(model, "t1"), model), plain(model), FEED)
    assert found.expected is Expected.UNKNOWN
    assert found.reasons[0].startswith("A (faulty) differs from run to run, so one run tells nothing of how far")


def test_optimisations_that_differ_by_rounding_are_judged_by_what_all_nodes_allow() -> None:
    model = models.conv_net(2)
    feed = {"x": models.seeded_input((1, 3, 32, 32))}
    unoptimised = parse_side("cpu,optimization=off", Path("m.onnx")).maker
    other = SessionMaker(unoptimised.configuration, Source(data=model))
    found = compare(plain(model), Compared("off", other, model), feed)
    assert found.expected in (Expected.SAME, Expected.YES)
    if found.expected is Expected.YES:
        assert found.reasons[0].startswith("No node differs when the graph is not optimised")
    assert found.unevaluated == ()
    assert all(node.b.explained_by in ("exact", "fp32") for node in found.nodes)


def test_nodes_without_an_evaluation_are_told() -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], name="draw"),
        helper.make_node("Add", ["r", "x"], ["y"], name="add"),
    ]
    model = serialized(nodes, ["n"])
    found = compare(plain(model), plain(model), FEED)
    assert found.unevaluated == ("draw (RandomNormalLike)",)
    assert (found.outputs[0].error_a, found.outputs[0].closer) == (None, "unknown")
    # The node after it is judged all the same.
    assert [node.a.explained_by for node in found.nodes] == ["unknown", "fp32"]


def test_nodes_without_a_bound_are_unknown() -> None:
    node = helper.make_node("GridSample", ["x", "grid"], ["s"], name="sample")
    grid = np.random.default_rng(0).uniform(-1, 1, (1, 4, 4, 2)).astype(np.float32)
    nodes = [node, helper.make_node("Neg", ["s"], ["y"], name="neg")]
    changed = onnx.load_model_from_string(serialized(nodes, [1, 1, 4, 4], {"grid": grid}))
    changed.opset_import[0].version = 16
    model = bytes(changed.SerializeToString())
    feed = {"x": np.random.default_rng(1).standard_normal((1, 1, 4, 4)).astype(np.float32)}
    faulty = Compared("faulty", FaultyMaker(model, "s", steady=True), model)
    found = compare(faulty, plain(model), feed)
    assert found.expected is Expected.UNKNOWN
    assert found.reasons == ("What rounding can do to these nodes is not known: sample (GridSample).",)
    # It is told how far off it is, without a judgement.
    assert found.nodes[0].a.error == pytest.approx(1e-3, rel=0.01)
    assert found.nodes[0].a.limit is None


def test_two_models_are_compared_by_names() -> None:
    second = onnx.load_model_from_string(chain(5))
    second.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32(0.5), "step"))
    found = compare(plain(chain(5), "first"), plain(bytes(second.SerializeToString()), "second"), FEED)
    assert [node.name for node in found.differing] == ["n1", "n2", "n3", "n4", "last"]
    assert found.differing[0].difference is not None
    assert found.differing[0].difference.max_abs == pytest.approx(0.25, rel=1e-6)
    assert found.expected is Expected.UNKNOWN
    assert found.reasons == (
        "The models' weights differ: 1 of 1 initializers (step). Other weights make other outputs, and no bound of "
        "rounding goes across that.",
        "The first node that differs is n1 (Add).",
    )
    assert "Nodes of two models are compared by the names of their outputs" in found.notes[0]


def test_nan_infinity_and_zero_signs() -> None:
    model = serialized([helper.make_node("Neg", ["x"], ["y"], name="neg")], ["n"])
    feed = {"x": np.array([np.nan, np.inf, 0.0, 1.0], np.float32)}
    found = compare(plain(model), plain(model), feed)
    assert found.expected is Expected.SAME
    assert found.nodes[0].a.explained_by == "exact"


def carried(model: bytes, feed: dict[str, Any]) -> Carried:
    graph = Graph(model)
    types = dict.fromkeys(graph.tensors, "tensor(float)")
    return carry(graph, Reference(graph.model), weights_of(graph.model, None), feed, types, tf32=False)


def test_errors_are_carried_through_all_nodes() -> None:
    u = 2.0**-24
    nodes = [
        helper.make_node("Mul", ["x", "three"], ["a"], name="a"),
        helper.make_node("Neg", ["a"], ["b"], name="b"),
        helper.make_node("Sub", ["b", "a"], ["y"], name="y"),
    ]
    found = carried(serialized(nodes, [1], {"three": np.float32(3)}), {"x": np.array([2], np.float32)})
    # Mul: 6 within 3 + 1 units. Sub: what both bring, and its own rounding of 12.
    assert found.exact["y"].tolist() == [-12]
    assert found.limits["y"][0] == pytest.approx(2 * 4 * 6 * u + 4 * 12 * u, rel=1e-5)
    assert found.stopped == []


def test_errors_through_sums_of_products() -> None:
    random = np.random.default_rng(0)
    w, v = (random.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("Relu", ["a"], ["r"], name="r"),
        helper.make_node("MatMul", ["r", "v"], ["y"], name="y"),
    ]
    model, feed = serialized(nodes, [1, 8], {"w": w, "v": v}), {"x": random.standard_normal((1, 8)).astype(np.float32)}
    found = carried(model, feed)
    x, w64, v64 = (value.astype(np.float64) for value in (feed["x"], w, v))
    first = np.abs(x) @ np.abs(w64) * gamma(10, 2.0**-24) + np.abs(x @ w64) * 2.0**-24
    carried_on = first @ np.abs(v64)
    assert np.all(found.limits["y"] > carried_on)
    assert np.all(found.limits["y"] < 2.5 * carried_on)
    result = OBSERVE.open(Source(data=model)).run(None, feed)[0]
    assert np.all(np.abs(result - found.exact["y"]) <= found.limits["y"])
    # A fault of a thousandth is no rounding, and neither is it known to be a fault of an optimised graph.
    within, reasons = judge_outputs({"y": result}, {"y": result}, found)
    assert (within, len(reasons)) == (True, 2)
    within, reasons = judge_outputs({"y": result}, {"y": result + np.float32(1e-3)}, found)
    assert not within
    assert reasons[1].startswith("y on B is off by 0.001, more than rounding in the graph as it is written allows")


def test_what_is_not_known_or_too_wide_is_said() -> None:
    nodes = [
        helper.make_node("Sqrt", ["x"], ["a"], name="root"),
        helper.make_node("Floor", ["a"], ["y"], name="floor"),
    ]
    found = carried(serialized(nodes, [2]), {"x": np.array([2, 4], np.float32)})
    assert (found.limits, found.stopped) == ({}, ["floor (Floor)"])
    values = {"y": np.array([1, 2], np.float32)}
    assert judge_outputs(values, values, found) == (
        False,
        [
            OPTIMISED,
            "How far rounding can move y is not known: it is not known how it is carried through floor (Floor).",
        ],
    )
    wide = Carried({"y": np.array([1.0, 2.0])}, {"y": np.array([0.5, 0.01])})
    within, reasons = judge_outputs(values, values, wide)
    assert not within
    assert reasons[1] == (
        "Rounding, carried through all nodes, may move y by 0.5 where its largest value is 2: too much to tell a fault "
        "from it."
    )


def test_optimising_differently_is_expected_where_both_are_that_close() -> None:
    """BatchNormalization is folded into the convolution on one side only."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((4, 3, 3, 3)).astype(np.float32),
        **{name: random.uniform(0.5, 1.5, 4).astype(np.float32) for name in ("s", "b", "m", "v")},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], name="norm"),
    ]
    model = serialized(nodes, [1, 3, 8, 8], weights)
    feed = {"x": models.seeded_input((1, 3, 8, 8))}
    configuration = parse_side("cpu,optimization=off", Path("m.onnx")).maker.configuration
    other = Compared("off", SessionMaker(configuration, Source(data=model)), model)
    found = compare(plain(model), other, feed)
    assert found.expected is Expected.YES
    assert found.differing == ()
    assert found.reasons[0] == OPTIMISED
    assert found.reasons[1].startswith("Both sides are as close to a float64 run as rounding allows, carried through")
    (output,) = found.outputs
    assert not output.same
    assert output.error_a is not None
    assert f"y: A is off by {output.error_a:.3g}, B by {output.error_b:.3g}, at most " in found.reasons[1]
    # Folded wrongly it would be no rounding.
    wrong = FaultyMaker(model, "y", size=0.1, steady=True)
    wrong.derived = SessionMaker(OBSERVE, Source(data=model)).derived  # type: ignore[method-assign]
    found = compare(Compared("wrong", wrong, model), plain(model), feed)
    assert found.expected is Expected.UNKNOWN
    assert found.reasons[1].startswith("y on A is off by 0.1, more than rounding in the graph")


REFERENCE = Reference(onnx.load_model_from_string(serialized([], [1], outputs=())))


def bound(node: onnx.NodeProto, *inputs: Any) -> Bound:
    wide = [
        np.asarray(value, np.float64) if np.asarray(value).dtype.kind == "f" else np.asarray(value) for value in inputs
    ]
    result = REFERENCE.evaluate(node, wide)
    assert result is not None
    found = bound_of(node, wide, result[0], REFERENCE.evaluate)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("node", "shapes", "length"),
    [
        (helper.make_node("MatMul", ["a", "b"], ["y"]), [(3, 40), (40, 5)], 40),
        (
            helper.make_node("Gemm", ["a", "b", "c"], ["y"], transA=1, alpha=-2.0, beta=-1.0),
            [(40, 3), (40, 5), (5,)],
            40,
        ),
        (helper.make_node("Conv", ["a", "b"], ["y"], group=2), [(1, 8, 5, 5), (6, 4, 3, 3)], 36),
        (helper.make_node("ConvTranspose", ["a", "b"], ["y"]), [(1, 8, 5, 5), (8, 3, 3, 3)], 72),
        (helper.make_node("Einsum", ["a", "b"], ["y"], equation="bij,bjk->bik"), [(2, 3, 7), (2, 7, 4)], 7),
        (helper.make_node("ReduceMean", ["a"], ["y"], axes=[1]), [(3, 50)], 50),
        (helper.make_node("ReduceSumSquare", ["a"], ["y"], axes=[0]), [(3, 50)], 3),
        (helper.make_node("GlobalAveragePool", ["a"], ["y"]), [(1, 2, 6, 7)], 42),
        (helper.make_node("AveragePool", ["a"], ["y"], kernel_shape=[3, 3]), [(1, 2, 6, 7)], 9),
    ],
)
def test_sums_are_bounded_by_their_length_and_magnitude(
    node: onnx.NodeProto, shapes: Sequence[tuple[int, ...]], length: int
) -> None:
    values = [
        np.random.default_rng(index).standard_normal(shape).astype(np.float32) for index, shape in enumerate(shapes)
    ]
    found = bound(node, *values)
    assert (found.basis, found.length) == ("rounding", length)
    exact = REFERENCE.evaluate(node, [value.astype(np.float64) for value in values])
    assert exact is not None
    assert np.all(found.magnitude >= np.abs(exact[0]) * (1 - 1e-12))
    # The real kernel in fp32 keeps to the bound, and the bound is not so wide that it says nothing.
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(name, 1, value.shape)
                for name, value in zip(node.input, values, strict=True)
            ],
            [onnx.ValueInfoProto(name="y")],
        ),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 13)],
    )
    session = OBSERVE.open(Source(data=model.SerializeToString()))
    result = session.run(None, dict(zip(node.input, values, strict=True)))[0]
    limit = found.limit("fp32", "float32", exact[0])
    assert np.all(np.abs(result - exact[0]) <= limit)
    assert limit.max() < 1e-3 * np.abs(found.magnitude).max()


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid"])
def test_an_activation_does_not_make_the_bound_of_a_convolution_smaller(activation: str) -> None:
    rng = np.random.default_rng(0)
    x, w = 30 * rng.standard_normal((1, 8, 6, 6)), rng.standard_normal((4, 8, 3, 3))
    fused = helper.make_node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft", activation=activation)
    alone = bound(helper.make_node("Conv", ["x", "w"], ["y"]), x, w)
    found = bound(fused, x, w)
    if activation == "Relu":
        assert (found.basis, found.length) == ("rounding", alone.length)
        assert np.array_equal(found.magnitude, alone.magnitude)
    else:
        assert (found.basis, found.length) == ("assumed", alone.length + 16)
        assert np.array_equal(found.magnitude, alone.magnitude + 1)
    fused.attribute[0].s = b"Softmax"
    assert REFERENCE.evaluate(fused, [x, w]) is None


def test_norms_are_bounded() -> None:
    random = np.random.default_rng(0)
    x = (random.standard_normal((2, 5, 64)) * 3 + 10).astype(np.float32)
    scale, bias = (random.standard_normal(64).astype(np.float32) for _ in range(2))
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1)
    reference = Reference(
        helper.make_model(helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid("", 17)])
    )
    wide = [value.astype(np.float64) for value in (x, scale, bias)]
    exact = reference.evaluate(node, wide)
    assert exact is not None
    found = bound_of(node, wide, exact[0], reference.evaluate)
    assert found is not None
    # Computed in float32, in the plainest way.
    mean = x.mean(-1, keepdims=True, dtype=np.float32)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True, dtype=np.float32)
    result = (x - mean) / np.sqrt(variance + np.float32(1e-5)) * scale + bias
    assert np.all(np.abs(result - exact[0]) <= found.limit("fp32", "float32", exact[0]))


def test_sums_in_fp16_are_an_explanation_only_where_they_are_short() -> None:
    assert gamma(2047, 2.0**-11) == pytest.approx(2047)
    assert gamma(2048, 2.0**-11) == float("inf")


def test_tf32_rounds_to_ten_bits() -> None:
    values = np.array([1.0, 1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -0.1, 0.0])
    assert to_tf32(values).tolist() == [1.0, 1 + 2.0**-10, 1.0, 1 + 2.0**-9, -0.0999755859375, 0.0]
    assert to_tf32(values, cut_off=True).tolist()[:4] == [1.0, 1 + 2.0**-10, 1.0, 1 + 2.0**-10]


def test_sides_are_read(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    side = parse_side("precision=tf32,mode=observe,cudnn_conv_algo_search=HEURISTIC", model)
    assert side.cuda
    assert side.tf32
    assert side.maker.configuration.providers[0] == (CUDA, {"use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"})
    assert not parse_side("precision=fp32", model, "cuda").tf32
    assert side.without_tf32().maker.configuration.providers[0][1]["use_tf32"] == "0"
    side = parse_side("cpu, threads=2, optimization=off, session.x=1, lockfile=a.json, model=b.onnx", model)
    made = side.maker.configuration
    assert made.attributes == {"intra_op_num_threads": 2, "graph_optimization_level": "ORT_DISABLE_ALL"}
    assert (made.entries, made.lockfile, side.maker.source.path) == ({"session.x": "1"}, "a.json", "b.onnx")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu", "'gpu' is not understood"),
        ("cpu,cuda", "'cuda' is not understood"),
        ("cpu,precision=tf32", "the CPU provider has no TF32"),
        ("precision=fp8", "precision=fp8 is none of fp32, tf32"),
        ("mode=fast", "mode=fast is none of observe, pin, strict"),
        ("threads=0", "threads=0 is no number from 1 to 1024"),
        ("threads=1025", "threads=1025 is no number from 1 to 1024"),
        ("threads=1,threads=2", "threads comes twice"),
        ("mode=", "mode has no value"),
        ("session.=1", "session.=1 gives a value to no name. Give cpu or cuda"),
        ("cuda,mlas.=1", "mlas.=1 gives a value to no name"),
        ("cuda,=1", "=1 gives a value to no name"),
        ("", "it is empty. Give cpu or cuda"),
        ("cpu,", "a part is empty. Give cpu or cuda"),
        ("cpu,thread=1", "there is no thread, and the CPU provider has no options. Did you mean threads?"),
        ("cpu,optimisation=off", r"Did you mean optimization\? Known are precision, .*, optimization and session.NAME"),
        ("cpu,nonsense=3", "there is no nonsense, and the CPU provider has no options. Known are precision"),
        ("cuda,thread=1", "there is no thread. Did you mean threads?"),
    ],
)
def test_sides_that_are_not_understood(text: str, said: str) -> None:
    with pytest.raises(SideError, match=said):
        parse_side(text, Path("m.onnx"))


def test_what_onnx_runtime_would_ignore_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(chain(1))
    sides = ("--a", "cpu,session.nonsense=1", "--b", "cpu,session.set_denormal_as_zero=1")
    status, out, _ = call(capsys, path, *sides, "--json", "--dim", "n=4")
    assert status == 0
    assert json.loads(out)["comparisons"][0]["notes"] == [
        "ONNX Runtime ignores session configuration entries that it does not know, and whether it knows "
        "session.nonsense was not checked."
    ]
    # What its CUDA provider does not know, that one refuses; here nobody is asked yet.
    assert parse_side("cuda,option_of_tomorrow=1", path).maker.configuration.providers[0][1] == {
        "option_of_tomorrow": "1"
    }


def test_what_onnx_runtime_refuses_is_passed_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(chain(1))
    opened = Configuration.open

    def falling_back(self: Configuration, source: Source) -> Any:
        print("*************** EP Error ***************")
        print("EP Error Unknown provider option: \"x\".\n when using [('CUDAExecutionProvider', {'x': '1'})]")
        return opened(replace(self, providers=OBSERVE.providers), source)

    monkeypatch.setattr("ortlock.cli.compare.choose_providers", lambda _: [CUDA])
    monkeypatch.setattr(Configuration, "open", falling_back)
    status, out, err = call(capsys, path, "--a", "cpu", "--b", "cuda,x=1", "--dim", "n=4")
    assert (status, out) == (2, "")
    assert err.startswith(
        "ortlock: side 'cuda,x=1': ONNX Runtime moved the session from CUDAExecutionProvider to CPUExecutionProvider: "
        'Unknown provider option: "x", so nothing can be told of CUDAExecutionProvider.'
    )

    def refusing(self: Configuration, source: Source) -> Any:
        raise RuntimeError('Unknown provider option: "x".')

    monkeypatch.setattr(Configuration, "open", refusing)
    status, _, err = call(capsys, path, "--a", "cpu", "--b", "cuda,x=1", "--dim", "n=4")
    assert (status, err) == (
        2,
        "ortlock: side 'cpu': ONNX Runtime refuses an option: Unknown provider option: \"x\".\n",
    )


@pytest.mark.parametrize("derived", [False, True])
def test_sessions_that_move_in_mid_life_tell_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, derived: bool
) -> None:
    """A run that fails in the provider makes ONNX Runtime go on with another one, with its answers."""
    path = tmp_path / "m.onnx"
    path.write_bytes(chain(1))
    run, providers = ReproducibleSession.run, ReproducibleSession.get_providers
    moved: set[int] = set()

    def moving(self: Any, *arguments: Any) -> Any:
        # Sessions with the model's nodes laid open are made from bytes.
        if (self._model_path is None) == derived:
            moved.add(id(self))
        return run(self, *arguments)

    monkeypatch.setattr(ReproducibleSession, "run", moving)
    monkeypatch.setattr(
        ReproducibleSession,
        "get_providers",
        lambda self: ["OtherExecutionProvider"] if id(self) in moved else providers(self),
    )
    status, out, err = call(capsys, path, "--a", "cpu", "--b", "cpu,threads=1", "--dim", "n=4")
    side = "" if derived else "side A (cpu): "
    assert (status, out) == (2, "")
    assert err == (
        f"ortlock: {side}ONNX Runtime moved a session from CPUExecutionProvider to OtherExecutionProvider, so nothing "
        "can be told of CPUExecutionProvider. `ortlock doctor` says whether it can be used.\n"
    )


def typed(op_type: str, inputs: Sequence[str], output: onnx.ValueInfoProto, element: int, **attributes: Any) -> bytes:
    """A model of one node; its inputs are of four elements of a type."""
    graph = helper.make_graph(
        [helper.make_node(op_type, list(inputs), [output.name], name="node", **attributes)],
        "g",
        [helper.make_tensor_value_info(name, element, [4]) for name in dict.fromkeys(inputs)],
        [output],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    return bytes(model.SerializeToString())


def test_models_that_vary_are_unknown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A new session of a seeded generator starts anew, so the first runs of both sides have the same bits."""
    path = tmp_path / "m.onnx"
    y = helper.make_tensor_value_info("y", 1, [4])
    path.write_bytes(typed("RandomNormal", [], y, 1, shape=[4], seed=1.0))
    status, out, _ = call(capsys, path, "--a", "cpu,mode=observe", "--b", "cpu,mode=observe,threads=1")
    assert status == 2
    assert "Outputs, A (cpu,mode=observe) against B (cpu,mode=observe,threads=1)\n" in out
    assert "unknown: A (cpu,mode=observe) against B" in out
    assert "A (cpu,mode=observe) and B (cpu,mode=observe,threads=1) differ from run to run, so one run tells" in out


def test_sequences_with_the_same_values_are_the_same_bits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    y = helper.make_tensor_sequence_value_info("y", 1, None)
    path.write_bytes(typed("SequenceConstruct", ["x", "x"], y, 1))
    status, out, _ = call(capsys, path, "--a", "cpu", "--b", "cpu,threads=1", "--json")
    assert (status, json.loads(out)["comparisons"][0]["expected"]) == (0, "same bits")
    other = onnx.load_model_from_string(typed("SequenceConstruct", ["x"], y, 1))
    found = compare(plain(path.read_bytes()), plain(bytes(other.SerializeToString())), {"x": np.ones(4, np.float32)})
    assert (found.expected, found.outputs[0].same) == (Expected.UNKNOWN, False)
    assert found.reasons[0] == "The models' nodes differ: A has 1, B has 1, e.g. node (SequenceConstruct)."


@pytest.mark.skipif(
    not hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"), reason="this ONNX Runtime cannot make them"
)
def test_bfloat16(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(typed("Cast", ["x"], helper.make_tensor_value_info("y", 1, [4]), 16, to=1))
    status, out, _ = call(capsys, path, "--a", "cpu", "--b", "cpu,threads=1")
    assert status == 0
    assert "Outputs, A (cpu) against B (cpu,threads=1), x [4]\n" in out
    path.write_bytes(typed("Identity", ["x"], helper.make_tensor_value_info("y", 16, [4]), 16))
    status, _, err = call(capsys, path, "--a", "cpu", "--b", "cpu,threads=1")
    assert status == 2
    assert "No corresponding Numpy type" in err
    assert "--shapes" not in err
    assert "add a Cast to float" in err


def test_errors_name_the_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    y = helper.make_tensor_value_info("y", 1, [4])
    path.write_bytes(typed("Neg", ["x"], y, 1))
    other.write_bytes(b"\xff" * 200)
    sides = ("--a", "cpu", "--b", f"cpu,model={other}")
    status, _, err = call(capsys, path, *sides)
    assert status == 2
    assert err.startswith(f"ortlock: {other}: ONNX Runtime cannot load it: ")
    other.write_bytes(typed("Add", ["x", "z"], y, 1))
    status, _, err = call(capsys, path, *sides)
    assert (status, err) == (
        2,
        f"ortlock: {other}: side B (cpu,model={other}) takes x tensor(float), z tensor(float), and side A ({path}) "
        "takes x tensor(float). Give two models with inputs of the same names and types.\n",
    )
    changed = onnx.load_model_from_string(typed("Neg", ["x"], y, 1))
    changed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    del changed.graph.output[0].type.tensor_type.shape.dim[:]
    changed.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 5
    other.write_bytes(changed.SerializeToString())
    status, _, err = call(capsys, path, *sides)
    assert status == 2
    assert err.startswith(f"ortlock: {other}: side B (cpu,model={other}) does not run with these inputs: ")
    assert err.endswith(" See --shapes and --dim.\n")


def test_names_do_not_break_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(typed("Neg", ["x"], helper.make_tensor_value_info("y\nz", 1, [4]), 1))
    status, out, _ = call(capsys, path, "--a", "cpu", "--b", "cpu,threads=1")
    assert status == 0
    assert "  y\\nz against a float64 run of the graph: A 0, B 0: equally far\n" in out


def test_cells_never_round_up_to_all() -> None:
    a = np.zeros(100_000, np.float32)
    b = a.copy()
    b[0] = 1
    found = compare(plain(chain(1)), plain(chain(1)), FEED).outputs[0].difference
    assert cells(found)[0] == "100%"
    from ortlock.compare import difference

    assert cells(difference(a, b))[0] == "99.99%"


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["compare", *map(str, arguments)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, other = tmp_path / "a.onnx", tmp_path / "b.onnx"
    path.write_bytes(conv())
    other.write_bytes(conv(0.2))
    status, out, err = call(capsys, path, "--a", "cpu", "--b", "cpu,threads=1", "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)["comparisons"][0]
    assert result["expected"] == "same bits"
    assert result["nodes"][0]["length"] == 2304
    status, out, _ = call(capsys, path, "--a", "cpu", "--b", f"cpu,model={other}")
    assert status == 2
    assert "unknown: A (cpu) against B" in out
    status, _, err = call(capsys, path, "--a", "cpu", "--b", "cpu,model=missing.onnx")
    assert (status, err) == (2, "ortlock: missing.onnx: no such file. Give the path of an ONNX model.\n")
    status, _, err = call(capsys, path, "--a", "cpu", "--b", "tpu")
    assert status == 2
    assert err.startswith("ortlock: side 'tpu': 'tpu' is not understood. Give cpu or cuda")
    status, _, err = call(capsys, path, "--a", "cpu", "--b", "cpu,lockfile=missing.json")
    assert status == 2
    assert "there is no such file to replay" in err
