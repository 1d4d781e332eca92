"""From what is known of a session to the four scopes and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ortlock.native import CANNOT_BE_MADE, NOTHING_DETERMINISTIC, InterposerState, SessionRecords
from ortlock.operators import Finding, NodeList, OperatorStatus
from ortlock.operators.knowledge import CPU, CUDA, Basis
from ortlock.policy import Mode
from ortlock.report.model import (
    Claimed,
    Event,
    LaneFacts,
    LockFacts,
    Measured,
    PlacedFacts,
    RandomFacts,
    Reason,
    ScopeClaim,
    Status,
    Verdict,
)
from ortlock.settings import Origin, SettingState
from ortlock.words import counted

SCOPES = ("run", "session", "process", "machine")

IMPORT_ORDER = (
    "Make the first ReproducibleSession of a process before any other CUDA session runs in it; start a new process "
    "for that."
)


@dataclass(frozen=True)
class Facts:
    """Everything that a verdict rests on."""

    mode: Mode
    requested_providers: tuple[str, ...]
    providers: tuple[str, ...]
    nodes: NodeList
    findings: tuple[Finding, ...]
    settings: tuple[SettingState, ...]
    interposer: InterposerState
    records: SessionRecords
    events: tuple[Event, ...]
    lock: LockFacts | None = None
    placed: tuple[PlacedFacts, ...] = ()
    lanes: LaneFacts | None = None
    random: RandomFacts = field(default_factory=RandomFacts)
    evidence: tuple[Measured, ...] = ()
    batch: Claimed | None = None


def claims(facts: Facts) -> tuple[ScopeClaim, ...]:
    """Return the claims of the four scopes."""
    reasons = [
        *_provider_reasons(facts),
        *(_reason_of_event(event) for event in facts.events),
        *_operator_reasons(facts),
        *_setting_reasons(facts),
        *_cudnn_reasons(facts),
        *(_reason_of_evidence(measured) for measured in facts.evidence),
    ]
    bases = {finding.basis for finding in facts.findings}
    basis = Basis.EVIDENCE if Basis.EVIDENCE in bases else Basis.CONSTRUCTION
    inner = _claim("run", reasons, basis)
    claimed = [inner, *(_claim(scope, reasons, basis) for scope in SCOPES[1:3])]
    return (*claimed, _claim("machine", [*reasons, *_machine_reasons(facts)], basis))


def verdict(scopes: Sequence[ScopeClaim]) -> Verdict:
    """Return the verdict on this machine: of the scopes ``run``, ``session`` and ``process``."""
    here = {claim.status for claim in scopes if claim.scope != "machine"}
    if Status.VIOLATED in here:
        return Verdict.VIOLATED
    return Verdict.BITWISE if here == {Status.HOLDS} else Verdict.NOT_GUARANTEED


def _claim(scope: str, reasons: Sequence[Reason], basis: Basis) -> ScopeClaim:
    statuses = {reason.status for reason in reasons}
    for status in (Status.VIOLATED, Status.UNKNOWN):
        if status in statuses:
            return ScopeClaim(scope, status, Basis.NONE, tuple(reasons))
    return ScopeClaim(scope, Status.HOLDS, basis, tuple(reasons))


def _reason_of_event(event: Event) -> Reason:
    return Reason(event.code, "session", event.text, None, event.status)


def _reason_of_evidence(measured: Measured) -> Reason:
    """A difference violates the claim; that none was seen proves nothing, and is told beside it."""
    status = Status.VIOLATED if measured.status is Status.VIOLATED else Status.HOLDS
    code = "evidence-differs" if status is Status.VIOLATED else "evidence"
    return Reason(code, "verify", f"Measured {measured.when}: {measured.summary()}.", None, status)


def _provider_reasons(facts: Facts) -> list[Reason]:
    found = []
    for provider in facts.providers:
        if provider not in (CPU, CUDA):
            text = "Nothing is known about this execution provider."
            remedy = "Use CUDAExecutionProvider or CPUExecutionProvider."
            found.append(Reason("provider-unknown", provider, text, remedy, Status.UNKNOWN))
    for provider in facts.requested_providers:
        if provider not in facts.providers:
            text = f"Asked for and not there: the session runs on {', '.join(facts.providers)}, with other bits."
            remedy = "See `ortlock doctor` for what is missing."
            found.append(Reason("provider-missing", provider, text, remedy, Status.UNKNOWN))
    return found


def _operator_reasons(facts: Facts) -> list[Reason]:
    found = []
    if facts.nodes.known_by == "unknown":
        text = "The model's nodes could not be read, so its operators are not judged."
        remedy = "Use an ONNX model (not .ort), or ONNX Runtime 1.24 or later, which tells the nodes itself."
        found.append(Reason("nodes-unknown", "model", text, remedy, Status.UNKNOWN))
    for finding in facts.findings:
        status = _status_of(finding, facts.settings)
        if status is Status.HOLDS:
            continue
        more = f" and {finding.count - 1} more" if finding.count > 1 else ""
        subject = f"{finding.examples[0]}{more} on {finding.provider}"
        text = f"{finding.reason} {finding.evidence}".strip()
        code = f"operator-{str(finding.status).split()[0]}"
        found.append(Reason(code, subject, text, finding.remedy or None, status))
    return found


def _status_of(finding: Finding, settings: Sequence[SettingState]) -> Status:
    state = next((state for state in settings if state.key == finding.setting), None)
    match finding.status:
        case OperatorStatus.NONDETERMINISTIC if finding.setting is not None:
            in_force = state is not None and state.value == "1" and state.origin is not Origin.NOT_PINNED
            return Status.HOLDS if in_force else Status.VIOLATED
        case OperatorStatus.NONDETERMINISTIC | OperatorStatus.STATEFUL:
            return Status.VIOLATED
        case OperatorStatus.UNKNOWN:
            return Status.UNKNOWN
        case OperatorStatus.SETTING:
            return Status.HOLDS if state is not None and not state.breaks else Status.VIOLATED
    return Status.HOLDS


def _setting_reasons(facts: Facts) -> list[Reason]:
    in_use = {finding.op_type for finding in facts.findings}
    settled = {finding.setting for finding in facts.findings if finding.setting}
    found = []
    for state in facts.settings:
        if not state.breaks or (state.operators and not in_use.intersection(state.operators)):
            continue
        if state.key in settled:
            continue  # said with the operator that needs it
        # A search that is timed was seen: the records say so, plan by plan.
        status = Status.VIOLATED if state.key == "fuse_conv_bias" else Status.UNKNOWN
        found.append(Reason("setting", f"{state.kind} {state.key}={state.value}", state.note, None, status))
    return found


def _cudnn_reasons(facts: Facts) -> list[Reason]:
    found = []
    through = [finding for finding in facts.findings if finding.through_cudnn and finding.provider == CUDA]
    interposer = facts.interposer
    if through and not interposer.attached:
        text = "cuDNN calls are not intercepted, so nobody knows which engines run."
        remedy = "See `ortlock doctor`."
        found.append(Reason("interposer-detached", "interposer", text, remedy, Status.UNKNOWN))
    elif through and interposer.late:
        names = ", ".join(interposer.resolved_before)
        text = f"Attached too late: ONNX Runtime had already resolved {names}, and calls to them are not seen."
        found.append(Reason("interposer-late", "interposer", text, IMPORT_ORDER, Status.UNKNOWN))
    if interposer.faults:
        text = f"ortlock had internal faults and called cuDNN unchanged: {'; '.join(interposer.faults)}."
        found.append(Reason("interposer-fault", "interposer", text, "Please report it.", Status.UNKNOWN))
    for failure in facts.records.failures:
        subject = f"{failure.operation} {', '.join(failure.tensors)}"
        if failure.cause != NOTHING_DETERMINISTIC:
            text, remedy = f"Refused: {failure.cause}.", "Record it: `ortlock lock`, or lock_mode='record'."
            if failure.cause == CANNOT_BE_MADE:
                remedy = "Record it anew: `ortlock lock --update`, or lock_mode='update'."
            found.append(Reason("not-locked", subject, text, remedy, Status.UNKNOWN))
            continue
        done = "stock's choice runs" if failure.let_through else "none runs"
        text = f"None of cuDNN's {failure.candidates} candidates is deterministic and usable; {done}."
        remedy = "Run the node on the CPU provider, or change its shape, type or layout."
        status = Status.VIOLATED if failure.let_through else Status.UNKNOWN
        found.append(Reason("no-deterministic-plan", subject, text, remedy, status))
    failed = {(failure.operation, failure.tensors, failure.attributes) for failure in facts.records.failures}
    for plan in facts.records.plans:
        if plan.status != "let through" or (plan.operation, plan.tensors, plan.attributes) in failed:
            continue
        cause = "was chosen by a timed search" if "TIMED_SEARCH" in plan.behavior_notes else "is nondeterministic"
        subject = f"{plan.operation} {', '.join(plan.tensors)}"
        text = f"{'Engine' if plan.api == 'graph' else 'Algorithm'} {plan.engine} {cause} and in use."
        found.append(Reason("plan-nondeterministic", subject, text, "Use mode pin or strict.", Status.VIOLATED))
    for plan in facts.records.plans:
        if "UNREADABLE" in plan.numerical_notes:
            text = "cuDNN did not tell the numerical notes of the engine in use."
            found.append(Reason("plan-unreadable", plan.operation, text, None, Status.UNKNOWN))
    if facts.mode is Mode.OBSERVE and through and facts.records.executions == 0:
        text = "No convolution has run yet, and in observe mode nothing keeps a nondeterministic engine from running."
        found.append(Reason("plans-unseen", "cuDNN", text, "Run the session, or use mode pin.", Status.UNKNOWN))
    return found


def _ranking_reasons(facts: Facts) -> list[Reason]:
    """Return why another machine could run other engines: none where a lockfile names every one that has run."""
    lock = facts.lock
    remedy = "Replay a lockfile: `ortlock lock MODEL -o FILE`, then lockfile=FILE."
    if lock is None or not lock.applied or lock.mode != "replay":
        text = "cuDNN ranks its engines on each machine; that another one ranks the same was not shown."
        return [Reason("ranking-by-machine", "cuDNN", text, remedy, Status.UNKNOWN)]
    if lock.others:
        text = f"{counted(lock.others, 'operation')} ran choices that are not in {lock.path}."
        return [Reason("ranking-by-machine", "cuDNN", text, remedy, Status.UNKNOWN)]
    if not lock.replayed:
        text = "No operation has run yet, so it is not known whether the lockfile holds them all."
        return [] if facts.mode is Mode.STRICT else [Reason("plans-unseen", "cuDNN", text, None, Status.UNKNOWN)]
    return []


def _machine_reasons(facts: Facts) -> list[Reason]:
    found = []
    if any(finding.through_cudnn and finding.provider == CUDA for finding in facts.findings):
        found += _ranking_reasons(facts)
    for state in facts.settings:
        if state.key == "intra_op_num_threads" and state.origin in (Origin.DEFAULT, Origin.NOT_PINNED):
            text = "ONNX Runtime chooses the number of CPU threads by the machine."
            remedy = "Use mode pin, or set sess_options.intra_op_num_threads."
            found.append(Reason("threads-by-machine", state.key, text, remedy, Status.UNKNOWN))
        elif state.key == "intra_op_num_threads" and state.origin is Origin.PINNED and state.value != "1":
            text = f"The number of CPU threads, {state.value}, was taken from this machine."
            remedy = "Set sess_options.intra_op_num_threads to the same number everywhere."
            found.append(Reason("threads-by-machine", state.key, text, remedy, Status.UNKNOWN))
    return found
