"""What an audit is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ortlock.operators.knowledge import Basis, OperatorStatus, operator_name

SCHEMA = 1
"""Version of the dictionary that :meth:`Audit.to_dict` returns."""

ACTUAL_NODES = (
    "Judged from the file. ONNX Runtime's own fusions may replace nodes, and it may place some on another provider: "
    "the report of a session judges the nodes that really run."
)


class Action(StrEnum):
    """What ortlock does with a node in one mode."""

    RUN = "run"
    """Run it: it is deterministic as it is."""
    PIN = "pin a setting"
    """Run it with the setting pinned that makes it deterministic."""
    PLAN = "deterministic plan"
    """Let it run a deterministic plan of cuDNN's only."""
    MOVE = "run on the CPU provider"
    REWRITE = "rewrite to standard operators"
    REPORT = "run and report"
    """Run it as it is and say in the report that nothing is guaranteed."""
    REFUSE = "refuse"


class Verdict(StrEnum):
    """What a mode makes of the whole model; ``unknown`` also where ONNX Runtime cannot load it."""

    HOLDS = "holds"
    UNKNOWN = "unknown"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class AuditedNode:
    """One node of the model."""

    label: str
    """For people, e.g. ``loop1/body: Scatter_3``; operator and position in place of a missing name."""
    name: str
    path: tuple[str, ...]
    """The nodes and attributes, or the function, that it stands inside of, from the outside in."""
    index: int
    """Position in its graph."""


@dataclass(frozen=True, slots=True)
class OperatorAudit:
    """One operator in one state of knowledge, and its nodes."""

    op_type: str
    domain: str
    status: OperatorStatus
    basis: Basis
    reason: str
    remedy: str
    evidence: str
    setting: str | None
    actions: Mapping[str, Action]
    """What ortlock does with it, by mode."""
    nodes: tuple[AuditedNode, ...]

    @property
    def name(self) -> str:
        return operator_name(self.op_type, self.domain)


@dataclass(frozen=True, slots=True)
class FileFinding:
    """External data that is not there, or shorter than the tensors in it."""

    file: str
    tensor: str
    """The first tensor concerned."""
    count: int
    """How many tensors of the file are concerned."""
    problem: str


@dataclass(frozen=True)
class Audit:
    """What is known of each node of a model, and what ortlock would do."""

    model: str | None
    """Path; None for a model in memory."""
    size: int
    """Bytes of the model itself, external data not counted."""
    provider: str
    mode: str
    """The mode that the verdict is for."""
    verdict: Verdict
    operators: tuple[OperatorAudit, ...]
    """The worst first."""
    load_problem: str | None
    """Why the ONNX Runtime that is installed does not load the model, were its weights there: e.g. its opset."""
    files: tuple[FileFinding, ...]
    """Problems with external data, for which ONNX Runtime does not load the model."""

    @property
    def loads(self) -> bool:
        """Whether nothing was found for which ONNX Runtime would not load the model."""
        return self.load_problem is None and not self.files

    @property
    def counts(self) -> dict[str, int]:
        """Number of nodes by status."""
        found: dict[str, int] = {}
        for operator in self.operators:
            found[str(operator.status)] = found.get(str(operator.status), 0) + len(operator.nodes)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as JSON values with stable keys."""
        operators = []
        for operator in self.operators:
            values = asdict(operator)
            values["actions"] = {mode: str(action) for mode, action in operator.actions.items()}
            values["status"], values["basis"] = str(operator.status), str(operator.basis)
            values["nodes"] = [{**asdict(node), "path": list(node.path)} for node in operator.nodes]
            operators.append(values)
        return {
            "schema": SCHEMA,
            "model": self.model,
            "size": self.size,
            "provider": self.provider,
            "mode": self.mode,
            "verdict": str(self.verdict),
            "counts": self.counts,
            "operators": operators,
            "load_problem": self.load_problem,
            "files": [asdict(finding) for finding in self.files],
            "note": ACTUAL_NODES,
        }

    def __str__(self) -> str:
        from ortlock.audit.text import to_text

        return to_text(self)
