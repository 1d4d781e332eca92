"""Outputs against a float64 run of the whole graph: what is left to judge where no node differs by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortlock.compare.carried import Carried
from ortlock.compare.judging import same_kind

_MOST = 1e-3
"""Share of an output's largest value that a bound may be and still tell a fault from rounding."""
_EXAMPLES = 5

OPTIMISED = "No node differs when the graph is not optimised, so the difference comes from optimising it as a whole."


def judge_outputs(a: Mapping[str, Any], b: Mapping[str, Any], carried: Carried) -> tuple[bool, list[str]]:
    """Return whether both sides are as close to float64 as rounding allows, and the reasons.

    False is no fault: the bound is that of the graph as it is written, and an optimised one does other arithmetic.

    Args:
        a: outputs of one side that differ from the other side's.
        b: those of the other side.
        carried: float64 outputs with bounds.
    """
    reasons, within = [OPTIMISED], []
    if unknown := [name for name in a if name not in carried.limits]:
        nodes = ", ".join(carried.stopped[:_EXAMPLES])
        more = f" and {len(carried.stopped) - _EXAMPLES} more" if len(carried.stopped) > _EXAMPLES else ""
        nodes = f": it is not known how it is carried through {nodes}{more}" if nodes else ""
        return False, [*reasons, f"How far rounding can move {', '.join(unknown)} is not known{nodes}."]
    for name, limits in carried.limits.items():
        if name not in a:
            continue
        exact, allowed = carried.exact[name], float(np.max(limits, initial=0))
        largest = float(np.max(np.abs(exact), initial=0))
        if not allowed <= _MOST * largest:
            text = f"Rounding, carried through all nodes, may move {name} by {allowed:.3g} where its largest value is "
            return False, [*reasons, f"{text}{largest:.3g}: too much to tell a fault from it."]
        errors = []
        for side, value in (("A", a[name]), ("B", b[name])):
            if value.shape != exact.shape or not same_kind(value, exact):
                return False, [*reasons, f"{name} on {side} has other NaN, infinity or shape than in float64."]
            off = np.abs(value.astype(np.float64) - exact)
            errors.append(float(np.max(off, initial=0)))
            if not np.all(off <= limits):
                text = f"{name} on {side} is off by {errors[-1]:.3g}, more than rounding in the graph as it is written "
                text += "allows; what it does in the optimised graph is not known."
                return False, [*reasons, text]
        within.append(f"{name}: A is off by {errors[0]:.3g}, B by {errors[1]:.3g}, at most {allowed:.3g} is allowed")
    text = "Both sides are as close to a float64 run as rounding allows, carried through all nodes as they are written"
    return True, [*reasons, f"{text}; {'; '.join(within)}."]
