"""Writes docs/operators.md from the operator table and the measurements.

python -m ortlock.operators.docs [FILE]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ortlock.operators.knowledge import Knowledge, knowledge_of
from ortlock.operators.measurements import Measurement, measured, measurements, registered_on_cuda
from ortlock.operators.rows import Basis, Family, OperatorStatus, Row, families, rows
from ortlock.words import counted

_NAMES: Final = {"cuda": "CUDA", "cpu": "CPU"}
# The worst first: an operator with several rows is counted by its worst.
_WORST: Final = (
    OperatorStatus.NONDETERMINISTIC,
    OperatorStatus.STATEFUL,
    OperatorStatus.UNKNOWN,
    OperatorStatus.SETTING,
    OperatorStatus.DETERMINISTIC,
)

_INTRODUCTION = """\
# What is known of each operator

This file is generated from `src/ortlock/operators/table` by `python -m ortlock.operators.docs docs/operators.md`.

The table says of each operator whether its outputs repeat, as read in ONNX Runtime's source. Beside it stands what \
was measured: `benchmarks/operator_sweep.py` runs every operator on inputs that provoke differences (duplicate \
indices, ties, long sums, odd sizes, several types), in two sessions, on CUDA idle and busy, with ONNX Runtime's \
defaults and with `use_deterministic_compute`. **What nobody measured is `unknown`**, whatever its source looks like; \
only what computes nothing (control flow, reshaping, sequences), and what goes through cuDNN, where the interposer \
checks every plan, may do without. A repeated measurement is not a proof: "by evidence" says what was seen, "by \
construction" what the kernel's order of work allows.

`unknown` and `nondeterministic` operators are reported in mode `pin` and refused in mode `strict`. A condition that \
nobody knows of a node counts as the worse case.
"""


def document() -> str:
    """Return the text of docs/operators.md."""
    parts = [_INTRODUCTION, _sources(), _counts()]
    parts += [_family(family) for family in families().values()]
    return "\n".join(parts)


def _sources() -> str:
    lines = ["| measured on | ONNX Runtime | operators | cases | results |", "|---|---|---|---|---|"]
    for number, source in enumerate(measured().sources):
        own = [one for one in measured().operators if one.source == number]
        operators = len({(one.domain, one.operator) for one in own})
        cases = sum(one.cases for one in own)
        facts = (source.device, source.onnxruntime, str(operators), str(cases), f"`{source.file}`, {source.date}")
        lines.append(_line(facts))
    return "\n".join([*lines, ""])


def _counts() -> str:
    """Return how many operators have which status: those that CUDA registers, and those of the CPU in the table."""
    known = {key for key in rows() if key[0] == "cpu"}
    columns = {"cuda": {("cuda", one.domain, one.name) for one in registered_on_cuda()}, "cpu": known}
    counted = {name: Counter(_worst(key) for key in keys) for name, keys in columns.items()}
    lines = [
        "## How many",
        "",
        "Operators that ONNX Runtime's CUDA provider registers (its contributed and internal domains included), and "
        "those of the CPU provider that the table knows. One with several conditions is counted by the worst.",
        "",
        _line(("status", *(_NAMES[name] for name in columns))),
        "|---|---|---|",
        *(_line((status, *(str(counted[name][status]) for name in columns))) for status in reversed(_WORST)),
        _line(("all", *(str(len(keys)) for keys in columns.values()))),
        _line(("measured", *(str(len(keys & measurements().keys())) for keys in columns.values()))),
        "",
    ]
    return "\n".join(lines)


def _worst(key: tuple[str, str, str]) -> OperatorStatus:
    statuses = {knowledge_of(row, key[2]).status for row in rows()[key]}
    return next(status for status in _WORST if status in statuses)


def _family(family: Family) -> str:
    lines = [f"## {family.title}", "", family.about, ""]
    for provider, name in _NAMES.items():
        table = [line for row in family.row if row.provider == provider for line in _lines(row)]
        if table:
            header = (f"on {name}", "status", "why, and what helps", "measured")
            lines += [_line(header), "|---|---|---|---|", *table, ""]
    return "\n".join(lines)


def _lines(row: Row) -> Iterator[str]:
    """Yield one line for those of a row's operators of which the same is known."""
    groups: dict[tuple[OperatorStatus, str], list[str]] = {}
    for operator in row.names:
        knowledge = knowledge_of(row, operator)
        groups.setdefault((knowledge.status, knowledge.reason), []).append(operator)
    for (status, _), operators in groups.items():
        knowledge = knowledge_of(row, operators[0])
        condition = f", if {row.when}" if row.when else ""
        domain = f" ({row.domain})" if row.domain else ""
        versions = f", ORT {row.ort}" if row.ort else ""
        names = f"{' '.join(operators)}{domain}{condition}{versions}"
        basis = f", {knowledge.basis}" if knowledge.basis is not Basis.NONE else ""
        yield _line((names, f"{status}{basis}", _why(row, knowledge), _seen(row, operators)))


def _why(row: Row, knowledge: Knowledge) -> str:
    # The remedy for what nobody has measured is the same everywhere.
    remedy = f"*{row.remedy}*" if row.remedy == knowledge.remedy and row.remedy else ""
    rewrite = f"Rewriting: {row.rewrite}." if row.rewrite else ""
    return " ".join(part for part in (knowledge.reason, remedy, rewrite) if part)


def _seen(row: Row, operators: Iterable[str]) -> str:
    """Return what was measured of operators under a row, in few words."""
    found = [one for name in operators for one in _cases(row, name)]
    if not found:
        return row.evidence or "-"
    cases, varied = sum(one.cases for one in found), [one for one in found if one.varied]
    if not varied:
        words = f"{counted(cases, 'case')}, none differs."
    else:
        stock, other = sum(one.stock.differ for one in varied), sum(one.deterministic.differ for one in varied)
        worst = max(max(one.stock.distinct, one.deterministic.distinct) for one in varied)
        words = (
            f"{counted(cases, 'case')}: {stock} differ in stock, {other} with `use_deterministic_compute`, "
            f"up to {worst} distinct of {varied[0].runs}."
        )
    return f"{words} {row.evidence}".strip()


def _cases(row: Row, operator: str) -> tuple[Measurement, ...]:
    found = measurements().get((row.provider, row.domain, operator), ())
    return tuple(one for one in found if one.when == row.when)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"


def main(arguments: list[str]) -> int:
    """Write the file, or print its text where none is named."""
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    if arguments:
        Path(arguments[0]).write_text(document(), "utf-8")
    else:
        print(document(), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
