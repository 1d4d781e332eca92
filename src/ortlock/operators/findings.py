"""Judging the nodes of a session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ortlock.operators.graph import Node
from ortlock.operators.knowledge import Basis, Knowledge, OperatorStatus, lookup

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
        return f"{self.domain}.{self.op_type}" if self.domain not in ("", "ai.onnx") else self.op_type


def judge(nodes: Iterable[Node]) -> tuple[Finding, ...]:
    """Return one finding for each operator, provider and state of knowledge; the worst first, then by name."""
    groups: dict[tuple[str, str, str, Knowledge], list[Node]] = {}
    for node in nodes:
        provider = node.provider or "unknown"
        knowledge = lookup(node.op_type, node.domain, provider, node.attributes, node.types)
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
    return tuple(sorted(findings, key=lambda finding: (_SEVERITY.index(finding.status), finding.name)))


_SEVERITY = (
    OperatorStatus.NONDETERMINISTIC,
    OperatorStatus.STATEFUL,
    OperatorStatus.UNKNOWN,
    OperatorStatus.SETTING,
    OperatorStatus.DETERMINISTIC,
)
