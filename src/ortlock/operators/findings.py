"""Judging the nodes of a session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ortlock.operators.graph import Node
from ortlock.operators.knowledge import CPU, CUDA, Basis, Knowledge, OperatorStatus, lookup, operator_name
from ortlock.operators.random.replace import REPLACE

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of one operator on one provider, and the nodes that it concerns."""

    op_type: str
    domain: str
    provider: str
    status: OperatorStatus
    basis: Basis
    reason: str
    remedy: str
    evidence: str
    setting: str | None
    through_cudnn: bool
    count: int
    """How many nodes."""
    examples: tuple[str, ...]
    """Labels of the first few of them."""

    @property
    def name(self) -> str:
        return operator_name(self.op_type, self.domain)


def known(node: Node) -> Knowledge:
    """Return what is known of a node: of its operator, and of the indices that the model gives it."""
    knowledge = lookup(node.op_type, node.domain, node.provider or "unknown", node.attributes, node.types)
    if node.provider in (CPU, CUDA) and node.op_type in REPLACE and knowledge.status in _DRAWING:
        return replace(knowledge, remedy=f"{_RESTART} {knowledge.remedy}")
    duplicates = None if node.attributes is None else node.attributes.get("duplicates")
    if not isinstance(duplicates, bool) or node.attributes is None or node.provider not in (CPU, CUDA):
        return knowledge
    if node.attributes.get("reduction", "none") != "none":
        return knowledge
    if not duplicates:
        return _WRITTEN_ONCE
    if knowledge.status is not OperatorStatus.UNKNOWN:
        return replace(knowledge, reason=f"{_DUPLICATES} {knowledge.reason}")
    return replace(knowledge, status=OperatorStatus.NONDETERMINISTIC, basis=Basis.EVIDENCE, reason=_DUPLICATES)


_DRAWING = frozenset({OperatorStatus.STATEFUL, OperatorStatus.UNKNOWN})
_RESTART = (
    "Use random_ops='restart': every run then starts from the seed, so that equal calls give equal bytes (with other "
    "numbers than ONNX Runtime draws). Or:"
)
_DUPLICATES = (
    "Its constant indices hold duplicate indices, undefined in ONNX: the last writer wins, and nothing says which one "
    "that is."
)
_WRITTEN_ONCE = Knowledge(
    OperatorStatus.DETERMINISTIC,
    Basis.CONSTRUCTION,
    "Its constant indices hold no duplicates: each element is written at most once.",
)


def judge(nodes: Iterable[Node]) -> tuple[Finding, ...]:
    """Return one finding for each operator, provider and state of knowledge; the worst first, then by name."""
    groups: dict[tuple[str, str, str, Knowledge], list[Node]] = {}
    for node in nodes:
        provider = node.provider or "unknown"
        knowledge = known(node)
        groups.setdefault((node.op_type, node.domain, provider, knowledge), []).append(node)
    findings = [
        Finding(
            op_type,
            domain,
            provider,
            knowledge.status,
            knowledge.basis,
            knowledge.reason,
            knowledge.remedy,
            knowledge.evidence,
            knowledge.setting,
            knowledge.through_cudnn,
            len(members),
            tuple(node.label for node in members[:_EXAMPLES]),
        )
        for (op_type, domain, provider, knowledge), members in groups.items()
    ]
    return tuple(sorted(findings, key=lambda finding: (SEVERITY.index(finding.status), finding.name)))


SEVERITY = (
    OperatorStatus.NONDETERMINISTIC,
    OperatorStatus.STATEFUL,
    OperatorStatus.UNKNOWN,
    OperatorStatus.SETTING,
    OperatorStatus.DETERMINISTIC,
)
"""From the worst on."""
