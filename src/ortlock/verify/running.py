"""Running a subject under every stress within a budget, and looking for the node where it differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ortlock.arguments import check_count, check_names, check_seconds
from ortlock.localise import Localised, Runner, localise
from ortlock.report.model import Status
from ortlock.verify.result import Evidence, StressResult
from ortlock.verify.stress import Observation, Stress
from ortlock.verify.stresses import OtherSetting, all_stresses
from ortlock.verify.subject import Subject, inputs_digest, observe

DEFAULT_RUNS = 20

Progress = Callable[[str, int, int], None]
"""Called with the stress at hand, runs so far and runs wanted (0: as many as the time allows)."""


@dataclass(frozen=True)
class Budget:
    """How long to go on. Every stress runs once in any case.

    Raises:
        ValueError: ``runs`` is no whole number from 1 on, or ``seconds`` no time above 0 that ends.
    """

    runs: int | None = None
    """Runs under each stress."""
    seconds: float | None = None
    """For all together."""

    def __post_init__(self) -> None:
        if self.runs is not None:
            check_count("runs", self.runs)
        if self.seconds is not None:
            check_seconds("seconds", self.seconds)

    def wanted(self, done: int, elapsed: float) -> bool:
        """Return whether a stress with so many runs goes on."""
        if done == 0:
            return True
        if self.seconds is not None and elapsed >= self.seconds:
            return False
        runs = self.runs if self.runs is not None else DEFAULT_RUNS if self.seconds is None else None
        return runs is None or done < runs


@dataclass
class _Tally:
    """What one stress has shown so far."""

    stress: Stress
    unavailable: str | None
    digests: list[set[str]]
    runs: int = 0
    failed: int = 0
    seconds: float = 0.0
    differing: list[int] = field(default_factory=list)
    """Numbers of the inputs whose outputs differed."""

    def add(self, observations: Iterable[Observation]) -> None:
        for index, found in observations:
            if found is None:
                self.failed += 1
                continue
            self.runs += 1
            self.digests[index].add(found)
            if len(self.digests[index]) > 1 and index not in self.differing:
                self.differing.append(index)

    def result(self) -> StressResult:
        stress = self.stress
        status = Status.UNKNOWN
        if self.differing:
            status = Status.VIOLATED
        elif self.runs and not stress.lost:
            status = Status.HOLDS
        failed = ["every run failed"] if self.failed and not self.runs else []
        reached = bool(self.runs or self.failed)
        note = self.unavailable or ("; ".join(filter(None, (*failed, stress.note))) if reached else "not reached")
        distinct = max(len(found) for found in self.digests) if self.runs else 0
        return StressResult(
            stress.name, stress.scope, stress.text, self.runs, self.failed, distinct, status, note, self.seconds
        )


def verify(
    subject: Subject,
    *,
    budget: Budget | None = None,
    stresses: Sequence[str] | None = None,
    own: Runner | None = None,
    data: bytes | None = None,
    early_stop: bool = True,
    progress: Progress | None = None,
) -> Evidence:
    """Run a subject under stress and compare all outputs bit by bit.

    Args:
        subject: what is run, on which inputs.
        budget: how long; None: 20 runs under each stress.
        stresses: names of kinds of stress (``ortlock.verify.stresses.NAMES``, ``settings``); None: all.
        own: what gives the reference outputs; None: a new session.
        data: the model's bytes, to look for the node where outputs differ; None: no search.
        early_stop: end at the first difference.
        progress: called after each step.

    Raises:
        ValueError: there are no inputs, or a stress is not known.
        TypeError: ``stresses`` is one text.
        Exception: whatever a run raises that should not fail.
    """
    if not subject.feeds:
        raise ValueError("verify needs at least one set of inputs.")
    stresses = check_names("stresses", stresses)
    budget = budget or Budget()
    when = datetime.now(UTC).isoformat(timespec="seconds")
    started = time.perf_counter()
    runner = own if own is not None else subject.maker.original()
    reference = [observe(runner, feed) for feed in subject.feeds]
    tallies = [
        _Tally(stress, stress.unavailable(), [{found} for found in reference])
        for stress in all_stresses(subject, stresses, runner)
    ]
    active = [tally for tally in tallies if tally.unavailable is None]
    # In turn, so that a budget that ends leaves no stress without a run.
    while active and not _over(tallies, early_stop):
        for tally in list(active):
            if not budget.wanted(tally.runs + tally.failed, time.perf_counter() - started):
                active.remove(tally)
                tally.stress.close()
                continue
            _step(tally)
            if progress is not None:
                progress(tally.stress.name, sum(one.runs for one in tallies), (budget.runs or 0) * len(tallies))
            if _over([tally], early_stop):
                break
    for tally in active:
        tally.stress.close()
    results = tuple(tally.result() for tally in tallies)
    lost = next((tally.stress.lost for tally in tallies if tally.stress.lost), "")
    return Evidence(
        _status(results, lost),
        results,
        tuple(inputs_digest(feed) for feed in subject.feeds),
        tuple(reference),
        when,
        time.perf_counter() - started,
        *((None, f"Nothing more was run: {lost}") if lost else _search(subject, tallies, data)),
    )


def _over(tallies: Sequence[_Tally], early_stop: bool) -> bool:
    """Return whether these runs are the last: nothing can be run any more, or a difference is enough."""
    return any(tally.stress.lost or (early_stop and tally.differing) for tally in tallies)


def _step(tally: _Tally) -> None:
    started = time.perf_counter()
    try:
        tally.add(tally.stress.step())
    finally:
        tally.seconds += time.perf_counter() - started


def _status(results: Sequence[StressResult], lost: str) -> Status:
    found = {result.status for result in results if result.runs}
    if Status.VIOLATED in found:
        return Status.VIOLATED
    return Status.HOLDS if found == {Status.HOLDS} and not lost else Status.UNKNOWN


def _search(subject: Subject, tallies: Sequence[_Tally], data: bytes | None) -> tuple[Localised | None, str]:
    """Look for the first node that differs: from run to run, or between two values of a setting.

    A search that fails must not take the evidence with it: why is returned beside it.
    """
    if data is None:
        return None, ""
    differing = [tally for tally in tallies if tally.differing]
    if differing and not any(tally.stress.repeatable for tally in differing):
        names = " and ".join(tally.stress.name for tally in differing)
        return None, f"The node was not looked for: outputs differed under {names} alone, which a search does without."
    # What differs without another setting is the graver fault.
    for tally in sorted(differing, key=lambda tally: isinstance(tally.stress, OtherSetting)):
        if not tally.stress.repeatable:
            continue
        feed = subject.feeds[tally.differing[0]]
        other = tally.stress.maker if isinstance(tally.stress, OtherSetting) else None
        try:
            return localise(data, feed, subject.maker, other), ""
        except Exception as error:
            return None, f"The node could not be looked for: {' '.join(str(error).split())}"
    return None, ""
