"""Kinds of stress on memory: short, limited, and full of other bytes."""

from __future__ import annotations

from collections.abc import Iterator

from ortlock.localise import SessionMaker
from ortlock.verify import device
from ortlock.verify.processes import run_in_process, transferable
from ortlock.verify.stress import NEEDS_SESSIONS, NO_CUPY, ON_CUDA, Observation, Stress, tolerant_runs
from ortlock.verify.subject import Subject

_LEFT_FREE = 1 << 29
_LIMITS_MB = (64, 48, 40, 32)


class LittleMemory(Stress):
    name = "little free memory"
    scope = "session"
    text = "a new session while other memory of the GPU is occupied but for 512 MB"

    def unavailable(self) -> str | None:
        return ON_CUDA if not self.subject.cuda else NO_CUPY if not device.available() else None

    def step(self) -> Iterator[Observation]:
        with device.occupied(self.device, _LEFT_FREE):
            yield from list(tolerant_runs(self.subject, self.subject.maker.original))


class MemoryLimit(Stress):
    name = "memory limit"
    scope = "session"
    text = "a new session with a gpu_mem_limit of 64 to 32 MB, shared by threads; runs that fail for it do not count"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._next = 0

    def unavailable(self) -> str | None:
        return ON_CUDA if not self.subject.cuda else NEEDS_SESSIONS if self.subject.sessions is None else None

    def step(self) -> Iterator[Observation]:
        sessions = self.subject.sessions
        assert sessions is not None
        limit = _LIMITS_MB[self._next % len(_LIMITS_MB)] << 20
        self._next += 1
        limited = sessions.configuration.with_provider_options(gpu_mem_limit=str(limit))
        maker = SessionMaker(limited, sessions.source)
        yield from tolerant_runs(self.subject, maker.original, threads=True)


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
