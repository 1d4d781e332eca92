"""Elementwise operators: one case for each operator and type, large, odd and with special values."""

from __future__ import annotations

from typing import Any

from operator_cases.building import FLOATS, WIDE_FLOATS, Group, bits, const, ints, near_one, positive, special, x

GROUP = Group()
_add = GROUP.add
_MANY = 1_000_003

_UNARY = """
Abs Ceil Cos Erf Exp Floor Log Neg Reciprocal Round Sigmoid Sign Sin Sqrt Tanh Elu HardSigmoid HardSwish LeakyRelu Relu
Selu Softplus Softsign ThresholdedRelu IsNaN Shrink
"""
_UNARY_FP32 = ["Celu", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan"]
_BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "PRelu", "Mod"]
_COMPARE = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
_LOGIC = ["And", "Or", "Xor"]
_CAST_TO = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}


def _unary() -> None:
    for operator in _UNARY.split():
        _add(operator, special(_MANY), dtypes=FLOATS)
    for operator in _UNARY_FP32:
        _add(operator, special(_MANY))
    for operator in ("Relu", "Sigmoid", "Tanh", "Exp", "Sqrt"):
        _add(operator, special(_MANY), dtypes=("bfloat16",))
    _add("IsInf", special(_MANY), dtypes=FLOATS, opset=20)
    _add("Not", bits(_MANY), dtypes=("bool",))
    _add("BitwiseNot", x(_MANY), dtypes=("int32",), opset=18)
    _add("Gelu", x(_MANY), dtypes=WIDE_FLOATS, opset=20)
    _add("Gelu", x(_MANY), label="tanh", dtypes=FLOATS, opset=20, approximate="tanh")
    _add("Mish", x(_MANY), dtypes=FLOATS, opset=18)
    _add("Swish", x(_MANY), dtypes=FLOATS, opset=24)
    _add("Clip", special(_MANY), const(-0.5, None), const(0.5, None), dtypes=(*FLOATS, "float64", "int32", "int64"))
    _add("Identity", special(_MANY), dtypes=FLOATS)
    for operator in ("Affine", "ScaledTanh", "ParametricSoftplus"):
        _add(operator, x(_MANY), dtypes=FLOATS, opset=1, outputs=("T",), alpha=0.7, beta=0.3)


def _binary() -> None:
    for operator in _BINARY:
        # Broadcast along the middle, so that indices are computed.
        more: dict[str, Any] = {"fmod": 1} if operator == "Mod" else {}
        base = positive if operator == "Pow" else special
        _add(operator, base(101, 97, 103), special(97, 1), label="broadcast", dtypes=FLOATS, **more)
    for operator in ("Add", "Mul", "Div", "Max", "Min", "Sub", "Mod"):
        _add(operator, x(_MANY), ints(1, 9, _MANY, dtype="int32"), label="integers", dtypes=("int32",))
    for operator in ("Add", "Mul", "Sub", "Div"):
        _add(operator, x(_MANY), x(_MANY), label="same shape", dtypes=("float32", "bfloat16", "float64"))
    for operator in _COMPARE:
        _add(operator, special(101, 97, 103), special(97, 1), label="broadcast", dtypes=FLOATS)
    for operator in _LOGIC:
        _add(operator, bits(101, 97, 103), bits(97, 1), label="broadcast", dtypes=("bool",))
    for operator in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        _add(operator, x(_MANY), x(_MANY), dtypes=("int32",), opset=18)
    _add("BitShift", x(_MANY), ints(0, 8, _MANY, dtype="uint32"), dtypes=("uint32",), direction="LEFT")
    _add("Where", bits(101, 97, 103), special(97, 1), special(101, 97, 103), dtypes=(*FLOATS, "int64"))
    _add("Max", x(_MANY), x(_MANY), x(_MANY), label="of three", dtypes=FLOATS)
    _add("Sum", x(_MANY), near_one(_MANY), x(_MANY), x(_MANY), label="of four", dtypes=WIDE_FLOATS)


def _casts() -> None:
    for name, to in _CAST_TO.items():
        _add("Cast", x(_MANY, scale=40), label=f"to {name}", to=to)
    _add("Cast", special(_MANY), label="to float16, special", to=10)
    _add("CastLike", x(_MANY), ints(0, 2, 3, dtype="float16"), opset=19)


_unary()
_binary()
_casts()
