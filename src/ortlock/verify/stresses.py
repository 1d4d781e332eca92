"""Kinds of stress: each runs the subject in one more difficult way and gives the digests of what came out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ortlock.errors import NotReproducibleError
from ortlock.localise import Runner, SessionMaker
from ortlock.verify import device
from ortlock.verify.lanes import OnLanes
from ortlock.verify.memory import LittleMemory, MemoryLimit, Poisoned
from ortlock.verify.processes import run_in_process, transferable
from ortlock.verify.stress import NEEDS_SESSIONS, NO_CUPY, Observation, OneSession, Stress, together
from ortlock.verify.subject import Subject


class Again(OneSession):
    name = "again"
    text = "the session that gave the reference, again and again"

    def __init__(self, subject: Subject, runner: Runner) -> None:
        super().__init__(subject)
        self._runner = runner

    def step(self) -> Iterator[Observation]:
        yield from self.in_order(self.runner)


class ShuffledShapes(OneSession):
    name = "shuffled shapes"
    text = "the same session, its inputs in random order"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._random = random.Random(0)

    def unavailable(self) -> str | None:
        return None if len(self.subject.feeds) > 1 else "needs inputs of two shapes or more"

    def step(self) -> Iterator[Observation]:
        order = list(range(len(self.subject.feeds)))
        self._random.shuffle(order)
        yield from self.in_order(self.runner, order)


class Threads(OneSession):
    name = "threads"
    text = "several threads on one session at the same time"

    def step(self) -> Iterator[Observation]:
        yield from together(self.subject, self.runner)


class Busy(OneSession):
    name = "busy"
    text = "the same session while the GPU (on the CPU provider: the processor) does other work"

    def unavailable(self) -> str | None:
        return NO_CUPY if self.subject.cuda and not device.available() else None

    def step(self) -> Iterator[Observation]:
        with device.busy(self.device if self.subject.cuda else None):
            yield from list(self.in_order(self.runner))


class FreshSession(Stress):
    name = "fresh session"
    scope = "session"
    text = "a new session each time, two runs in each"

    def step(self) -> Iterator[Observation]:
        runner = self.subject.maker.original()
        for _ in range(2):
            yield from self.in_order(runner)


class FreshProcess(Stress):
    name = "fresh process"
    scope = "process"
    text = "a new process each time, two runs in each"

    def unavailable(self) -> str | None:
        return transferable(self.subject)

    def step(self) -> Iterator[Observation]:
        yield from run_in_process(self.subject, {})


class OtherSetting(Stress):
    """A setting that must not matter, at another value."""

    scope = "setting"

    def __init__(self, subject: Subject, setting: str, value: Any) -> None:
        super().__init__(subject)
        self.setting, self.value = setting, value
        self.name = f"{setting}={value}"
        self.text = f"a new session with {self.name}, which must not matter; three runs"

    def unavailable(self) -> str | None:
        if self.subject.sessions is None:
            return NEEDS_SESSIONS
        try:
            self.maker.original()
        except NotReproducibleError as error:
            return f"refused: {error.reason}"
        except Exception as error:
            return f"ONNX Runtime does not take it: {' '.join(str(error).split())}"
        return None

    @property
    def maker(self) -> SessionMaker:
        """Makes sessions with the setting."""
        sessions = self.subject.sessions
        assert sessions is not None
        made = sessions.configuration
        if isinstance(self.value, str):
            made = made.with_provider_options(**{self.setting: self.value})
        else:
            made = replace(made, attributes={**made.attributes, self.setting: self.value})
        return SessionMaker(made, sessions.source)

    def step(self) -> Iterator[Observation]:
        runner = self.maker.original()
        for _ in range(3):
            yield from self.in_order(runner)


_MUST_NOT_MATTER: tuple[tuple[str, Any, bool], ...] = (
    ("enable_mem_pattern", False, False),
    ("enable_mem_reuse", False, False),
    ("enable_cpu_mem_arena", False, False),
    ("arena_extend_strategy", "kSameAsRequested", True),
    ("fuse_conv_bias", "1", True),
)
"""Setting, other value, and whether it is an option of the CUDA provider."""

_KINDS: tuple[type[Stress], ...] = (
    FreshSession,
    ShuffledShapes,
    Threads,
    OnLanes,
    Busy,
    LittleMemory,
    MemoryLimit,
    Poisoned,
    FreshProcess,
)

NAMES = (Again.name, *(kind.name for kind in _KINDS))
"""What stresses are called; settings that must not matter come as ``settings``."""


def all_stresses(subject: Subject, chosen: Sequence[str] | None, reference: Runner) -> list[Stress]:
    """Return kinds of stress.

    Args:
        subject: what is run.
        chosen: their names; None: all.
        reference: what gave the reference outputs.

    Raises:
        ValueError: there is no such kind.
    """
    known = (*NAMES, "settings")
    for name in chosen or ():
        if name not in known:
            raise ValueError(f"there is no stress {name!r}; there are {', '.join(known)}.")
    found: list[Stress] = [Again(subject, reference)] if chosen is None or Again.name in chosen else []
    found += [kind(subject) for kind in _KINDS if chosen is None or kind.name in chosen]
    if chosen is None or "settings" in chosen:
        found += [
            OtherSetting(subject, setting, value)
            for setting, value, on_cuda in _MUST_NOT_MATTER
            if subject.cuda or not on_cuda
        ]
    return found
