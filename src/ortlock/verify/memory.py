"""Kinds of stress on memory: short, limited, and full of other bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from ortlock.lanes.memory import LIMIT
from ortlock.localise import Runner
from ortlock.verify import device
from ortlock.verify.failures import Failures
from ortlock.verify.processes import run_in_process, transferable
from ortlock.verify.stress import (
    NEEDS_SESSIONS,
    NO_CUPY,
    ON_CUDA,
    Observation,
    Stress,
    lost_context,
    together,
    tolerant_runner,
    tolerant_runs,
)
from ortlock.verify.subject import Subject, observe

_LEFT_FREE = 1 << 29

_SIZES_MB = tuple(size for power in range(3, 16) for size in (1 << power, 3 << power - 1))
"""Limits that are tried to learn what one run needs: 8, 12, 16, 24 and so on to 48 GB."""
_FIRST_TRIED_MB = 64

_SHARES = (1.0, 1.25, 1.5, 2.0)
"""Limits as shares of what one run needs: one fits, several at a time do not."""
_SHARES_OF_SEVERAL = (1.0, 0.75, 1.25, 1.5)
"""The same for several sets of inputs: once the largest does not fit and fails beside the others."""

_ROUNDS = 4
"""How often the threads run all inputs in one session."""

_SILENT = 4
"""Log severity: each run that fails for the limit would be logged."""


class LittleMemory(Stress):
    name = "little free memory"
    scope = "session"
    text = "a new session while other memory of the GPU is occupied but for 512 MB"

    def unavailable(self) -> str | None:
        return ON_CUDA if not self.subject.cuda else NO_CUPY if not device.available() else None

    def step(self) -> Iterator[Observation]:
        failures = Failures()
        with device.occupied(self.device, _LEFT_FREE):
            yield from list(tolerant_runs(self.subject, self.subject.maker.original, failures))
        if failures:
            self.note = str(failures)
            self.lost = lost_context(self.device)


class MemoryLimit(Stress):
    name = "memory limit"
    scope = "session"
    text = (
        "a new session whose gpu_mem_limit is near what a run alone needs, shared by threads; "
        "runs that fail for it do not count"
    )
    repeatable = False

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._limits: tuple[int, ...] | None = None
        self._next = 0
        self._failures = Failures()

    def unavailable(self) -> str | None:
        return ON_CUDA if not self.subject.cuda else NEEDS_SESSIONS if self.subject.sessions is None else None

    def step(self) -> Iterator[Observation]:
        if self._limits is None:
            need = least_that_fits(self._fits)
            shares = _SHARES if len(self.subject.feeds) == 1 else _SHARES_OF_SEVERAL
            self._limits = tuple(round(need * share) for share in shares) if need is not None else ()
        if not self._limits:
            self.note = f"not even one run alone fits into {_SIZES_MB[-1] >> 10} GB"
            yield from ((index, None) for index in range(len(self.subject.feeds)))
            return
        limit = self._limits[self._next % len(self._limits)]
        self._next += 1
        runner = self._runner(limit, self._failures)
        for _ in range(_ROUNDS):
            if runner is None:
                yield from ((index, None) for index in range(len(self.subject.feeds)))
            else:
                yield from together(self.subject, runner, self._failures)
        self.note = f"limits {', '.join(map(str, self._limits))} MB"
        if self._failures:
            self.note += f"; {self._failures}"
            self.lost = lost_context(self.device)

    def _runner(self, limit_mb: int, failures: Failures) -> Runner | None:
        sessions = self.subject.sessions
        assert sessions is not None
        limited = sessions.configuration.with_provider_options(**{LIMIT: str(limit_mb << 20)})
        limited = replace(limited, attributes={**limited.attributes, "log_severity_level": _SILENT})
        return tolerant_runner(self.subject, lambda: limited.open(sessions.source), failures)

    def _fits(self, limit_mb: int) -> bool:
        """Return whether one run at a time, of every set of inputs, fits into a limit."""
        runner = self._runner(limit_mb, Failures())
        if runner is None:
            return False
        try:
            for feed in self.subject.feeds:
                observe(runner, feed)
        except Exception:
            return False
        return True


class Poisoned(Stress):
    name = "poisoned memory"
    scope = "session"
    text = "a new session in memory that was filled with other bytes before and given back"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._next = 0

    def unavailable(self) -> str | None:
        if self.subject.cuda:
            return NO_CUPY if not device.available() else None
        return transferable(self.subject)

    def step(self) -> Iterator[Observation]:
        # Bytes of NaN, of large and of small numbers. glibc fills what it hands out with the complement.
        byte = (0xFF, 0x7B, 0x3C, 0x01)[self._next % 4]
        self._next += 1
        if not self.subject.cuda:
            yield from run_in_process(self.subject, {"MALLOC_PERTURB_": str(byte)})
            return
        device.poison(self.device, byte)
        yield from self.in_order(self.subject.maker.original())


def least_that_fits(fits: Callable[[int], bool], sizes_mb: Sequence[int] = _SIZES_MB) -> int | None:
    """Return the least of some limits that is enough, None where none is.

    Args:
        fits: whether a limit in MB is enough; what is enough stays so with more.
        sizes_mb: limits to try, ascending, from one in the middle up or down.
    """
    start = next((index for index, size in enumerate(sizes_mb) if size >= _FIRST_TRIED_MB), len(sizes_mb))
    below = [*takewhile(fits, reversed(sizes_mb[: start + 1]))]
    if below:
        return below[-1]
    return next((size for size in sizes_mb[start + 1 :] if fits(size)), None)
