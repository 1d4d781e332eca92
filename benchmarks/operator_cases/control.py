"""Control flow, random numbers, Dropout and Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

from operator_cases.building import FLOATS, Group, bits, const, positive, x

GROUP = Group()
_add, _ms = GROUP.add, GROUP.ms

_ROWS, _WIDTH = 65, 4001


def _value(name: str, shape: tuple[int, ...], kind: int = TensorProto.FLOAT) -> object:
    return helper.make_tensor_value_info(name, kind, shape)


def _branch(operator: str) -> GraphProto:
    node = helper.make_node(operator, ["x1"], [f"of_{operator}"])
    return helper.make_graph([node], operator, [], [_value(f"of_{operator}", (_ROWS, _WIDTH))])


def _loop_body() -> GraphProto:
    """Add what does not change to the state in each round."""
    nodes = [
        helper.make_node("Identity", ["going"], ["still_going"]),
        helper.make_node("Add", ["state", "change"], ["next"]),
        helper.make_node("Identity", ["next"], ["seen"]),
    ]
    change = numpy_helper.from_array(np.linspace(0, 1, _WIDTH, dtype=np.float32), "change")
    inputs = [_value("round", (), TensorProto.INT64), _value("going", (), TensorProto.BOOL), _value("state", (_WIDTH,))]
    outputs = [_value("still_going", (), TensorProto.BOOL), _value("next", (_WIDTH,)), _value("seen", (_WIDTH,))]
    return helper.make_graph(nodes, "body", inputs, outputs, [change])


def _scan_body() -> GraphProto:
    nodes = [helper.make_node("Add", ["state", "row"], ["next"]), helper.make_node("Identity", ["next"], ["seen"])]
    inputs = [_value("state", (_WIDTH,)), _value("row", (_WIDTH,))]
    return helper.make_graph(nodes, "body", inputs, [_value("next", (_WIDTH,)), _value("seen", (_WIDTH,))])


def _control() -> None:
    more: dict[str, Any] = {"then_branch": _branch("Relu"), "else_branch": _branch("Neg")}
    _add("If", const(True, "bool"), x(_ROWS, _WIDTH), captured=1, **more)
    _add("Loop", const(20), const(True, "bool"), x(_WIDTH), outputs=2, body=_loop_body())
    _add("Scan", x(_WIDTH), x(_ROWS, _WIDTH), outputs=2, body=_scan_body(), num_scan_inputs=1)


def _random() -> None:
    shape = [1000, 1003]
    for label, seed in (("seed", 7.0), ("no seed", None)):
        for operator in ("RandomNormal", "RandomUniform"):
            _add(operator, label=label, shape=shape, seed=seed)
            _add(f"{operator}Like", x(1000, 1003), label=label, dtypes=FLOATS, seed=seed)
        _add("Bernoulli", positive(1000, 1003, low=0, high=1), label=label, seed=seed)
        _add("Multinomial", x(64, 1003), label=label, seed=seed, sample_size=100)
        ratio = const(0.3, "float32")
        training = const(True, "bool")
        data = x(1000, 1003)
        _add("Dropout", data, ratio, training, label=f"training, {label}", outputs=2, seed=None if seed is None else 7)
    _add("Dropout", x(1000, 1003), label="inference", dtypes=FLOATS, outputs=2)
    _add("Dropout", x(1000, 1003), const(0.3, "float32"), label="inference, ratio", outputs=1)
    _add("Not", bits(1000, 1003), label="of a matrix", dtypes=("bool",))


def _fourier() -> None:
    for label, shape, dimensions in (("row", (16, 4096), 1), ("odd row", (7, 10_007), 1), ("plane", (5, 129, 255), 2)):
        more: dict[str, Any] = {"label": label, "signal_ndim": dimensions, "normalized": 0, "onesided": 1}
        _ms("Rfft", x(*shape), dtypes=("float32", "float64"), **more)
        half = (*shape[:-1], shape[-1] // 2 + 1, 2)
        _ms("Irfft", x(*half), dtypes=("float32", "float64"), **more)
    _ms("Rfft", x(16, 4096), label="half", dtypes=("float16",), signal_ndim=1, normalized=0, onesided=1)
    _add("DFT", x(4, 1001, 1), label="opset 17", axis=1)
    _add("DFT", x(4, 1024, 2), None, const(1), label="opset 20, inverse", opset=20, inverse=1)
    _add("STFT", x(2, 4096, 1), const(128), None, const(256))


_control()
_random()
_fourier()
