"""Everything that is known of one session, and what follows from it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlock import native
from ortlock.environment import environment
from ortlock.errors import NotReproducibleError
from ortlock.operators import judge, nodes_of_session
from ortlock.report import Facts, ModelIdentity, RandomFacts, ReproducibilityReport, Status, build, claims
from ortlock.session.placing import named_by, placed_facts
from ortlock.settings import CUDA

if TYPE_CHECKING:
    from ortlock.session.guard import Guard


def gather(session: Any, guard: Guard) -> Facts:
    """Return what is known of ``session`` now. The nodes are read once for each time ONNX Runtime makes it."""
    if guard.nodes is None:
        guard.nodes = nodes_of_session(session, *guard.loaded, named_by(guard.placement))
    records = native.records(guard.number)
    return Facts(
        mode=guard.mode,
        requested_providers=guard.requested,
        providers=tuple(session.get_providers()),
        nodes=guard.nodes,
        findings=judge(guard.nodes.nodes),
        settings=guard.settings,
        interposer=native.attach(),
        records=records,
        events=guard.events,
        lock=guard.lock.facts(records) if guard.lock is not None else None,
        placed=placed_facts(guard.placement, guard.costs),
        lanes=guard.lanes.facts() if guard.lanes is not None else None,
        random=RandomFacts(str(guard.random_ops), guard.restarted.nodes if guard.restarted is not None else ()),
        evidence=tuple(guard.evidence),
        batch=guard.batch,
    )


def unmet(facts: Facts) -> NotReproducibleError | None:
    """Return the first reason, the gravest first, for which the same bits cannot be promised on this machine.

    Operations that were refused and did not run leave the promise intact.
    """
    ran = tuple(failure for failure in facts.records.failures if failure.let_through)
    scopes = claims(replace(facts, records=replace(facts.records, failures=ran)))
    reasons = [
        reason
        for claim in scopes
        for reason in claim.reasons
        if claim.scope != "machine" and reason.status is not Status.HOLDS
    ]
    for status in (Status.VIOLATED, Status.UNKNOWN):
        for reason in reasons:
            if reason.status is status:
                return NotReproducibleError(reason.subject, reason.text, reason.remedy or "Use mode='pin'.")
    return None


def report(session: Any, guard: Guard) -> ReproducibilityReport:
    """Return the report of ``session`` as it is now."""
    facts = gather(session, guard)
    if guard.model is None:
        guard.model = _identity_of(session, guard)
    cuda = CUDA in facts.providers
    device = session.get_provider_options().get(CUDA, {}).get("device_id", "0")
    surroundings = environment(int(device), cuda=cuda, cudnn_path=facts.interposer.cudnn_path if cuda else None)
    return build(facts, guard.model, surroundings.to_dict())


def _identity_of(session: Any, guard: Guard) -> ModelIdentity:
    """Return which model a session runs. Where its file has become another one meanwhile, nobody knows any more."""
    if guard.files is None:
        return model_identity(session._model_path, session._model_bytes)
    found = replace(model_identity(guard.files.path, None), path=session._model_path)
    return found if guard.files.changed() is None else ModelIdentity(session._model_path, None, None)


def model_identity(path: str | None, data: bytes | None) -> ModelIdentity:
    """Return which model it is; its hash is None where the file cannot be read."""
    if data is not None:
        return ModelIdentity(None, hashlib.sha256(data).hexdigest(), len(data))
    try:
        with Path(path or "").open("rb") as file:
            return ModelIdentity(path, hashlib.file_digest(file, "sha256").hexdigest(), file.tell())
    except (OSError, ValueError):  # the latter of a path that cannot be one
        return ModelIdentity(path, None, None)
