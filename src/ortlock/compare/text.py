"""A comparison as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from ortlock.compare.metrics import Difference
from ortlock.compare.result import Comparison

MEASURES = ("equal", "max abs", "mean abs", "max rel", "max ULP", "special")
"""What :func:`cells` tells, as a table's header."""


def to_text(found: Comparison) -> str:
    """Return the judgement and its reasons as lines; tables are the command's."""
    return "\n".join(lines(found))


def lines(found: Comparison) -> Iterator[str]:
    """Yield the same, line by line; names of the model's are as they are, line breaks included."""
    yield f"{found.expected}: A ({found.a}) against B ({found.b})"
    for reason in found.reasons:
        yield f"  {reason}"
    for output in found.outputs:
        if output.error_a is not None and output.error_b is not None:
            nearer = {"A": "A is closer", "B": "B is closer", "equal": "equally far"}.get(output.closer, "")
            yield (
                f"  {output.name} against a float64 run of the graph: A {output.error_a:.3g}, B {output.error_b:.3g}: "
                f"{nearer}"
            )
    if found.unevaluated:
        shown = ", ".join(found.unevaluated[:5])
        more = f" and {len(found.unevaluated) - 5} more" if len(found.unevaluated) > 5 else ""
        yield f"  not evaluated in float64: {shown}{more}"
    for note in found.notes:
        yield f"  note: {note}"


def cells(found: Difference | None, *, same: bool = False) -> list[str]:
    """Return a difference as table cells: share of equal values, max and mean absolute, max relative, max ULP, rest.

    ``same`` says of what is no array whether both sides have the same.
    """
    if found is None:
        return ["100%" if same else "", "", "", "", "", "no array"]
    if found.mismatch is not None:
        return ["", "", "", "", "", found.mismatch]
    share = found.equal / found.size if found.size else 1.0
    rest = [
        f"{count} {name}" for count, name in ((found.nan, "NaN"), (found.infinite, "Inf"), (found.signed_zero, "±0"))
    ]
    return [
        # Never round up to all.
        "100%" if found.same else f"{min(share, 0.9999):.2%}",
        *("" if value is None else f"{value:.3g}" for value in (found.max_abs, found.mean_abs, found.max_rel)),
        "" if found.max_ulp is None else str(found.max_ulp),
        ", ".join(text for text in rest if not text.startswith("0 ")),
    ]
