"""Finding the first node that differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortlock import models
from ortlock.compare.metrics import difference
from ortlock.configuration import Source
from ortlock.localise import Graph, GraphError, Localised, SessionMaker, localise
from ortlock.localise.observing import Effort, Observer
from tests.cpu.planted import CPU, OBSERVE, FaultyMaker, chain, serialized

FEED = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}


def search(model: bytes, tensor: str, **options: Any) -> Localised:
    effort = {name: options.pop(name) for name in ("runs", "sessions", "budget_bytes") if name in options}
    return localise(model, FEED, FaultyMaker(model, tensor, **options), **effort)


def test_the_right_node_of_300_is_named() -> None:
    found = search(chain(300), "t137")
    assert found.differs
    assert found.confirmed
    assert found.node is not None
    assert (found.node.name, found.node.op_type, found.node.index) == ("n137", "Add", 137)
    assert (found.nodes, found.exposed, found.batches) == (301, 301, 1)
    assert found.seconds < 60
    assert [tensor.name for tensor in found.node.inputs] == ["t136"]
    (output,) = found.node.outputs
    assert (output.tensor.name, output.tensor.type, output.tensor.shape) == ("t137", "float32", (64,))
    assert output.distinct == 8  # two sessions of four runs
    assert output.difference is not None
    assert output.difference.max_ulp is not None
    assert output.difference.max_ulp > 0
    assert 0 < (output.difference.max_abs or 0) < 1e-3
    assert "n137 (Add)" in str(found)
    assert "8 distinct values" in str(found)


def test_a_small_budget_makes_batches_and_stops_at_the_first_that_differs() -> None:
    # 64 floats a tensor, three copies: eight tensors a batch.
    found = search(chain(100), "t41", budget_bytes=8 * 3 * 256)
    assert found.node is not None
    assert found.node.name == "n41"
    assert found.exposed == 48
    # t41 is the second of its batch, so its input was seen in the same runs.
    assert (found.batches, found.confirmed) == (6, True)


def test_inputs_that_came_in_an_earlier_batch_are_looked_at_again() -> None:
    found = search(chain(100), "t40", budget_bytes=8 * 3 * 256)
    assert found.node is not None
    assert (found.node.name, found.batches, found.confirmed) == ("n40", 7, True)


def test_a_rare_fault_is_followed_to_its_node() -> None:
    # In batches of one tensor a fault in one of five runs may show first at a later node.
    for seed in range(4):
        found = search(
            chain(8), "t2", one_in=5, runs=6, sessions=2, budget_bytes=256, random=np.random.default_rng(seed)
        )
        if found.differs and found.node is not None and found.confirmed:
            assert found.node.name == "n2"


def test_no_difference() -> None:
    found = localise(chain(5), FEED, SessionMaker(OBSERVE, Source(data=chain(5))))
    assert (found.differs, found.node, found.vanished) == (False, None, False)
    assert str(found) == "no output differed (2 sessions, 4 runs each)"


def test_a_difference_that_vanishes_is_said() -> None:
    found = search(chain(5), "t2", hidden=True)
    assert (found.differs, found.node, found.vanished) == (True, None, True)
    assert "no tensor does once all are made outputs" in str(found)
    assert any("can make a difference vanish" in note for note in found.notes)


def test_two_configurations() -> None:
    model = chain(9)
    other = SessionMaker(OBSERVE, Source(data=model))
    assert not localise(model, FEED, FaultyMaker(model, "t5", size=0.0), other).differs
    # Always the same wrong value on one side: no side differs from itself.
    found = localise(model, FEED, FaultyMaker(model, "t5", steady=True), other)
    assert found.node is not None
    assert found.node.name == "n5"
    assert found.graph == "as in the model"
    assert [output.distinct for output in found.node.outputs] == [2]
    assert found.notes == ()


def test_a_side_that_differs_from_itself_is_said() -> None:
    model = chain(5)
    found = localise(model, FEED, FaultyMaker(model, "t3"), SessionMaker(OBSERVE, Source(data=model)))
    assert found.node is not None
    assert found.node.name == "n3"
    assert "Side A differs from run to run by itself: 8 distinct outputs." in found.notes


def test_a_node_that_ort_itself_computes_otherwise_each_time() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("RandomNormalLike", ["a"], ["noise"], name="noise"),
        helper.make_node("Add", ["a", "noise"], ["y"], name="add"),
    ]
    model = serialized(nodes, ["n"])
    found = localise(model, FEED, SessionMaker(OBSERVE, Source(data=model)))
    assert found.graph == "optimised"
    assert found.node is not None
    assert (found.node.name, found.node.status) == ("noise", "stateful")
    assert "generator keeps a state" in found.node.reason
    assert "Draw the numbers outside the model" in found.node.remedy


def test_fused_nodes_are_searched_fused() -> None:
    weights = np.ones((1, 1, 1, 1), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("RandomUniformLike", ["r"], ["y"], name="draw"),
    ]
    model = serialized(nodes, [1, 1, 4, 4], {"w": weights})
    found = localise(
        model, {"x": np.ones((1, 1, 4, 4), np.float32)}, SessionMaker(replace(OBSERVE), Source(data=model))
    )
    assert found.node is not None
    assert found.node.name == "draw"
    assert found.nodes < 4  # Conv and Relu are one


@pytest.mark.parametrize("saved", [b"no model", None, serialized([helper.make_node("Nope", ["x"], ["y"])], [1])])
def test_an_optimised_graph_that_cannot_be_searched_is_left(saved: bytes | None) -> None:
    class Odd(FaultyMaker):
        def optimise(self) -> bytes | None:
            return saved

    found = localise(chain(5), FEED, Odd(chain(5), "t3"))
    assert found.node is not None
    assert (found.node.name, found.graph) == ("n3", "as in the model")
    assert found.notes == ("The optimised graph cannot be searched here, so the model's own nodes ran unfused.",)


def test_subgraphs_are_reported_by_the_outer_node() -> None:
    def branch(name: str) -> onnx.GraphProto:
        nodes = [helper.make_node("RandomNormalLike", ["x"], [f"{name}_r"], name="inner")]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_r", TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0, name="sum"),
        helper.make_node("Greater", ["total", "zero"], ["flag"], name="greater"),
        helper.make_node("If", ["flag"], ["y"], name="if", then_branch=branch("a"), else_branch=branch("b")),
    ]
    model = serialized(nodes, ["n"], {"zero": np.float32(0)})
    found = localise(model, FEED, SessionMaker(OBSERVE, Source(data=model)))
    assert found.node is not None
    assert (found.node.name, found.node.op_type, found.node.has_subgraphs) == ("if", "If", True)
    # What the branches read from outside counts as an input.
    assert [tensor.name for tensor in found.node.inputs] == ["flag", "x"]
    assert "may be a node inside them" in str(found)


def test_types_that_numpy_lacks_are_looked_at_as_float32() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], name="to", to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["y"], name="from", to=TensorProto.FLOAT),
    ]
    model = serialized(nodes, ["n"])
    observer = Observer(Graph(model), [SessionMaker(OBSERVE, Source(data=model))], FEED, Effort(2, 1, 1 << 20))
    seen = observer.look(["b", "y"])
    assert [(seen[name].type, seen[name].shape, seen[name].distinct) for name in ("b", "y")] == [
        ("bfloat16", (64,), 1),
        ("float32", (64,), 1),
    ]


def test_external_data_is_found(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], name="add"),
        helper.make_node("RandomNormalLike", ["a"], ["y"], name="draw"),
    ]
    model = onnx.load_model_from_string(serialized(nodes, [1024], {"w": np.ones(1024, np.float32)}))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    source = Source(path=str(path))
    makers = SessionMaker(OBSERVE, source)
    other = SessionMaker(replace(OBSERVE, attributes={"intra_op_num_threads": 1}), source)
    feed = {"x": np.ones(1024, np.float32)}
    for found in (localise(source.read(), feed, makers), localise(source.read(), feed, makers, other)):
        assert found.node is not None
        assert found.node.name == "draw"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(GraphError, match="cannot be read as ONNX"):
        localise(b"no model", FEED, FaultyMaker(chain(2), "t0"))


def test_a_configuration_survives_json_and_a_session() -> None:
    import onnxruntime

    from ortlock import ReproducibleSession
    from ortlock.configuration import Configuration

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = ReproducibleSession(models.trivial(), options, providers=[CPU])
    made = Configuration.of(session)
    assert Configuration.from_dict(made.to_dict()) == made
    again = made.open(Source(data=models.trivial()))
    now = again.get_session_options()
    assert (now.intra_op_num_threads, now.graph_optimization_level) == (3, options.graph_optimization_level)
    assert (again.mode, again.get_providers()) == (session.mode, [CPU])


def test_differences_are_measured_bit_by_bit() -> None:
    one = np.float32(1)
    above = np.nextafter(one, np.float32(2))
    a = np.array([1, 0.0, np.nan, np.inf, 2, np.inf], np.float32)
    b = np.array([above, -0.0, np.nan, np.inf, 2, -np.inf], np.float32)
    found = difference(a, b)
    assert (found.size, found.equal, found.nan, found.infinite, found.signed_zero) == (6, 3, 0, 1, 1)
    assert (found.max_ulp, found.max_abs) == (1, float(above - one))
    assert found.max_rel == pytest.approx(2**-23, rel=1e-6)
    assert found.histogram[:3] == (2, 1, 0)
    payload = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert difference(payload, np.array([np.nan], np.float32)).nan == 1
    assert difference(a, a).same
    assert not difference(a, b).same


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_ulps_over_the_whole_range(kind: type[np.floating[Any]]) -> None:
    info = np.finfo(kind)
    found = difference(np.array([-info.max], kind), np.array([info.max], kind))
    bits = np.dtype(kind).itemsize * 8
    largest = int(np.array([info.max], kind).view(f"u{bits // 8}")[0])
    assert found.max_ulp == 2 * largest
    tiny = np.array([info.smallest_subnormal], kind)
    assert difference(tiny, -tiny).max_ulp == 2
    assert difference(np.array([1], kind), np.array([1 + info.eps], kind)).max_ulp == 1


def test_shapes_types_and_integers() -> None:
    assert difference(np.zeros(2, np.float32), np.zeros(3, np.float32)).mismatch == "float32[2] against float32[3]"
    found = difference(np.array([1, 5], np.int64), np.array([1, 2], np.int64))
    assert (found.equal, found.max_abs, found.max_ulp) == (1, 3.0, None)
    assert difference(np.array(["a", "b"], object), np.array(["a", "c"], object)).equal == 1
    assert difference(np.array([True]), np.array([False])).max_abs == 1.0
    assert difference(np.zeros(0, np.float32), np.zeros(0, np.float32)).same
