"""What the pages show, ready for the template: titles, tables, the graph's picture and histograms."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from ortlock.compare.metrics import HISTOGRAM, Difference
from ortlock.compare.text import cells
from ortlock.html.layout import Drawing, draw
from ortlock.localise import Graph, GraphError, GraphNode
from ortlock.report.text import PLAN_HEADER, lockfile_line, notable, plan_rows
from ortlock.words import counted

if TYPE_CHECKING:
    from ortlock.compare.result import Comparison, NodeComparison
    from ortlock.localise import Localised
    from ortlock.report import ReproducibilityReport
    from ortlock.verify import Evidence

_MOST_HISTOGRAMS = 24

_STATUSES = {
    "deterministic": "deterministic",
    "deterministic with a setting": "deterministic with a setting",
    "nondeterministic": "nondeterministic",
    "stateful": "keeps a state",
    "unknown": "unknown",
    "culprit": "the first node that differed",
    "fused": "fused away or not told by ONNX Runtime",
}
_DIVERGENCE = {
    "same": "same bits",
    "inherited": "differs, and so do its inputs",
    "begins": "differs although its inputs do not",
    "wrong": "further off than rounding allows",
    "unseen": "not compared",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be sorted and searched."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Elements by ULP distance."""

    title: str
    bars: Sequence[tuple[str, int, float]]
    """Label, count, and height as a share of the largest."""


def report_page(report: ReproducibilityReport, model: bytes | None = None) -> str:
    """Return a report as an HTML page.

    Args:
        report: the report.
        model: the model's bytes, for the picture of its graph; None: the file that the report names, if it is still
            the same.
    """
    evidence: list[Evidence] = list(report.evidence)  # type: ignore[arg-type]  # the one thing that a session measures
    found = next((one.localised for one in reversed(evidence) if one.localised is not None), None)
    graph = _graph(model if model is not None else _model_of(report))
    return _render(
        title=f"Reproducibility: {report.verdict}",
        verdict=str(report.verdict),
        subtitle=_model_line(report),
        scopes=[(claim.scope, str(claim.status), str(claim.basis)) for claim in report.scopes],
        reasons=[
            (str(reason.status), reason.subject, reason.text, reason.remedy or "")
            for reason in (*report.reasons, *report.machine_reasons)
        ],
        timeline=[_timeline(one) for one in evidence],
        lines=[str(found)] if found is not None else [],
        notes=_notes(report),
        drawing=_by_status(graph, report, found) if graph is not None else None,
        histograms=_of_localised(found),
        tables=[table for table in _tables(report, evidence) if table.rows],
    )


def comparison_page(found: Comparison, model: bytes | None = None) -> str:
    """Return a comparison as an HTML page.

    Args:
        found: the comparison.
        model: the first model's bytes, for the picture of its graph.
    """
    graph = _graph(model)
    measures = ("equal", "max abs", "mean abs", "max rel", "max ULP", "special")
    outputs = [
        (
            output.name,
            *cells(output.difference, same=output.same),
            "" if output.error_a is None else f"{output.error_a:.3g}",
            "" if output.error_b is None else f"{output.error_b:.3g}",
            output.closer,
        )
        for output in found.outputs
    ]
    nodes = [
        (
            node.index,
            node.label,
            *cells(node.difference),
            "yes" if node.inputs_differ else "no",
            node.length or "",
            node.a.explained_by,
            node.b.explained_by,
        )
        for node in found.nodes
    ]
    judged = ("inputs differ", "terms", "A explained by", "B explained by")
    return _render(
        title=f"Comparison: {found.expected}",
        verdict=str(found.expected),
        subtitle=f"A: {found.a}; B: {found.b}",
        lines=list(found.reasons),
        notes=[*found.notes, *(f"not evaluated in float64: {label}" for label in found.unevaluated)],
        drawing=_by_divergence(graph, found) if graph is not None else None,
        histograms=_of_comparison(found),
        tables=[
            Table("Outputs", ("output", *measures, "A off float64", "B off float64", "closer"), outputs),
            Table("Nodes", ("#", "node", *measures, *judged), nodes, "Both sides without graph optimisation."),
        ],
    )


def _render(**values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ortlock.html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    empty: dict[str, Any] = {"scopes": [], "reasons": [], "timeline": [], "lines": [], "notes": []}
    return environment.get_template("page.html.j2").render(**{**empty, **values})


def _model_line(report: ReproducibilityReport) -> str:
    digest = f", sha256 {report.model.sha256[:16]}..." if report.model.sha256 else ""
    where = report.model.path or "a model in memory"
    return f"{where}{digest}; mode {report.mode}; {', '.join(report.providers)}"


def _notes(report: ReproducibilityReport) -> list[str]:
    notes = [f"{event.when}: {event.text}" for event in report.events]
    if report.lockfile is not None:
        notes.append(f"Lockfile {lockfile_line(report.lockfile)}.")
    if report.batch is not None:
        notes.append(report.batch.summary())
    return notes


def _timeline(evidence: Evidence) -> dict[str, Any]:
    longest = max((stress.seconds for stress in evidence.stresses), default=0.0) or 1.0
    return {
        "when": evidence.when,
        "summary": evidence.summary(),
        "status": str(evidence.status),
        "stresses": [
            {
                "name": stress.name,
                "scope": stress.scope,
                "status": str(stress.status),
                "width": round(100 * stress.seconds / longest, 1),
                "text": f"{counted(stress.runs, 'run')}, {stress.distinct} distinct"
                + (f", {stress.failed} failed" if stress.failed else "")
                + f", {stress.seconds:.2f} s"
                if stress.runs
                else f"not run: {stress.note}",
            }
            for stress in evidence.stresses
        ],
    }


def _tables(report: ReproducibilityReport, evidence: Sequence[Evidence]) -> Iterable[Table]:
    calls = f"{report.calls} calls seen, {report.executions} executions."
    yield Table("cuDNN's choices", PLAN_HEADER, plan_rows(report), calls)
    findings = [
        (f.name, f.provider, f.count, f.status, f.basis, f.reason, f.evidence, ", ".join(f.examples))
        for f in report.operators
    ]
    header: tuple[str, ...] = ("operator", "provider", "nodes", "status", "basis", "reason", "evidence", "examples")
    yield Table("Operators", header, findings, f"Nodes known by: {report.nodes_known_by}.")
    inputs = [
        (one.when, number, given, output)
        for one in evidence
        for number, (given, output) in enumerate(zip(one.inputs, one.outputs, strict=True))
    ]
    yield Table("Digests", ("measured", "#", "inputs", "outputs"), inputs)
    settings = [(s.key, s.kind, s.value, s.requested or "", s.origin, s.note) for s in report.settings]
    count = len(notable(report.settings))
    header = ("setting", "kind", "value", "asked for", "origin", "note")
    yield Table("Settings", header, settings, f"{count} of them are not at their default.")
    yield Table("Environment", ("what", "value"), list(_flat(report.environment)))


def _flat(values: Any, prefix: str = "") -> Iterable[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value not in (None, [], ()):
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _model_of(report: ReproducibilityReport) -> bytes | None:
    if report.model.path is None:
        return None
    try:
        data = Path(report.model.path).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == report.model.sha256 else None


def _graph(data: bytes | None) -> Graph | None:
    try:
        return Graph(data) if data is not None else None
    except GraphError:
        return None


def _by_status(graph: Graph, report: ReproducibilityReport, found: Localised | None) -> Drawing:
    known = {(finding.op_type, finding.domain): finding for finding in reversed(report.operators)}
    culprit = found.node.name if found is not None and found.node is not None else None

    def judge(node: GraphNode) -> tuple[str, str]:
        if culprit and node.name == culprit:
            return "culprit", "the first node that differed"
        finding = known.get((node.op_type, node.domain))
        if finding is None:
            return "fused", _STATUSES["fused"]
        return _class(str(finding.status)), f"{finding.status}. {finding.reason}"

    return draw(graph, judge, {_class(status): text for status, text in _STATUSES.items()})


def _class(status: str) -> str:
    return status.split()[-1] if status.startswith("deterministic with") else status


def _by_divergence(graph: Graph, found: Comparison) -> Drawing:
    known = {node.index: node for node in found.nodes}

    def judge(node: GraphNode) -> tuple[str, str]:
        compared = known.get(node.index)
        if compared is None or compared.difference is None:
            return "unseen", _DIVERGENCE["unseen"]
        if "nothing" in (compared.a.explained_by, compared.b.explained_by):
            return "wrong", _DIVERGENCE["wrong"]
        if compared.difference.same:
            return "same", _DIVERGENCE["same"]
        kind = "inherited" if compared.inputs_differ else "begins"
        return kind, f"{_DIVERGENCE[kind]}, by up to {_largest(compared)}"

    return draw(graph, judge, _DIVERGENCE)


def _largest(node: NodeComparison) -> str:
    difference = node.difference
    if difference is None or difference.max_abs is None:
        return "what no number tells"
    ulp = f" ({difference.max_ulp} ULP)" if difference.max_ulp is not None else ""
    return f"{difference.max_abs:.3g}{ulp}"


def _of_localised(found: Localised | None) -> list[Histogram]:
    if found is None or found.node is None:
        return []
    return [
        _histogram(f"{found.node.label}, {output.tensor.name}", output.difference)
        for output in found.node.outputs
        if output.difference is not None and output.difference.histogram
    ]


def _of_comparison(found: Comparison) -> list[Histogram]:
    outputs = [(output.name, output.difference) for output in found.outputs]
    nodes = [(node.label, node.difference) for node in found.differing]
    return [
        _histogram(title, difference)
        for title, difference in [*outputs, *nodes][:_MOST_HISTOGRAMS]
        if difference is not None and difference.histogram
    ]


def _histogram(title: str, difference: Difference) -> Histogram:
    largest = max(difference.histogram) or 1
    labels = [_bin(index) for index in range(len(HISTOGRAM))]
    bars = [(label, count, count / largest) for label, count in zip(labels, difference.histogram, strict=True)]
    return Histogram(title, bars)


def _bin(index: int) -> str:
    low = HISTOGRAM[index]
    if index + 1 == len(HISTOGRAM):
        return f"{low}+"
    high = HISTOGRAM[index + 1] - 1
    return str(low) if low == high else f"{low} to {high}"
