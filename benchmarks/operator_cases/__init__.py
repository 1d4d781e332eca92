"""The cases of operator_sweep.py: one operator each, with shapes, types and values that provoke differences."""

from __future__ import annotations

from collections import Counter

from operator_cases import (
    attention,
    control,
    convolution,
    elementwise,
    matrix,
    movement,
    normalization,
    quantized,
    reductions,
)
from operator_cases.building import Case

__all__ = ["Case", "all_cases"]

_GROUPS = (reductions, normalization, matrix, attention, convolution, movement, control, elementwise, quantized)


def all_cases() -> list[Case]:
    """Return all cases, each name once: first one of every operator, then a second of every operator, and so on."""
    cases = [case for module in _GROUPS for case in module.GROUP.cases]
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"names of several cases: {sorted(twice)}")
    seen: Counter[tuple[str, str]] = Counter()
    rounds = []
    for case in cases:
        rounds.append(seen[case.domain, case.operator])
        seen[case.domain, case.operator] += 1
    order = sorted(range(len(cases)), key=rounds.__getitem__)
    return [cases[position] for position in order]
