"""The audit of a model: what is known of each node, and what ortlock would do, from the file alone."""

from __future__ import annotations

import os

from ortlock.arguments import check_path
from ortlock.audit.external import file_findings
from ortlock.audit.judging import judge_model, verdict
from ortlock.audit.loading import load_problem
from ortlock.audit.model import Action, Audit, AuditedNode, FileFinding, OperatorAudit, Verdict
from ortlock.operators.knowledge import CPU, CUDA, OperatorStatus
from ortlock.operators.weightless import parse_without_weights, read_without_weights
from ortlock.policy import resolve_mode

__all__ = ["Action", "Audit", "AuditedNode", "FileFinding", "OperatorAudit", "Verdict", "audit"]

PROVIDERS = {"cuda": CUDA, "cpu": CPU}


def audit(model: str | bytes | os.PathLike[str], provider: str = "cuda", mode: str = "strict") -> Audit:
    """Return what is known of each node of ``model``, and what ortlock would do with it.

    Reads the file alone: no GPU or provider is needed, and weights are not loaded. ONNX Runtime is asked whether it
    loads the model without them. It may fuse, replace or move nodes, so the report of a session judges the ones that
    really run.

    Args:
        model: path of an ONNX model, or its bytes.
        provider: ``cuda`` or ``cpu``: where the nodes are meant to run.
        mode: the mode that the verdict is for: ``observe``, ``pin`` or ``strict``.

    Raises:
        ModelFileError: the model cannot be read.
        TypeError: ``model`` is no path and no bytes.
        ValueError: ``provider`` or ``mode`` is none that is known.
    """
    if provider not in PROVIDERS:
        raise ValueError(f"provider={provider!r}: choose one of {', '.join(map(repr, PROVIDERS))}.")
    chosen = resolve_mode(mode)
    if isinstance(model, bytes):
        path, size, proto = None, len(model), parse_without_weights(model)
    else:
        path = check_path("model", model, "the path of an ONNX model, or its bytes")
        proto = read_without_weights(path)
        size = path.stat().st_size
    operators = judge_model(proto, PROVIDERS[provider])
    files = () if path is None else file_findings(proto, path)
    unknown = any(operator.status is OperatorStatus.UNKNOWN for operator in operators)
    problem = load_problem(proto, unknown=unknown)
    return Audit(
        model=None if path is None else str(path),
        size=size,
        provider=PROVIDERS[provider],
        mode=str(chosen),
        # Of a model that does not load nothing can be told, whatever is known of its nodes.
        verdict=Verdict.UNKNOWN if problem or files else verdict(operators, chosen),
        operators=operators,
        load_problem=problem,
        files=files,
    )
