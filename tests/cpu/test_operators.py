"""What is known of operators, and reading a session's nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from ortlock.operators import Node, OperatorStatus, judge, lookup, model_nodes, nodes_of_session, nodes_with_weights

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
Status = OperatorStatus


def _model(nodes: list[Any], inits: list[Any] | None = None, outputs: tuple[str, ...] = ("y",)) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        inits or [],
    )
    opsets = [helper.make_opsetid("", 16), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


@pytest.mark.parametrize(
    ("op_type", "domain", "provider", "attributes", "expected"),
    [
        ("Relu", "", CUDA, {}, Status.DETERMINISTIC),
        ("Conv", "", CUDA, {}, Status.DETERMINISTIC),
        ("Conv", "com.ms.internal.nhwc", CUDA, None, Status.DETERMINISTIC),
        ("FusedConv", "com.microsoft", CUDA, {}, Status.DETERMINISTIC),
        ("ReduceMean", "", CUDA, {}, Status.SETTING),
        ("ReduceMax", "", CUDA, {}, Status.DETERMINISTIC),
        ("ReduceMean", "", CPU, {}, Status.DETERMINISTIC),
        ("ScatterND", "", CUDA, {"reduction": "add"}, Status.NONDETERMINISTIC),
        ("ScatterElements", "", CUDA, {"reduction": "mul"}, Status.NONDETERMINISTIC),
        ("ScatterElements", "", CUDA, {"reduction": "max"}, Status.DETERMINISTIC),
        ("ScatterND", "", CUDA, {}, Status.UNKNOWN),
        ("ScatterND", "", CUDA, None, Status.NONDETERMINISTIC),
        ("ScatterND", "", CPU, {"reduction": "add"}, Status.NONDETERMINISTIC),
        ("ScatterND", "", CPU, {}, Status.NONDETERMINISTIC),
        ("ScatterElements", "", CPU, {"reduction": "add"}, Status.DETERMINISTIC),
        ("Einsum", "", CUDA, {"equation": "bij, bjk -> bik"}, Status.DETERMINISTIC),
        ("Einsum", "", CUDA, {"equation": "...ij,...jk"}, Status.DETERMINISTIC),
        ("Einsum", "", CUDA, {"equation": "ij,jk->k"}, Status.NONDETERMINISTIC),
        ("Einsum", "", CUDA, None, Status.UNKNOWN),
        ("Einsum", "", CPU, {"equation": "ij,jk->k"}, Status.DETERMINISTIC),
        ("GroupNorm", "com.microsoft", CUDA, {}, Status.NONDETERMINISTIC),
        ("RandomNormalLike", "", CUDA, {"seed": 1.0}, Status.STATEFUL),
        ("RandomUniform", "", CPU, {}, Status.STATEFUL),
        ("QLinearConv", "", CPU, {}, Status.DETERMINISTIC),
        ("QLinearConv", "", CUDA, {}, Status.UNKNOWN),  # no CUDA kernel
        ("Hardmax", "", CPU, {}, Status.DETERMINISTIC),
        ("Dropout", "", CUDA, {}, Status.DETERMINISTIC),
        ("Dropout", "", CUDA, {"training_mode": False}, Status.DETERMINISTIC),
        ("Dropout", "", CUDA, {"training_mode": True}, Status.STATEFUL),
        ("Dropout", "", CUDA, {"training_mode": None}, Status.UNKNOWN),
        ("Dropout", "", CUDA, None, Status.UNKNOWN),
        ("BatchNormalization", "", CUDA, {"training_mode": 1}, Status.UNKNOWN),
        ("Mine", "my.functions", CUDA, {"function": True}, Status.DETERMINISTIC),
        ("BatchNormalization", "", CPU, {"training_mode": 1}, Status.DETERMINISTIC),
        ("BitmaskDropout", "com.microsoft", CUDA, {"training_mode": True}, Status.STATEFUL),
        ("BitmaskDropout", "com.microsoft", CUDA, None, Status.UNKNOWN),
        ("BiasDropout", "com.microsoft", CUDA, {"training_mode": False}, Status.STATEFUL),
        ("ReduceProd", "", CUDA, {}, Status.DETERMINISTIC),
        ("MatMulNBits", "com.microsoft", CUDA, {}, Status.DETERMINISTIC),
        ("MatMulNBits", "com.microsoft", CUDA, {"weight_prepacked": 2}, Status.UNKNOWN),
        ("ConvTransposeWithDynamicPads", "com.microsoft", CUDA, {}, Status.DETERMINISTIC),
        ("AllReduce", "com.microsoft", CUDA, {}, Status.UNKNOWN),
        ("QMoE", "com.microsoft", CUDA, {}, Status.UNKNOWN),
        ("Sampling", "com.microsoft", CUDA, {}, Status.UNKNOWN),  # read, not measured
        ("Conv", "com.microsoft.nchwc", CPU, None, Status.DETERMINISTIC),
        ("NobodyKnows", "", CUDA, {}, Status.UNKNOWN),
        ("Relu", "my.domain", CUDA, {}, Status.UNKNOWN),
        ("Relu", "", "TensorrtExecutionProvider", {}, Status.UNKNOWN),
    ],
)
def test_lookup(
    op_type: str, domain: str, provider: str, attributes: dict[str, object] | None, expected: OperatorStatus
) -> None:
    knowledge = lookup(op_type, domain, provider, attributes)
    assert knowledge.status is expected
    assert knowledge.reason
    assert (knowledge.basis == "none") == (expected is Status.UNKNOWN)
    if expected in (Status.NONDETERMINISTIC, Status.STATEFUL, Status.UNKNOWN, Status.SETTING):
        assert knowledge.remedy


def test_judge_groups_and_puts_the_worst_first() -> None:
    nodes = [Node(f"r{i}", "Relu", "", CUDA, {}) for i in range(7)]
    nodes += [Node("s", "ScatterND", "", CUDA, {"reduction": "add"}), Node("", "Mystery", "", CUDA, {})]
    findings = judge(nodes)
    assert [finding.op_type for finding in findings] == ["ScatterND", "Mystery", "Relu"]
    assert findings[2].count == 7
    assert findings[2].examples == tuple(f"r{i} (Relu)" for i in range(5))
    assert findings[1].examples == ("an unnamed Mystery",)


def test_nodes_of_a_session_are_those_that_run() -> None:
    weights = numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    data = _model(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
            helper.make_node("Relu", ["a"], ["b"], name="gate"),
            helper.make_node("Identity", ["b"], ["y"], name="end"),
        ],
        [weights],
    )
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(data, options, providers=[CPU])
    listed = nodes_of_session(session, None, data)
    recorded = hasattr(session, "get_provider_graph_assignment_info")
    assert listed.known_by == ("assignment" if recorded else "model file")
    assert {node.op_type for node in listed.nodes} >= {"MatMul", "Relu"}
    assert {node.provider for node in listed.nodes} == {CPU}
    if recorded:
        assert "Identity" not in {node.op_type for node in listed.nodes}  # optimised away


def test_not_recorded_falls_back_to_the_model() -> None:
    data = _model([helper.make_node("Relu", ["x"], ["y"], name="gate")])
    listed = nodes_of_session(onnxruntime.InferenceSession(data, providers=[CPU]), None, data)
    assert listed.known_by == "model file"
    assert [(node.name, node.op_type, node.provider) for node in listed.nodes] == [("gate", "Relu", CPU)]


def test_subgraphs_functions_and_attributes_are_read() -> None:
    branch = helper.make_graph(
        [helper.make_node("ScatterND", ["d", "i", "u"], ["o"], name="inner", reduction="add")],
        "branch",
        [],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
    )
    function = helper.make_function(
        "f",
        "Mine",
        ["a"],
        ["b"],
        [helper.make_node("Tanh", ["a"], ["b"], name="in_function")],
        [helper.make_opsetid("", 16)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=branch),
            helper.make_node("Mine", ["x"], ["z"], domain="f", name="call"),
        ],
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], functions=[function])
    nodes = model_nodes(None, model.SerializeToString(), CUDA)
    assert nodes is not None
    assert [(node.name, node.op_type) for node in nodes] == [
        ("if", "If"),
        ("inner", "ScatterND"),
        ("inner", "ScatterND"),
        ("call", "Mine"),
        ("in_function", "Tanh"),
    ]
    assert nodes[1].attributes == {"reduction": "add"}


def test_training_mode_of_dropout_is_read_from_its_input() -> None:
    training = numpy_helper.from_array(np.array(True), "on")
    constant = helper.make_node("Constant", [], ["off"], value=numpy_helper.from_array(np.array(False)))
    ratio = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    nodes = [
        constant,
        helper.make_node("Dropout", ["x", "half", "on"], ["a"], name="training"),
        helper.make_node("Dropout", ["x", "half", "off"], ["b"], name="inference"),
        helper.make_node("Dropout", ["x", "half", "fed"], ["c"], name="fed"),
        helper.make_node("Dropout", ["x"], ["y"], name="short"),
    ]
    found = model_nodes(None, _model(nodes, [training, ratio]), CPU)
    assert found is not None
    assert {node.name: node.attributes for node in found if node.name} == {
        "training": {"training_mode": True},
        "inference": {"training_mode": False},
        "fed": {"training_mode": None},
        "short": {},
    }


class _Session:
    """Stands for a session of an ONNX Runtime that records nothing."""

    def get_providers(self) -> list[str]:
        return [CUDA, CPU]


def test_without_a_record_nodes_without_a_cuda_kernel_are_the_cpu_s() -> None:
    operators = ["Relu", "Acos", "QLinearConv", "GroupNormalization", "Mystery"]
    nodes = [helper.make_node(name, ["x"], ["y"], name=name) for name in operators]
    nodes.append(helper.make_node("Mine", ["x"], ["y"], domain="my.domain", name="mine"))
    listed = nodes_of_session(_Session(), None, _model(nodes))
    assert {node.name: node.provider for node in listed.nodes} == {
        "Relu": CUDA,
        "Acos": CPU,
        "QLinearConv": CPU,
        "GroupNormalization": CUDA,  # replaced by other nodes, which run there
        "Mystery": CPU,
        "mine": CUDA,
    }


def test_unreadable_models_are_unknown(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\xff" * 100)
    assert model_nodes(str(broken), None, CPU) is None
    assert model_nodes(str(tmp_path / "missing.onnx"), None, CPU) is None
    assert model_nodes(str(tmp_path / "model.ort"), None, CPU) is None


def test_external_data_is_not_loaded(tmp_path: Path) -> None:
    big = numpy_helper.from_array(np.zeros((256, 256), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [big],
    )
    path = tmp_path / "model.onnx"
    save_model(helper.make_model(graph), str(path), save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    nodes = model_nodes(str(path), None, CPU)
    assert nodes is not None
    assert [node.op_type for node in nodes] == ["MatMul"]


def weights(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


CONVOLUTIONS = _model(
    [
        helper.make_node("Conv", ["x", "w2"], ["a"], name="flat"),
        helper.make_node("Conv", ["x", "w2", "b"], ["b2"]),
        helper.make_node("ConvTranspose", ["x", "w2t"], ["c"], name="up"),
        helper.make_node("FusedConv", ["x", "w2"], ["d"], name="fused", domain="com.microsoft"),
        helper.make_node("Conv", ["x", "w1"], ["e"], name="line"),
        helper.make_node("Conv", ["x", "w3"], ["f"], name="volume"),
        helper.make_node("Conv", ["x", "point"], ["g"], name="point"),
        helper.make_node("Conv", ["x", "depth"], ["h"], name="depthwise"),
        helper.make_node("Conv", ["x", "computed"], ["i"], name="computed"),
        helper.make_node("MatMul", ["x", "w2"], ["y"], name="no convolution"),
    ],
    [
        weights("w2", 8, 4, 3, 5),
        weights("w2t", 4, 8, 3, 5),
        weights("w1", 8, 4, 7),
        weights("w3", 8, 4, 2, 3, 5),
        weights("point", 8, 4, 1, 1),
        weights("depth", 8, 1, 3, 3),
        weights("b", 8),
    ],
)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (("w f32[8,4,3,5]",), ("flat (Conv)", "an unnamed Conv", "fused (com.microsoft.FusedConv)")),
        (("x f16[1,4,9,9]", "w f16[8,4,3,5] nhwc", "y f16[1,8,7,5]"), ("flat (Conv)", "an unnamed Conv", "fused")),
        (("w f32[4,8,3,5]",), ("up (ConvTranspose)",)),
        (("dy f32[1,8,9,9]", "w f32[4,8,3,5]", "dx f32[1,8,9,9]"), ("up (ConvTranspose)",)),
        # A convolution over one axis gets a second one of size 1, wherever ONNX Runtime puts it.
        (("w f32[8,4,7,1]",), ("line (Conv)",)),
        (("w f32[8,4,1,7] nhwc",), ("line (Conv)",)),
        (("w f32[8,4,2,3,5]",), ("volume (Conv)",)),
        (("w f32[8,4,1,1]",), ("point (Conv)",)),
        (("w f32[8,1,3,3]",), ("depthwise (Conv)",)),
        (("w f32[8,4,5,3]",), ()),
        (("w f32[4,8,7,1]",), ()),
        (("w f32[8,4]",), ("point (Conv)",)),
        (("x f32[8,4,3,5]", "y f32[8,4,3,5]", "dw f32[8,4,3,5]"), ()),
        (("w f32[]",), ()),
        (("w",), ()),
        ((), ()),
    ],
    ids=str,
)
def test_convolutions_are_found_by_their_weights(tensors: tuple[str, ...], expected: tuple[str, ...]) -> None:
    found = nodes_with_weights(None, CONVOLUTIONS, tensors)
    assert len(found) == len(expected)
    assert all(label.startswith(start) for label, start in zip(found, expected, strict=True))


def test_weights_in_files_of_their_own_are_not_needed(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="c")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weights("w", 32, 16, 3, 3)],
    )
    path = tmp_path / "model.onnx"
    save_model(helper.make_model(graph), str(path), save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    assert nodes_with_weights(str(path), None, ("w f32[32,16,3,3]",)) == ("c (Conv)",)


def test_weights_of_models_that_cannot_be_read_match_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\xff" * 100)
    for path in (str(broken), str(tmp_path / "missing.onnx"), None):
        assert nodes_with_weights(path, None, ("w f32[8,4,3,5]",)) == ()


def test_convolutions_with_constant_weights_are_found() -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weights("", 8, 4, 3, 3)),
        helper.make_node("Conv", ["x", "w"], ["y"], name="c"),
    ]
    assert nodes_with_weights(None, _model(nodes), ("w f32[8,4,3,3]",)) == ("c (Conv)",)
