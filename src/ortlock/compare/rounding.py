"""How far rounding alone can move a node's output: bounds from the length of its sums.

A sum of K products, in whatever order, is off by at most gamma_K * sum |a||b| with gamma_K = K u / (1 - K u) and u the
unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). The sum of magnitudes is the node
itself, evaluated in float64 on the absolute values of its inputs. Elementary functions have no such theorem: libraries
document a few units in the last place, and 16 are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Values = Sequence[Any]
"""A node's inputs, floats in float64; None for an absent one."""
Evaluate = Callable[[onnx.NodeProto, Values], "Sequence[Any] | None"]

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff by element type."""
TF32 = 2.0**-11
"""Unit roundoff of TF32's operands, rounded to nearest; twice that where the lower bits are cut off."""

_SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
_ASSUMED = 16

_EXACT = """
Identity Reshape Transpose Squeeze Unsqueeze Flatten Concat Split Slice Gather GatherElements GatherND Expand Tile Pad
Relu Abs Neg Max Min Clip Sign Floor Ceil Round Where MaxPool GlobalMaxPool ReduceMax ReduceMin TopK DepthToSpace
SpaceToDepth Shape Size ConstantOfShape Constant Range Equal Greater Less GreaterOrEqual LessOrEqual And Or Not Xor
NonZero ArgMax ArgMin Trilu Compress ReverseSequence
"""
_ROUNDED = "Add Sub Mul Cast CastLike"
_MATRIX = "Conv ConvTranspose FusedConv MatMul Gemm FusedMatMul Einsum"
_SUMS = "ReduceSum ReduceMean ReduceL1 ReduceSumSquare GlobalAveragePool AveragePool CumSum Sum Mean"
_RELATIVE = "ReduceL2 ReduceProd Div Sqrt Reciprocal Exp"
_UNIT_SIZED = "Tanh Sigmoid Erf Sin Cos Softsign HardSigmoid Log Atan Asin Acos"
_INPUT_SIZED = "Gelu FastGelu QuickGelu Swish Mish HardSwish LeakyRelu PRelu Elu Selu Softplus Pow"
KINDS = {
    operator: kind
    for kind, operators in (
        ("exact", _EXACT),
        ("rounded", _ROUNDED),
        ("matrix", _MATRIX),
        ("sum", _SUMS),
        ("relative", _RELATIVE),
        ("unit sized", _UNIT_SIZED),
        ("input sized", _INPUT_SIZED),
    )
    for operator in operators.split()
}
"""What is known of an operator's rounding."""


@dataclass(frozen=True)
class Bound:
    """What rounding can do to a node's first output."""

    basis: str
    """``exact``, ``rounding`` (a theorem) or ``assumed`` (16 units in the last place of an elementary function)."""
    length: int
    """Terms of a sum; 1 where nothing is summed."""
    magnitude: Float64
    """What the relative error refers to: the sum of magnitudes, for each element."""
    matrix: bool = False
    """Its products may be taken in TF32."""

    def limit(self, level: str, element: str, reference: Float64) -> Float64:
        """Return the largest distance from the reference at one of the levels of :func:`levels`."""
        if self.basis == "exact":
            return np.zeros_like(reference)
        own = UNIT[element]
        stored = own * np.abs(reference) + _SMALLEST_NORMAL[element]
        if level == "fp16":
            return gamma(self.length + 2, UNIT["float16"]) * self.magnitude + stored
        computed = min(own, UNIT["float64"] if element == "float64" else UNIT["float32"])
        limit = gamma(self.length + 2, computed) * self.magnitude + stored
        if level == "fp32":
            return limit
        operand = TF32 if level == "tf32" else 2 * TF32
        return limit + (2 * operand + operand**2) * (1 + gamma(self.length + 2, computed)) * self.magnitude


def gamma(length: int, unit: float) -> float:
    """Return gamma_K; infinite where K u is 1 or more, and nothing can be promised."""
    return length * unit / (1 - length * unit) if length * unit < 1 else math.inf


def levels(bound: Bound, element: str, *, tf32: bool) -> list[str]:
    """Return the precisions to try, the finest first.

    Args:
        bound: of the node.
        element: type of its output.
        tf32: whether the side may take products in TF32.
    """
    if bound.basis == "exact":
        return ["exact"]
    found = ["fp32"]
    if bound.matrix and element == "float32" and tf32:
        found += ["tf32", "tf32 cut off"]
    if element == "float16" and bound.length > 1:
        found.append("fp16")
    return found


def bound_of(node: onnx.NodeProto, inputs: Values, reference: Float64, evaluate: Evaluate) -> Bound | None:
    """Return what rounding can do to a node's first output; None where nobody has worked it out.

    Args:
        node: the node.
        inputs: what it reads, floats in float64.
        reference: its output in float64.
        evaluate: evaluates a node in float64.
    """
    if node.domain not in ("", "ai.onnx", "com.microsoft"):
        return None
    operator, size = node.op_type, np.abs(reference)
    match KINDS.get(operator):
        case "exact":
            return Bound("exact", 1, size)
        case "rounded":
            return Bound("rounding", 1, size)
        case "matrix" | "sum" as kind:
            length = _length(node, inputs, reference)
            magnitude = evaluate(positive(node), [_abs(value) for value in inputs])
            if length is None or magnitude is None:
                return None
            found = Bound("rounding", length, np.asarray(magnitude[0], np.float64), kind == "matrix")
            return _activated(node, found) if operator == "FusedConv" else found
        case "relative":
            reduced = _length(node, inputs, reference) if operator.startswith("Reduce") else 1
            return Bound("assumed", (reduced or 1) + _ASSUMED, size)
        case "unit sized":
            return Bound("assumed", _ASSUMED, size + 1)
        case "input sized":
            own = np.abs(inputs[0]) if np.shape(inputs[0]) == size.shape else size
            return Bound("assumed", _ASSUMED, size + own + 1)
    if operator in ("Softmax", "LogSoftmax"):
        return _softmax(node, inputs, reference)
    if operator == "BatchNormalization":
        return _batch_norm(node, inputs)
    if operator in ("LayerNormalization", "InstanceNormalization"):
        return _layer_norm(node, inputs)
    return None


def _activated(node: onnx.NodeProto, bound: Bound) -> Bound | None:
    """Return the bound of a convolution with an activation, none of which makes a distance larger."""
    activation = attribute(node, "activation", b"")
    if activation in (b"", b"Relu"):
        return bound
    if activation in (b"Tanh", b"Sigmoid"):
        return replace(bound, basis="assumed", length=bound.length + _ASSUMED, magnitude=bound.magnitude + 1)
    return None


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return the value of a node's attribute."""
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def _abs(value: Any) -> Any:
    return np.abs(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


def positive(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node that sums magnitudes: its factors without their signs, and no activation."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(one for one in node.attribute if not one.name.startswith("activation"))
    for attribute in copy.attribute:
        if attribute.name in ("alpha", "beta"):
            attribute.f = abs(attribute.f)
    return copy


def _length(node: onnx.NodeProto, inputs: Values, reference: Float64) -> int | None:
    """Return how many terms the longest sum of a node has."""
    kind = node.op_type
    x = np.asarray(inputs[0])
    if kind in ("Conv", "FusedConv"):
        return int(np.prod(inputs[1].shape[1:]))
    if kind == "ConvTranspose":
        group = int(attribute(node, "group", 1))
        return int(inputs[1].shape[0] // group * np.prod(inputs[1].shape[2:]))
    if kind in ("MatMul", "FusedMatMul"):
        transposed = bool(attribute(node, "transA", 0)) and x.ndim > 1
        return int(x.shape[-2 if transposed else -1])
    if kind == "Gemm":
        return int(x.shape[0 if attribute(node, "transA", 0) else 1])
    if kind == "Einsum":
        return _einsum_length(attribute(node, "equation", b"").decode(), inputs)
    if kind == "AveragePool":
        return int(np.prod(attribute(node, "kernel_shape", [1])))
    if kind == "GlobalAveragePool":
        return int(np.prod(x.shape[2:]))
    if kind == "CumSum":
        return int(x.shape[int(np.asarray(inputs[1]).reshape(-1)[0])])
    if kind in ("Sum", "Mean"):
        return len(inputs)
    return max(1, x.size // max(1, reference.size))


def _einsum_length(equation: str, inputs: Values) -> int | None:
    terms, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        return None
    sizes: dict[str, int] = {}
    for term, value in zip(terms.split(","), inputs, strict=True):
        sizes.update(zip(term, np.shape(value), strict=True))
    return math.prod(size for label, size in sizes.items() if label not in output)


def _softmax(node: onnx.NodeProto, inputs: Values, reference: Float64) -> Bound:
    length = int(np.shape(inputs[0])[int(attribute(node, "axis", -1))]) + 2 * _ASSUMED
    if node.op_type == "LogSoftmax":
        return Bound("assumed", length, 1 + 4 * np.abs(reference))
    # exp() turns the rounding of its argument, at most -log y, into a relative error.
    argument = -np.log(np.maximum(reference, 1e-300))
    return Bound("assumed", length, reference * (1 + 4 * argument / length))


def _batch_norm(node: onnx.NodeProto, inputs: Values) -> Bound:
    x, scale, bias, mean, variance = (np.asarray(value) for value in inputs)
    shape = (1, -1, *[1] * (x.ndim - 2))
    factor = np.abs(scale) / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5)))
    size = (np.abs(x) + np.abs(mean).reshape(shape)) * factor.reshape(shape) + np.abs(bias).reshape(shape)
    return Bound("rounding", 8, size)


def _layer_norm(node: onnx.NodeProto, inputs: Values) -> Bound:
    """First order: the mean is off by gamma mean|x|, and the variance by 3 gamma mean (|x| + mean|x|)**2."""
    x = np.asarray(inputs[0])
    if node.op_type == "InstanceNormalization":
        axes = tuple(range(2, x.ndim))
        shape: tuple[int, ...] = (1, -1, *[1] * (x.ndim - 2))
    else:
        axes = tuple(range(int(attribute(node, "axis", -1)) % x.ndim, x.ndim))
        shape = x.shape[axes[0] :]
    scale = np.abs(np.asarray(inputs[1])).reshape(shape)
    bias = np.abs(np.asarray(inputs[2])).reshape(shape) if len(inputs) > 2 and inputs[2] is not None else 0.0
    spread = np.abs(x) + np.abs(x).mean(axes, keepdims=True)
    variance = x.var(axes, keepdims=True) + float(attribute(node, "epsilon", 1e-5))
    square = (spread**2).mean(axes, keepdims=True)
    size = scale * spread / np.sqrt(variance) * (1 + 1.5 * square / variance) + bias
    length = math.prod(x.shape[axis] for axis in axes)
    return Bound("rounding", length + _ASSUMED, size)
