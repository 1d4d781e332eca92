"""Models that draw at random, for the tests of ``random_ops`` on every provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 16


def value(name: str, element: int = TensorProto.FLOAT, shape: Sequence[int | str] | None = None) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def build(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[Any],
    inputs: Sequence[Any] | None = None,
    inits: Sequence[onnx.TensorProto] = (),
    opset: int = OPSET,
    functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:
    """Return a model whose input is ``x``, a float matrix of any size, unless told otherwise."""
    given = [value("x", shape=["n", "m"])] if inputs is None else list(inputs)
    graph = helper.make_graph(list(nodes), "g", given, list(outputs), list(inits))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=functions)
    return bytes(model.SerializeToString())


def one(op_type: str, element: int = TensorProto.FLOAT, opset: int = OPSET, **attributes: Any) -> bytes:
    """Return a model of one node, ``noise``, whose output is ``y``; it reads ``x`` if its operator has an input."""
    source = [] if op_type in ("RandomNormal", "RandomUniform") else ["x"]
    node = helper.make_node(op_type, source, ["y"], name="noise", **attributes)
    return build([node], [value("y", element)], None if source else [], opset=opset)


def dropout(training: bool | None) -> bytes:
    """Return a Dropout of a quarter, outputs ``y`` and ``mask``; None: its mode is the input ``t``."""
    inputs = [value("x", shape=["n", "m"])]
    inits = [numpy_helper.from_array(np.array(0.25, np.float32), "r")]
    if training is None:
        inputs.append(value("t", TensorProto.BOOL, []))
    else:
        inits.append(numpy_helper.from_array(np.array(training), "t"))
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y", "mask"], name="drop", seed=3)
    return build([node], [value("y"), value("mask", TensorProto.BOOL)], inputs, inits)


def looped(inner: str = "RandomUniformLike", seed: float | None = 5.0) -> bytes:
    """Return a Loop of three iterations in a Loop of two, whose every iteration draws; output ``y`` [2,3,n,m]."""
    attributes = {} if seed is None else {"seed": seed}
    draw = helper.make_node(inner, ["x"], ["drawn"], name="noise", **attributes)
    innermost = helper.make_graph(
        [draw, helper.make_node("Identity", ["c1"], ["d1"])],
        "inner",
        [value("i1", TensorProto.INT64, []), value("c1", TensorProto.BOOL, [])],
        [value("d1", TensorProto.BOOL), value("drawn")],
    )
    outer = helper.make_graph(
        [
            helper.make_node("Loop", ["three", ""], ["scanned"], name="inner", body=innermost),
            helper.make_node("Identity", ["c0"], ["d0"]),
        ],
        "outer",
        [value("i0", TensorProto.INT64, []), value("c0", TensorProto.BOOL, [])],
        [value("d0", TensorProto.BOOL), value("scanned")],
    )
    inits = [numpy_helper.from_array(np.array(2), "two"), numpy_helper.from_array(np.array(3), "three")]
    return build([helper.make_node("Loop", ["two", ""], ["y"], name="outer", body=outer)], [value("y")], inits=inits)
