"""The kind of stress that runs on several lanes of one session."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from onnxruntime import InferenceSession

from ortlock.policy import Mode, resolve_mode
from ortlock.session import ReproducibleSession
from ortlock.session.lanes import call
from ortlock.verify.stress import NEEDS_SESSIONS, Observation, OneSession, together

_LANES = 3

_SECONDS_TO_MEET = 60.0
"""A lane that takes longer to be made is not waited for."""


class OnLanes(OneSession):
    name = "lanes"
    text = f"a session with {_LANES} lanes (or as many as asked for): a run on each at once, then several threads"

    def unavailable(self) -> str | None:
        sessions = self.subject.sessions
        if sessions is None:
            return NEEDS_SESSIONS
        if resolve_mode(sessions.configuration.mode) is Mode.OBSERVE:
            return "mode observe has no lanes"
        lanes = self.runner.report().lanes
        if lanes is None or lanes.serialised:
            self.close()
            return f"there is one lane: {lanes.reason}" if lanes is not None else "the session has no lanes"
        return None

    @property
    def runner(self) -> ReproducibleSession:
        if self._runner is None:
            sessions = self.subject.sessions
            assert sessions is not None
            made = sessions.configuration
            count = made.lanes if made.lanes is not None and made.lanes > 1 else _LANES
            self._runner = replace(made, lanes=count).open(sessions.source)
        assert isinstance(self._runner, ReproducibleSession)
        return self._runner

    def close(self) -> None:
        if isinstance(self._runner, ReproducibleSession):
            self._runner.close()
        super().close()

    def step(self) -> Iterator[Observation]:
        session = self.runner
        lanes = session._ortlock.lanes
        assert lanes is not None
        count = len(lanes.pool.members)
        yield from together(replace(self.subject, threads=count), _Meeting(session, count))
        yield from together(self.subject, session)
        facts = lanes.facts()
        self.note = f"lanes that ran: {facts.open}"
        if facts.count < lanes.plan.count:
            self.note += f"; {facts.reason}"


class _Meeting:
    """Runs a session from ``count`` threads, each run on another lane: it begins when all lanes are held."""

    def __init__(self, session: ReproducibleSession, count: int) -> None:
        self._session = session
        self._all = threading.Barrier(count)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> Sequence[Any]:
        found: Sequence[Any] = call(self._session._ortlock, self._run, output_names, input_feed)
        return found

    def get_outputs(self) -> Sequence[Any]:
        outputs: Sequence[Any] = self._session.get_outputs()
        return outputs

    def get_inputs(self) -> Sequence[Any]:
        inputs: Sequence[Any] = self._session.get_inputs()
        return inputs

    def _run(self, lane: InferenceSession, names: Any, feed: Any, run_options: Any = None) -> Any:
        # Broken where a lane could not be made, or a run is repeated alone: then the others do without.
        with suppress(threading.BrokenBarrierError):
            self._all.wait(_SECONDS_TO_MEET)
        return InferenceSession.run(lane, names, feed, run_options)
