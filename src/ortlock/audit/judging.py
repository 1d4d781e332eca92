"""Judging a model's nodes by what is known, and what each mode makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from ortlock import placement
from ortlock.audit.model import Action, AuditedNode, OperatorAudit, Verdict
from ortlock.operators.findings import SEVERITY, known
from ortlock.operators.graph import Node, nodes_with_places
from ortlock.operators.knowledge import CPU, CUDA, Knowledge, OperatorStatus
from ortlock.operators.model_file import FunctionName, Place, opset_of
from ortlock.policy import Mode

_Judged = tuple[Place, Node]


def judge_model(model: onnx.ModelProto, provider: str) -> tuple[OperatorAudit, ...]:
    """Return the nodes by operator and state of knowledge, the worst first, then by name.

    Bodies of functions count where something calls them.
    """
    opset, movable = opset_of(model), placement.moves_by_name()
    groups: dict[tuple[str, str, Knowledge, placement.Action | None], list[AuditedNode]] = {}
    for place, node in _called(model, provider):
        way = placement.way_out(place.node, node, opset) if node.provider == CUDA else None
        if way is placement.Action.MOVED and not movable:
            way = None
        audited = AuditedNode(place.label, node.name, place.path, place.index)
        groups.setdefault((node.op_type, node.domain, known(node), way), []).append(audited)
    found = [
        OperatorAudit(
            op_type,
            domain,
            knowledge.status,
            knowledge.basis,
            knowledge.reason,
            knowledge.remedy,
            knowledge.evidence,
            knowledge.setting,
            {str(mode): _action(knowledge, way, mode) for mode in Mode},
            tuple(nodes),
        )
        for (op_type, domain, knowledge, way), nodes in groups.items()
    ]
    return tuple(sorted(found, key=lambda operator: (SEVERITY.index(operator.status), operator.name)))


def verdict(operators: Sequence[OperatorAudit], mode: Mode) -> Verdict:
    """Return what is known of the whole: violated where a node is known to vary in ``mode``, else what is unknown."""
    verdicts = {_verdict(operator, operator.actions[str(mode)]) for operator in operators}
    return next((worst for worst in (Verdict.VIOLATED, Verdict.UNKNOWN) if worst in verdicts), Verdict.HOLDS)


def _verdict(operator: OperatorAudit, action: Action) -> Verdict:
    if action not in (Action.REPORT, Action.REFUSE):
        return Verdict.HOLDS
    # Deterministic and yet reported: through cuDNN in observe, where the engines are known after a run.
    unclear = operator.status in (OperatorStatus.UNKNOWN, OperatorStatus.DETERMINISTIC)
    return Verdict.UNKNOWN if unclear else Verdict.VIOLATED


def _action(knowledge: Knowledge, way: placement.Action | None, mode: Mode) -> Action:
    if knowledge.status is OperatorStatus.DETERMINISTIC and not knowledge.through_cudnn:
        return Action.RUN
    if mode is Mode.OBSERVE:
        return Action.REPORT
    if knowledge.status is OperatorStatus.DETERMINISTIC:
        return Action.PLAN
    if knowledge.status is OperatorStatus.SETTING:
        return Action.PIN
    if mode is Mode.PIN:
        return Action.REPORT
    if way is None:
        return Action.REFUSE
    return Action.REWRITE if way is placement.Action.REWRITTEN else Action.MOVE


def _called(model: onnx.ModelProto, provider: str) -> Iterator[_Judged]:
    """Yield the nodes of the main graph, of its subgraphs, and of every function that these call in the end."""
    bodies: dict[FunctionName | None, list[_Judged]] = {}
    for place, node in nodes_with_places(model, [provider, CPU]):
        bodies.setdefault(place.function, []).append((place, node))
    waiting: list[FunctionName | None] = [None]
    seen = set(waiting)
    while waiting:
        for place, node in bodies.get(waiting.pop(0), ()):
            yield place, node
            called = (node.domain, node.op_type)
            if called in bodies and called not in seen:
                seen.add(called)
                waiting.append(called)
