"""What is known of each operator's reproducibility, by execution provider.

The knowledge is the table in ``table/*.toml``, read in ONNX Runtime's source, together with what has been measured
(``table/measured.json``): what nobody has measured is unknown, whatever the source looks like. What stands in no row is
unknown too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from ortlock.operators.conditions import CONDITIONS, NodeFacts
from ortlock.operators.measurements import in_words, measurements, registered_on_cuda
from ortlock.operators.rows import PROVIDERS, Basis, OperatorStatus, Row, rows_of

__all__ = ["CPU", "CUDA", "Basis", "Knowledge", "OperatorStatus", "has_cuda_kernel", "knowledge_of", "lookup"]

CPU: Final = PROVIDERS["cpu"]
CUDA: Final = PROVIDERS["cuda"]


def operator_name(op_type: str, domain: str) -> str:
    """Return an operator's name with its domain, e.g. ``com.microsoft.MoE``; ONNX's own have none."""
    return f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known of one operator on one provider."""

    status: OperatorStatus
    basis: Basis
    reason: str
    remedy: str = ""
    evidence: str = ""
    setting: str | None = None
    """Key of the setting that makes it deterministic."""
    through_cudnn: bool = False
    """Whether it holds is measured by the interposer, plan by plan."""
    placement: str | None = None
    """``cpu`` where running it on the CPU provider is the remedy."""
    rewrite: str | None = None
    """What it can be replaced by in the model."""
    when: str | None = None
    """The condition under which this is so, of those that tell the operator's cases apart."""


_MEASURE_IT = "Use mode pin, which runs it and reports it; or measure it and say so."
_NOT_MEASURED = "Read in ONNX Runtime's source as {status}; nobody has measured it."
_UNKNOWN = Knowledge(
    OperatorStatus.UNKNOWN, Basis.NONE, "Nobody has measured this operator on this provider.", _MEASURE_IT
)
_NO_KERNEL = Knowledge(
    OperatorStatus.UNKNOWN,
    Basis.NONE,
    "ONNX Runtime's CUDA provider is not known to have a kernel of this operator, and nobody has measured one.",
    _MEASURE_IT,
)
_FUNCTION = Knowledge(
    OperatorStatus.DETERMINISTIC,
    Basis.CONSTRUCTION,
    "A call of one of the model's functions, whose nodes are judged themselves.",
)
_SHORT = {provider: short for short, provider in PROVIDERS.items()}


def lookup(
    op_type: str,
    domain: str,
    provider: str,
    attributes: Mapping[str, object] | None = None,
    types: Collection[str] | None = None,
) -> Knowledge:
    """Return what is known of an operator on a provider.

    Args:
        op_type: e.g. ``Conv``.
        domain: ``""`` for ONNX's own.
        provider: e.g. ``CUDAExecutionProvider``; of other providers than CUDA and CPU nothing is known.
        attributes: the node's attributes; None where they are not known, and then the worst case counts.
        types: the floating-point types that the node's model uses, e.g. ``{"float32"}``; None where they are not
            known, and then the worst case counts.
    """
    short = _SHORT.get(provider)
    if short is None:
        return _UNKNOWN
    if attributes is not None and attributes.get("function"):
        return _FUNCTION
    domain = "" if domain == "ai.onnx" else domain
    facts = NodeFacts(attributes, types)
    for row in rows_of((short, domain, op_type)):
        if row.concerns(_version()) and (row.when is None or CONDITIONS[row.when](facts)):
            return knowledge_of(row, op_type)
    standard = domain in ("", "com.microsoft")
    return _NO_KERNEL if provider == CUDA and standard and not has_cuda_kernel(op_type, domain) else _UNKNOWN


@cache
def knowledge_of(row: Row, operator: str) -> Knowledge:
    """Return what a row says of one of its operators, together with what has been measured."""
    cases = measurements().get((row.provider, row.domain, operator), ())
    here = [one for one in cases if one.when == row.when]
    evidence = " ".join([*(in_words(one) for one in here), row.evidence]).strip()
    if row.needs_measurement and not here:
        reason = _NOT_MEASURED.format(status=row.status)
        return Knowledge(OperatorStatus.UNKNOWN, Basis.NONE, reason, _MEASURE_IT, row.evidence, when=row.when)
    remedy = row.remedy or (_MEASURE_IT if row.status is OperatorStatus.UNKNOWN else "")
    return Knowledge(
        row.status,
        row.basis,
        row.reason,
        remedy,
        evidence,
        row.setting,
        row.through_cudnn,
        row.placement,
        row.rewrite,
        row.when,
    )


def has_cuda_kernel(op_type: str, domain: str) -> bool:
    """Return whether ONNX Runtime's CUDA provider registers an operator, in any type; others run on the CPU."""
    return ("" if domain == "ai.onnx" else domain, op_type) in _registered()


@cache
def _registered() -> frozenset[tuple[str, str]]:
    return frozenset((one.domain, one.name) for one in registered_on_cuda())


@cache
def _version() -> tuple[int, int] | None:
    """Return ONNX Runtime's version; None where it is not one."""
    import onnxruntime

    parts = str(onnxruntime.__version__).split(".")[:2]
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdecimal() for part in parts) else None
