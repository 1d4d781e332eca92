"""How far two arrays are apart: in values, in units in the last place, and in what values cannot tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BFLOAT16_STEP = 1 << 16
"""Units in the last place of a float32 that make one of a bfloat16."""

HISTOGRAM = (0, 1, 2, 4, 8, 16, 64, 256, 1024, 2**14, 2**20)
"""Lower ends of the bins of a ULP histogram; bin 0 is for equal values, the last one is open."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How two arrays of one name differ. Sizes are counts of elements."""

    size: int
    equal: int
    """Elements with the same bits."""
    max_abs: float | None
    """Over elements that are finite on both sides, as all that follow; None where there are none, or no numbers."""
    mean_abs: float | None
    max_rel: float | None
    """Relative to the larger of the two magnitudes."""
    mean_rel: float | None
    max_ulp: int | None
    """Units in the last place: how many floating-point numbers lie between. None for other types than floats."""
    mean_ulp: float | None
    nan: int
    """Elements that are NaN on one side only, or on both with other bits."""
    infinite: int
    """Elements that are infinite on one side only, or on both with other signs."""
    signed_zero: int
    """Elements that are +0 on one side and -0 on the other: other bits, the same value, 0 ULP."""
    mismatch: str | None = None
    """Why the two cannot be compared element by element: other shapes or types."""
    histogram: tuple[int, ...] = ()
    """Elements by ULP distance, in the bins of ``HISTOGRAM``."""

    @property
    def same(self) -> bool:
        """Whether both have the same bits."""
        return self.mismatch is None and self.equal == self.size


def difference(a: Array, b: Array, *, bfloat16: bool = False) -> Difference:
    """Compare two arrays bit by bit and value by value.

    Args:
        a: an array of any shape and type.
        b: another one; the differences are symmetric.
        bfloat16: both hold bfloat16 values, as float32.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        text = f"{a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
        return Difference(max(a.size, b.size), 0, None, None, None, None, None, None, 0, 0, 0, text)
    if a.dtype.kind not in "fiub":
        equal = int(np.count_nonzero(a == b)) if a.size else 0
        return Difference(a.size, equal, None, None, None, None, None, None, 0, 0, 0)
    bits_a, bits_b = (np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}") for x in (a, b))
    unequal = bits_a != bits_b
    equal = int(a.size - np.count_nonzero(unequal))
    x, y = a.reshape(-1), b.reshape(-1)
    nan = infinite = signed_zero = 0
    finite = np.ones(a.size, np.bool_)
    if a.dtype.kind == "f":
        either_nan = np.isnan(x) | np.isnan(y)
        either_inf = (np.isinf(x) | np.isinf(y)) & ~either_nan
        nan = int(np.count_nonzero(either_nan & unequal))
        infinite = int(np.count_nonzero(either_inf & unequal))
        signed_zero = int(np.count_nonzero((x == 0) & (y == 0) & unequal))
        finite = ~(either_nan | either_inf)
    x, y = x[finite], y[finite]
    if x.size == 0:
        return Difference(a.size, equal, None, None, None, None, None, None, nan, infinite, signed_zero)
    with np.errstate(over="ignore"):
        distances = np.abs(x.astype(np.float64) - y.astype(np.float64))
    larger = np.maximum(np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64)))
    relative = np.divide(distances, larger, out=np.zeros_like(distances), where=larger > 0)
    ulps = _ulps(x, y) if a.dtype.kind == "f" else None
    if ulps is not None and bfloat16:
        ulps = ulps // np.uint64(BFLOAT16_STEP)
    return Difference(
        a.size,
        equal,
        float(distances.max()),
        float(distances.mean()),
        float(relative.max()),
        float(relative.mean()),
        int(ulps.max()) if ulps is not None else None,
        float(ulps.mean(dtype=np.float64)) if ulps is not None else None,
        nan,
        infinite,
        signed_zero,
        None,
        _histogram(ulps) if ulps is not None else (),
    )


def _ulps(x: Array, y: Array) -> NDArray[np.uint64]:
    """Return how many floating-point numbers lie between two of the same type, +0 and -0 being one."""

    def ordered(values: Array) -> NDArray[np.int64]:
        bits = np.ascontiguousarray(values).view(f"i{values.dtype.itemsize}").astype(np.int64)
        lowest = np.int64(-(1 << (8 * values.dtype.itemsize - 1)))
        return np.where(bits < 0, lowest - bits, bits)

    p, q = ordered(x), ordered(y)
    # Modulo 2**64 the difference of the larger and the smaller is right even where a signed one would overflow.
    return np.where(p > q, p.view(np.uint64) - q.view(np.uint64), q.view(np.uint64) - p.view(np.uint64))


def _histogram(ulps: NDArray[np.uint64]) -> tuple[int, ...]:
    bins = np.searchsorted(np.array(HISTOGRAM, np.uint64), ulps, side="right") - 1
    return tuple(int(count) for count in np.bincount(bins, minlength=len(HISTOGRAM)))
