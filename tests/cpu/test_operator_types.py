"""The floating-point types of a model, and the operators of which they decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortlock.operators import OperatorStatus, judge, lookup, model_nodes
from ortlock.operators.element_types import float_types

CUDA = "CUDAExecutionProvider"
Status = OperatorStatus


def _model(nodes: list[Any], inits: list[Any] | None = None) -> bytes:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], inits or [])
    return bytes(helper.make_model(graph).SerializeToString())


@pytest.mark.parametrize(
    ("op_type", "domain", "attributes", "types", "expected"),
    [
        ("Gelu", "", {"approximate": "tanh"}, None, Status.UNKNOWN),
        ("Gelu", "", {"approximate": "tanh"}, {"float16", "float32"}, Status.UNKNOWN),
        ("Gelu", "", {"approximate": "tanh"}, {"float32"}, Status.DETERMINISTIC),
        ("Gelu", "", {}, {"float16"}, Status.DETERMINISTIC),
        ("Gelu", "", None, {"float16"}, Status.UNKNOWN),
        ("FastGelu", "com.microsoft", {"bias": True}, None, Status.DETERMINISTIC),
        ("FastGelu", "com.microsoft", {"bias": False}, {"float16"}, Status.UNKNOWN),
        ("FastGelu", "com.microsoft", None, {"float32"}, Status.DETERMINISTIC),
        ("FastGelu", "com.microsoft", None, {"bfloat16"}, Status.DETERMINISTIC),
        ("MoE", "com.microsoft", {}, None, Status.NONDETERMINISTIC),
        ("MoE", "com.microsoft", {}, {"bfloat16"}, Status.NONDETERMINISTIC),
        ("MoE", "com.microsoft", {}, {"float32"}, Status.UNKNOWN),
    ],
)
def test_types_decide(
    op_type: str, domain: str, attributes: dict[str, object] | None, types: set[str] | None, expected: OperatorStatus
) -> None:
    assert lookup(op_type, domain, CUDA, attributes, types).status is expected


def test_bias_of_fast_gelu_and_the_types_of_the_model_are_read() -> None:
    nodes = [
        helper.make_node("FastGelu", ["x", "b"], ["a"], name="with", domain="com.microsoft"),
        helper.make_node("FastGelu", ["a"], ["c"], name="without", domain="com.microsoft"),
        helper.make_node("FastGelu", ["c", ""], ["y"], name="empty", domain="com.microsoft"),
    ]
    found = model_nodes(None, _model(nodes), CUDA)
    assert found is not None
    assert {node.name: node.attributes for node in found} == {
        "with": {"bias": True},
        "without": {"bias": False},
        "empty": {"bias": False},
    }
    assert {node.types for node in found} == {frozenset({"float32"})}
    assert [finding.status for finding in judge(found)] == [Status.DETERMINISTIC]


def _half(name: str) -> Any:
    return numpy_helper.from_array(np.ones(3, np.float16), name)


_CAST = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)


@pytest.mark.parametrize(
    ("nodes", "inits"),
    [
        ([helper.make_node("Identity", ["x"], ["y"])], [_half("w")]),
        ([_CAST], []),
        ([helper.make_node("Constant", [], ["y"], value=_half(""))], []),
        ([helper.make_node("EyeLike", ["x"], ["y"], dtype=TensorProto.FLOAT16)], []),
        ([helper.make_node("If", ["c"], ["y"], then_branch=helper.make_graph([_CAST], "b", [], []))], []),
    ],
    ids=["initializer", "cast", "constant", "dtype", "subgraph"],
)
def test_float16_anywhere_in_a_model_counts(nodes: list[Any], inits: list[Any]) -> None:
    found = model_nodes(None, _model(nodes, inits), CUDA)
    assert found is not None
    assert found[0].types == frozenset({"float16", "float32"})


def test_float16_of_inputs_and_functions_counts() -> None:
    function = helper.make_function("f", "Mine", ["a"], ["b"], [_CAST], [helper.make_opsetid("", 16)])
    call = helper.make_node("Mine", ["x"], ["y"], domain="f")
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.BFLOAT16, [2]))
    graph = helper.make_graph([call], "g", [helper.make_value_info("x", kind)], [])
    assert float_types(helper.make_model(graph, functions=[function])) == {"float16", "bfloat16"}
    assert float_types(helper.make_model(graph)) == {"bfloat16"}
