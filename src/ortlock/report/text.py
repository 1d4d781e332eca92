"""A report as plain text, readable in a log."""

from __future__ import annotations

from collections.abc import Iterator

from ortlock.native import PlanRecord
from ortlock.report.model import LaneFacts, LockFacts, PlacedFacts, RandomFacts, ReproducibilityReport, Status
from ortlock.settings import Origin, SettingState
from ortlock.words import counted

_LISTED = 12
_NOTABLE = (Origin.PINNED, Origin.OVERRIDDEN, Origin.NOT_PINNED)


def to_text(report: ReproducibilityReport) -> str:
    """Return the report as lines without colour, the verdict first."""
    return "\n".join(_lines(report))


def notable(states: tuple[SettingState, ...]) -> list[SettingState]:
    """Return the settings worth showing: not at ONNX Runtime's default, and in this version."""
    return [state for state in states if state.origin in _NOTABLE or state.breaks or state.requested is not None]


def plan_line(plan: PlanRecord) -> str:
    """Return one choice of cuDNN's in one line."""
    if plan.api == "graph":
        knobs = ",".join(f"{knob}={value}" for knob, value in plan.knobs)
        chosen = f"engine {plan.engine}" + (f" [{knobs}]" if knobs else "")
    else:
        chosen = f"algorithm {plan.engine} math {plan.math_type}"
    notes = " ".join((*plan.numerical_notes, *plan.behavior_notes)) or "no notes"
    return f"{plan.status}: {plan.operation} {' '.join(plan.tensors)} ({plan.attributes}): {chosen}, {notes}"


PLAN_HEADER = (
    *("status", "operation", "tensors", "attributes", "engine", "knobs"),
    *("notes", "workspace", "from", "times"),
)


def plan_rows(report: ReproducibilityReport) -> list[tuple[object, ...]]:
    """Return cuDNN's choices as rows of a table under :data:`PLAN_HEADER`."""
    return [
        (
            plan.status,
            plan.operation,
            ", ".join(plan.tensors),
            plan.attributes,
            plan.engine,
            " ".join(f"{knob}={value}" for knob, value in plan.knobs),
            " ".join((*plan.numerical_notes, *plan.behavior_notes)),
            plan.workspace_bytes,
            plan.source,
            plan.count,
        )
        for plan in report.plans
    ]


def lockfile_line(lock: LockFacts) -> str:
    """Return what came of a lockfile in one line."""
    state = "in force" if lock.applied else "not in force"
    text = f"{lock.path} ({lock.mode}, environment {lock.fingerprint}, {state}): {counted(lock.held, 'choice')} held"
    text += f", {lock.replayed} replayed, {counted(lock.others, 'other')}"
    return f"{text}, {lock.written} written" if lock.mode != "replay" else text


def placed_line(placed: PlacedFacts) -> str:
    """Return what was done with a node in one line."""
    cost = "not measured" if placed.milliseconds is None else f"{placed.milliseconds:g} ms a run"
    return f"{placed.node} {placed.action} ({cost}): {placed.reason}"


def lanes_line(lanes: LaneFacts) -> str:
    """Return how runs of many threads are kept apart in one line."""
    streams = {
        "own": f"each with a stream of its own ({lanes.priority} priority)",
        "caller": "on the caller's stream",
        "onnxruntime": "on ONNX Runtime's streams",
    }
    text = f"{lanes.count} ({lanes.reason}), {lanes.open} made, {streams[lanes.stream]}"
    if lanes.serialised:
        text += ", one run at a time"
    if lanes.gpu_mem_limit is not None:
        text += f", {lanes.gpu_mem_limit} bytes for all, {lanes.gpu_mem_limit_per_lane} for each"
    if known := [size for size in lanes.memory if size is not None]:
        text += f", a further one took {max(known)} bytes when it was made"
    return f"{text}, {lanes.replaced} replaced, {counted(lanes.retried, 'run')} repeated alone"


def random_line(random: RandomFacts) -> str:
    """Return in one line which nodes draw the same numbers in each run."""
    names = ", ".join(random.restarted[:_LISTED])
    more = len(random.restarted) - _LISTED
    return f"random operators: start from their seed in each run: {names}" + (f" and {more} more" if more > 0 else "")


def environment_line(report: ReproducibilityReport) -> str:
    """Return the versions that decide about the bits in one line."""
    values = report.environment
    gpu = values.get("gpu") or {}
    parts = [
        f"ONNX Runtime {values.get('onnxruntime')}",
        f"ortlock {values.get('ortlock')}",
        *(f"{name} {gpu[key]}" for name, key in _GPU_PARTS if gpu.get(key)),
        f"CPU {(values.get('cpu') or {}).get('model')}",
        f"fingerprint {values.get('fingerprint')}",
    ]
    return ", ".join(parts)


_GPU_PARTS = (("GPU", "name"), ("driver", "driver"), ("CUDA", "cuda_runtime"), ("cuDNN", "cudnn"), ("cuBLAS", "cublas"))


def _lines(report: ReproducibilityReport) -> Iterator[str]:
    yield f"{report.verdict} (mode {report.mode}, {', '.join(report.providers)})"
    for reason in report.reasons:
        yield f"  {reason.status}: {reason.subject}: {reason.text}"
        if reason.remedy:
            yield f"    remedy: {reason.remedy}"
    scopes = "; ".join(
        f"{claim.scope} {claim.status}" + (f" ({claim.basis})" if claim.status is Status.HOLDS else "")
        for claim in report.scopes
    )
    yield f"scopes: {scopes}"
    for reason in report.machine_reasons:
        yield f"  on another machine {reason.status}: {reason.subject}: {reason.text}"
    if report.operators:
        counts: dict[str, int] = {}
        for finding in report.operators:
            counts[str(finding.status)] = counts.get(str(finding.status), 0) + finding.count
        total = ", ".join(f"{count} {status}" for status, count in counts.items())
        yield f"nodes (by {report.nodes_known_by}): {total}"
    for placed in report.placed:
        yield f"placed: {placed_line(placed)}"
    interposer = report.interposer
    if interposer.attached:
        yield f"cuDNN: {report.calls} calls seen, {report.executions} executions; attached ({interposer.style})"
    if report.lanes is not None:
        yield f"lanes: {lanes_line(report.lanes)}"
    if report.lockfile is not None:
        yield f"lockfile: {lockfile_line(report.lockfile)}"
    if report.random.restarted:
        yield random_line(report.random)
    for plan in report.plans[:_LISTED]:
        yield f"  {plan_line(plan)}"
    if len(report.plans) + report.dropped > _LISTED:
        yield f"  and {len(report.plans) + report.dropped - _LISTED} more"
    for state in notable(report.settings):
        asked = f", asked for {state.requested}" if state.requested not in (None, state.value) else ""
        yield f"{state.origin}: {state.key}={state.value}{asked}"
    for measured in report.evidence:
        yield f"evidence {measured.when}: {measured.summary()}"
    if report.batch is not None:
        yield report.batch.summary()
    for event in report.events:
        yield f"event {event.when}: {event.text}"
    yield f"environment: {environment_line(report)}"
