"""An audit as plain text, readable in a log."""

from __future__ import annotations

from collections.abc import Iterator

from ortlock.audit.model import ACTUAL_NODES, Action, Audit, FileFinding, OperatorAudit, Verdict
from ortlock.operators.knowledge import Basis, OperatorStatus
from ortlock.words import counted

EXAMPLES = 3

Row = tuple[str, int, str, str, str]
"""Operators, number of nodes, status, action, and first nodes."""

_VERDICTS = {
    Verdict.HOLDS: "the same bits: every node is deterministic in mode {mode}",
    Verdict.UNKNOWN: "cannot tell: of some nodes it is not known",
    Verdict.VIOLATED: "not the same bits: some nodes vary",
}
_STRICT = {
    Verdict.HOLDS: "strict would run it",
    Verdict.UNKNOWN: "strict would refuse it: of some nodes it is not known whether they repeat",
    Verdict.VIOLATED: "strict would refuse it: some nodes are known to vary",
}
_UNLOADABLE = "cannot tell: ONNX Runtime cannot load it"


def headline(audit: Audit) -> str:
    """Return the verdict in one line."""
    words = _UNLOADABLE
    if audit.loads:
        words = (_STRICT if audit.mode == "strict" else _VERDICTS)[audit.verdict].format(mode=audit.mode)
    counts = ", ".join(f"{count} {status}" for status, count in audit.counts.items()) or "no nodes"
    return f"{audit.model or 'model'} on {audit.provider}: {words} ({counts})"


def rows(audit: Audit) -> list[Row]:
    """Return what a table shows: a row for each operator, those that just run together in one."""
    found: list[Row] = []
    plain: dict[str, list[OperatorAudit]] = {}
    for operator in audit.operators:
        action = operator.actions[audit.mode]
        status = str(operator.status)
        if operator.basis is not Basis.NONE:
            status = f"{status}, {operator.basis}"
        if operator.status is OperatorStatus.DETERMINISTIC and action is Action.RUN:
            plain.setdefault(status, []).append(operator)
        else:
            found.append((operator.name, len(operator.nodes), status, str(action), examples(operator)))
    for status, operators in plain.items():
        names = ", ".join(sorted({operator.name for operator in operators}))
        found.append((names, sum(len(operator.nodes) for operator in operators), status, str(Action.RUN), ""))
    return found


def examples(operator: OperatorAudit) -> str:
    """Return the labels of an operator's first nodes."""
    labels = [node.label for node in operator.nodes[:EXAMPLES]]
    more = len(operator.nodes) - len(labels)
    return ", ".join(labels) + (f" and {more} more" if more else "")


def explanations(audit: Audit) -> Iterator[str]:
    """Yield why operators that do not just run are what they are, and what can be done."""
    for operator in audit.operators:
        action = operator.actions[audit.mode]
        if action not in (Action.REFUSE, Action.REPORT, Action.MOVE, Action.REWRITE):
            continue
        yield f"{operator.name}, {counted(len(operator.nodes), 'node')}: {operator.status}"
        yield f"  nodes: {examples(operator)}"
        yield f"  why: {operator.reason} {operator.evidence}".rstrip()
        if operator.remedy:
            yield f"  remedy: {operator.remedy}"


def load_lines(audit: Audit) -> Iterator[str]:
    """Yield why ONNX Runtime cannot load the model, one line for each cause."""
    if audit.load_problem is not None:
        yield f"cannot be loaded: {audit.load_problem}"
    yield from map(_file_line, audit.files)


def _file_line(finding: FileFinding) -> str:
    more = f" (and {counted(finding.count - 1, 'more tensor')})" if finding.count > 1 else ""
    return f"cannot be loaded: external data of {finding.tensor}{more} in {finding.file}: {finding.problem}"


def to_text(audit: Audit) -> str:
    """Return the audit as lines without colour, the verdict first."""
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    yield headline(audit)
    yield from load_lines(audit)
    yield from explanations(audit)
    for name, count, status, action, where in rows(audit):
        yield f"{action}: {name}, {count} {status}" + (f": {where}" if where else "")
    yield ACTUAL_NODES
