"""A report as a Markdown document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ortlock.report.model import ReproducibilityReport
from ortlock.report.text import PLAN_HEADER, environment_line, lanes_line, lockfile_line, notable, plan_rows


def to_markdown(report: ReproducibilityReport) -> str:
    """Return the whole report, tables included."""
    return "\n".join(_sections(report)) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(_cell(value) for value in row)} |"
    yield ""


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _sections(report: ReproducibilityReport) -> Iterator[str]:
    yield f"# Reproducibility: {report.verdict}"
    yield ""
    model = report.model.path or "a model in memory"
    digest = f", sha256 `{report.model.sha256}`" if report.model.sha256 else ""
    yield f"Mode `{report.mode}`, {', '.join(report.providers)}; {model}{digest}."
    yield ""
    yield "## Scopes"
    yield ""
    yield from _table(("scope", "status", "basis"), ((c.scope, c.status, c.basis) for c in report.scopes))
    reasons = (*report.reasons, *report.machine_reasons)
    if reasons:
        yield "## Why not everything holds"
        yield ""
        rows = ((r.status, r.subject, r.text, r.remedy) for r in reasons)
        yield from _table(("makes it", "what", "why", "remedy"), rows)
    if report.operators:
        yield "## Operators"
        yield ""
        yield f"Nodes known by: {report.nodes_known_by}."
        yield ""
        findings = ((f.name, f.provider, f.count, f.status, f.basis, f.reason, f.evidence) for f in report.operators)
        yield from _table(("operator", "provider", "nodes", "status", "basis", "reason", "evidence"), findings)
    if report.lockfile is not None:
        yield "## Lockfile"
        yield ""
        yield f"{lockfile_line(report.lockfile)}."
        yield ""
    if report.lanes is not None:
        yield "## Lanes"
        yield ""
        yield f"{lanes_line(report.lanes)}."
    if report.random.restarted:
        yield "## Random operators"
        yield ""
        yield f"Each run starts from the seed: {', '.join(report.random.restarted)}."
        yield ""
    if report.plans:
        yield "## cuDNN's choices"
        yield ""
        yield f"{report.calls} calls seen, {report.executions} executions, attached: {report.interposer.style}."
        yield ""
        yield from _table(PLAN_HEADER, plan_rows(report))
    states = notable(report.settings)
    if states:
        yield "## Settings that are not at their default"
        yield ""
        rows_ = ((s.key, s.kind, s.value, s.requested, s.origin, s.note) for s in states)
        yield from _table(("setting", "kind", "value", "asked for", "origin", "note"), rows_)
    if report.evidence:
        yield "## Evidence"
        yield ""
        yield from _table(("when", "status", "what"), ((m.when, m.status, m.summary()) for m in report.evidence))
    if report.batch is not None:
        yield "## Batch invariance"
        yield ""
        yield f"{_cell(report.batch.summary())}"
        yield ""
    if report.events:
        yield "## Events"
        yield ""
        yield from _table(("when", "what"), ((e.when, e.text) for e in report.events))
    yield "## Environment"
    yield ""
    yield environment_line(report)
