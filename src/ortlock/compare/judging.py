"""One node of one side against its evaluation in float64, on the inputs that the side itself had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from ortlock.compare.reference import Reference, to_tf32, widened
from ortlock.compare.result import Rounding
from ortlock.compare.rounding import Bound, bound_of, levels

UNKNOWN = Rounding(None, None, "unknown", "none")
NOTHING, UNTOLD = "nothing", "unknown"


def judge(
    reference: Reference, node: onnx.NodeProto, inputs: Sequence[Any], output: Any, *, element: str, tf32: bool
) -> tuple[Rounding, int | None]:
    """Return what explains a node's distance from float64, and the length of its longest sum.

    Args:
        reference: evaluates in float64.
        node: the node.
        inputs: what it read on this side.
        output: its first output on this side.
        element: type of the output, as NumPy names it, or ``bfloat16``.
        tf32: whether this side may take products in TF32.
    """
    wide = [widened(value) for value in inputs]
    exact = reference.evaluate(node, wide)
    if exact is None or not isinstance(output, np.ndarray) or not isinstance(exact[0], np.ndarray):
        return UNKNOWN, None
    expected = exact[0]
    if expected.shape != output.shape:
        return replace(UNKNOWN, explained_by=NOTHING), None
    if output.dtype.kind != "f":
        distance = np.abs(output.astype(np.float64) - expected) if output.dtype.kind in "iub" else None
        if distance is None:
            return UNKNOWN, None
        error = float(distance.max(initial=0))
        return Rounding(error, 0.0, "exact" if error == 0 else UNTOLD, "exact"), None
    if not same_kind(output, expected):
        return replace(UNKNOWN, explained_by=NOTHING), None
    finite = np.isfinite(expected) & np.isfinite(output)
    errors = np.where(finite, np.abs(np.where(finite, output, 0) - np.where(finite, expected, 0)), 0)
    error = float(errors.max(initial=0))
    bound = bound_of(node, wide, expected, reference.evaluate)
    if bound is None:
        return Rounding(error, None, "exact" if error == 0 else UNTOLD, "none"), None
    found = _level(bound, element, errors, expected, tf32=tf32)
    if found.explained_by.startswith("tf32"):
        found = _decomposed(reference, node, wide, output, expected, found)
    return found, bound.length


def _level(bound: Bound, element: str, errors: Any, expected: Any, *, tf32: bool) -> Rounding:
    worst = 0.0
    for level in levels(bound, element, tf32=tf32):
        limits = np.nan_to_num(bound.limit(level, element, expected), nan=np.inf)
        excess = np.argmax(errors - limits) if errors.size else 0
        worst = float(limits.reshape(-1)[excess]) if errors.size else 0.0
        if np.all(errors <= limits):
            # A bound that allows anything explains nothing.
            known = bool(np.all(np.isfinite(limits)))
            return Rounding(float(errors.max(initial=0)), worst, level if known else UNTOLD, bound.basis)
    # Assumptions about elementary functions are no theorem.
    verdict = NOTHING if bound.basis != "assumed" else UNTOLD
    return Rounding(float(errors.max(initial=0)), worst, verdict, bound.basis)


def _decomposed(
    reference: Reference, node: onnx.NodeProto, wide: Sequence[Any], output: Any, expected: Any, found: Rounding
) -> Rounding:
    """Say how much of an error rounding the operands to TF32 makes, and what it leaves: nearest or cut off."""
    best = found
    for cut_off in (False, True):
        # The products' factors are the first two inputs; a bias is added in fp32.
        factors = [to_tf32(value, cut_off=cut_off) for value in wide[:2]]
        moved = reference.evaluate(node, [*factors, *wide[2:]])
        if moved is None:
            continue
        rest = float(np.nanmax(np.abs(output - moved[0]), initial=0))
        if best.rest is None or rest < best.rest:
            best = replace(found, shift=float(np.nanmax(np.abs(moved[0] - expected), initial=0)), rest=rest)
    return best


def same_kind(output: Any, expected: Any) -> bool:
    """Return whether NaN and infinity stand where float64 has them; what overflows the type may be infinite."""
    largest = float(np.finfo(output.dtype).max)
    if not np.array_equal(np.isnan(output), np.isnan(expected)):
        return False
    # Near the largest number rounding decides.
    expected_infinite = np.isinf(expected) | (np.abs(np.nan_to_num(expected)) >= largest * (1 - 1e-3))
    return bool(np.all(~np.isinf(output) | expected_infinite))
