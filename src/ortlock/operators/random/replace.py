"""Replacing one node that draws at random by nodes that draw the same numbers each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from ortlock.operators.random.generator import Emitter, Key

_COMPUTED = {
    TensorProto.FLOAT: TensorProto.FLOAT,
    TensorProto.DOUBLE: TensorProto.DOUBLE,
    TensorProto.FLOAT16: TensorProto.FLOAT,
    TensorProto.BFLOAT16: TensorProto.FLOAT,
}
"""The type that numbers of a type are computed in."""

_CAST_LIKE = 15
_SUM_TAKES_AXES = 13
_PROBABILITY_BITS = 23
_LAST = np.iinfo(np.int64).max


class CannotReplaceError(ValueError):
    """A node cannot be replaced; the text says why."""


@dataclass(frozen=True)
class Site:
    """A node to be replaced, and where it stands."""

    node: onnx.NodeProto
    emitter: Emitter
    key: Key
    loops: Sequence[str]
    """Names of the iteration numbers of the loops around it."""
    element: Callable[[str], int | None]
    """The element type of a value by name, None where it is not known."""

    def attribute(self, name: str, default: float) -> float:
        """Return a number among the attributes."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return float(onnx.helper.get_attribute_value(attribute))
        return default

    @property
    def given(self) -> str:
        """The first input."""
        return str(self.node.input[0])

    @property
    def dtype(self) -> int | None:
        """The element type that the node's attributes ask for."""
        asked = int(self.attribute("dtype", 0))
        return asked or None

    def finish(self, value: str, element: int | None, computed: int) -> None:
        """Give ``value`` the node's name and type; ``element`` None means that of the first input."""
        out = self.node.output[0]
        if element == computed:
            self.emitter.op("Identity", value, out=out)
        elif element is not None:
            self.emitter.op("Cast", value, out=out, to=element)
        elif self.emitter.opset >= _CAST_LIKE:
            self.emitter.op("CastLike", value, self.given, out=out)
        else:
            raise CannotReplaceError(f"The type of its input {self.given} is not known.")


def _random(site: Site) -> None:
    """RandomNormal, RandomUniform and their Like forms."""
    emit, like = site.emitter, site.node.op_type.endswith("Like")
    if like:
        element = site.dtype or site.element(site.given)
        count, shape = emit.op("Size", site.given), emit.op("Shape", site.given)
    else:
        element = site.dtype or TensorProto.FLOAT
        sizes = next((list(attribute.ints) for attribute in site.node.attribute if attribute.name == "shape"), [])
        count, shape = emit.constant(int(np.prod(sizes, dtype=np.int64))), emit.constant(sizes)
    if element is not None and element not in _COMPUTED:
        raise CannotReplaceError(f"Its type {TensorProto.DataType.Name(element)} is none that it can have.")
    computed = _COMPUTED.get(element or 0, TensorProto.FLOAT)
    dtype = np.float64 if computed == TensorProto.DOUBLE else np.float32
    words = emit.words(count, site.key, site.loops)
    if site.node.op_type.startswith("RandomNormal"):
        value = emit.normal(words, computed)
        factor, base = site.attribute("scale", 1), site.attribute("mean", 0)
    else:
        value = emit.uniform(words, computed)
        low, high = site.attribute("low", 0), site.attribute("high", 1)
        factor, base = high - low, low
    value = emit.with_number("Add", emit.with_number("Mul", value, factor, dtype), base, dtype)
    site.finish(emit.reshape(value, shape), element, computed)


def _bernoulli(site: Site) -> None:
    emit = site.emitter
    words = emit.words(emit.op("Size", site.given), site.key, site.loops)
    drawn = emit.reshape(emit.uniform(words, TensorProto.DOUBLE), emit.op("Shape", site.given))
    hit = emit.op("Less", drawn, emit.op("Cast", site.given, to=TensorProto.DOUBLE))
    site.finish(hit, site.dtype or site.element(site.given), TensorProto.BOOL)


def _multinomial(site: Site) -> None:
    """Count the classes whose cumulated probability is not above the number drawn."""
    emit = site.emitter
    samples = int(site.attribute("sample_size", 1))
    batch = emit.op("Gather", emit.op("Shape", site.given), emit.constant(0))
    words = emit.words(emit.with_number("Mul", batch, samples), site.key, site.loops)
    drawn = emit.op(
        "Reshape", emit.uniform(words, TensorProto.FLOAT, _PROBABILITY_BITS), emit.constant([-1, samples, 1])
    )
    weights = emit.op("Softmax", emit.op("Cast", site.given, to=TensorProto.FLOAT), axis=1)
    sums = emit.op("Reshape", emit.op("CumSum", weights, emit.constant(1)), emit.constant([0, 1, -1]))
    axis, minus_one = emit.constant([2]), emit.constant([-1])
    total = emit.op("Slice", sums, minus_one, emit.constant([_LAST]), axis)
    # Below the total even after rounding, so no class of probability 0 at the end is drawn.
    bound = emit.op("Mul", drawn, total)
    others = emit.op("Slice", sums, emit.constant([0]), minus_one, axis)
    passed = emit.op("Cast", emit.op("Not", emit.op("Greater", others, bound)), to=TensorProto.INT64)
    if emit.opset >= _SUM_TAKES_AXES:
        index = emit.op("ReduceSum", passed, axis, keepdims=0)
    else:
        index = emit.op("ReduceSum", passed, axes=[2], keepdims=0)
    site.finish(index, site.dtype or TensorProto.INT32, TensorProto.INT64)


def _dropout(site: Site) -> None:
    """Outside of training mode, or with a ratio of 0, it gives its input back."""
    emit, inputs = site.emitter, [*site.node.input, "", ""]
    ratio = emit.op("Cast", inputs[1], to=TensorProto.DOUBLE) if inputs[1] else emit.constant(0.5, np.float64)
    ratio = emit.op("Where", inputs[2], ratio, emit.constant(0, np.float64))
    words = emit.words(emit.op("Size", site.given), site.key, site.loops)
    drawn = emit.reshape(emit.uniform(words, TensorProto.DOUBLE), emit.op("Shape", site.given))
    mask_name = site.node.output[1] if len(site.node.output) > 1 and site.node.output[1] else None
    mask = emit.op("Not", emit.op("Less", drawn, ratio), out=mask_name)
    one = emit.constant(1, np.float64)
    scale = _like_data(site, emit.op("Div", one, emit.op("Sub", one, ratio)))
    zero = _like_data(site, emit.constant(0, np.float64))
    emit.op("Where", mask, emit.op("Mul", site.given, scale), zero, out=site.node.output[0])


def _like_data(site: Site, value: str) -> str:
    element = site.element(site.given)
    if element is not None:
        return site.emitter.op("Cast", value, to=element)
    if site.emitter.opset >= _CAST_LIKE:
        return site.emitter.op("CastLike", value, site.given)
    raise CannotReplaceError(f"The type of its input {site.given} is not known.")


REPLACE: dict[str, Callable[[Site], None]] = {
    "RandomNormal": _random,
    "RandomNormalLike": _random,
    "RandomUniform": _random,
    "RandomUniformLike": _random,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}
"""Operators that can be replaced."""
