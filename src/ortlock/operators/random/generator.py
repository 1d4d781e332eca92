"""A generator without a state, made of standard operators: the n-th number is a function of n and a key.

Eight rounds of a Feistel network over two words of 32 bits, the first holding the loops' iterations and the second n. A
round adds to one word the middle of the square of the other one plus the round's key, all in int64 and without an
overflow, with the operators Add, Mul, Div and Mod that both providers have: so the words are the same everywhere. A
multiplication by a constant in place of the square would be nearly linear, and then numbers of two keys correlate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, numpy_helper

ROUNDS = 8
WORD = 1 << 32
HALF = 1 << 31
"""What a word is reduced by before it is squared."""
MIDDLE = 1 << 15
WEYL = 0x9E3779B9
"""What the key of a round grows by."""
LOOP_FACTOR = 0x9E3779B1
"""Keeps the iterations of nested loops apart."""

_FLOAT_BITS, _DOUBLE_BITS = 24, 53

Key = tuple[int, int]
"""Two words of 32 bits."""


def key(text: str) -> Key:
    """Return the key that a text stands for."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


class Emitter:
    """Collects the nodes that take the place of one node."""

    def __init__(self, label: str, prefix: str, opset: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.opset = opset
        self._label = label
        self._prefix = prefix

    def op(self, op_type: str, *inputs: str, out: str | None = None, **attributes: object) -> str:
        """Add a node; return the name of its output, ``out`` if given."""
        number = len(self.nodes)
        output = out or f"{self._prefix}_{number}"
        name = f"{self._label}/{op_type}_{number}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, value: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        """Add a constant; return its name."""
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def with_number(self, op_type: str, value: str, number: float, dtype: DTypeLike = np.int64) -> str:
        """Add an operation of a value with a number."""
        return self.op(op_type, value, self.constant(number, dtype))

    def reshape(self, value: str, shape: str, out: str | None = None) -> str:
        """Add a Reshape that takes a size of 0 as it is, where the opset can say so."""
        attributes = {"allowzero": 1} if self.opset >= 14 else {}
        return self.op("Reshape", value, shape, out=out, **attributes)

    def words(self, count: str, chosen: Key, loops: Sequence[str]) -> tuple[str, str]:
        """Add two words for each of ``count`` numbers; return their names.

        Args:
            count: an int64 scalar.
            chosen: the key.
            loops: the iteration numbers, int64 scalars, of the loops around, from the outside in.

        Returns:
            Two names of int64 [count], with values in 0..2**32-1.
        """
        right = self.op("Range", self.constant(0), count, self.constant(1))
        left = self._start(chosen[1], loops)
        step = chosen[0]
        for _ in range(ROUNDS):
            reduced = self.with_number("Mod", self.with_number("Add", right, step), HALF)
            middle = self.with_number("Div", self.op("Mul", reduced, reduced), MIDDLE)
            left, right = right, self.with_number("Mod", self.op("Add", middle, left), WORD)
            step = (step + WEYL) % WORD
        return left, right

    def _start(self, first: int, loops: Sequence[str]) -> str:
        left = self.constant(first)
        for iteration in loops:
            left = self.with_number("Mul", left, LOOP_FACTOR)
            # Below 2**64 in theory, and the iteration number is far below 2**31: reduced before it is multiplied.
            left = self.with_number(
                "Mod", self.op("Add", left, self.op("Reshape", iteration, self.constant([1]))), WORD
            )
        return left

    def uniform(self, words: tuple[str, str], element: int, bits: int = _FLOAT_BITS) -> str:
        """Add numbers in [0, 1): multiples of 2**-24 as FLOAT (of 2**-``bits`` if given), of 2**-53 as DOUBLE."""
        left, right = words
        if element == TensorProto.DOUBLE:
            high = self.with_number("Mul", self.with_number("Div", left, 1 << 5), 1 << 26)
            whole = self.op("Add", high, self.with_number("Div", right, 1 << 6))
            return self.with_number("Mul", self.op("Cast", whole, to=element), 2.0**-_DOUBLE_BITS, np.float64)
        whole = self.with_number("Div", right, 1 << (32 - bits))
        return self.with_number("Mul", self.op("Cast", whole, to=element), 2.0**-bits, np.float32)

    def normal(self, words: tuple[str, str], element: int) -> str:
        """Add standard normal numbers as FLOAT or DOUBLE, by Box and Muller's method."""
        dtype = np.float64 if element == TensorProto.DOUBLE else np.float32
        bits = 32 if element == TensorProto.DOUBLE else _FLOAT_BITS
        left, right = (self.with_number("Div", word, 1 << (32 - bits)) for word in words)
        # In (0, 1], whose logarithm is finite, and in [0, 1).
        first = self.op("Cast", self.with_number("Add", right, 1), to=element)
        logarithm = self.op("Log", self.with_number("Mul", first, 2.0**-bits, dtype))
        radius = self.op("Sqrt", self.with_number("Mul", logarithm, -2, dtype))
        angle = self.with_number("Mul", self.op("Cast", left, to=element), 2 * np.pi * 2.0**-bits, dtype)
        return self.op("Mul", radius, self.op("Cos", angle))
