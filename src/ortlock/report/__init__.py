"""Reports: whether a session gives the same bits, and why."""

from ortlock import native
from ortlock.report.model import (
    Claimed,
    Event,
    LaneFacts,
    LockFacts,
    Measured,
    ModelIdentity,
    PlacedFacts,
    RandomFacts,
    Reason,
    ReproducibilityReport,
    ScopeClaim,
    Status,
    Verdict,
)
from ortlock.report.verdict import IMPORT_ORDER, Facts, claims, verdict

__all__ = [
    "IMPORT_ORDER",
    "Claimed",
    "Event",
    "Facts",
    "LaneFacts",
    "LockFacts",
    "Measured",
    "ModelIdentity",
    "PlacedFacts",
    "RandomFacts",
    "Reason",
    "ReproducibilityReport",
    "ScopeClaim",
    "Status",
    "Verdict",
    "build",
    "claims",
    "verdict",
]


def build(facts: Facts, model: ModelIdentity, environment: dict[str, object]) -> ReproducibilityReport:
    """Return the report that follows from ``facts``."""
    scopes = claims(facts)
    return ReproducibilityReport(
        verdict=verdict(scopes),
        mode=str(facts.mode),
        model=model,
        requested_providers=facts.requested_providers,
        providers=facts.providers,
        scopes=scopes,
        operators=facts.findings,
        nodes_known_by=facts.nodes.known_by,
        plans=facts.records.plans,
        failures=facts.records.failures,
        calls=facts.records.calls,
        executions=facts.records.executions,
        dropped=facts.records.dropped,
        settings=facts.settings,
        environment=environment,
        interposer=facts.interposer,
        events=facts.events,
        lockfile=facts.lock,
        placed=facts.placed,
        random=facts.random,
        book=native.book(),
        lanes=facts.lanes,
        evidence=facts.evidence,
        batch=facts.batch,
    )
