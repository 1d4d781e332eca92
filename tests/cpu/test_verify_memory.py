"""The stress that limits memory, on a stand-in for a CUDA session whose runs need memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ortlock import ReproducibleSession
from ortlock.configuration import Configuration, Source
from ortlock.localise import SessionMaker
from ortlock.report import Status
from ortlock.settings import CUDA
from ortlock.verify import Budget, Evidence, StressResult, Subject, verify
from ortlock.verify.failures import Failures
from ortlock.verify.memory import least_that_fits
from ortlock.verify.stress import lost_context, tolerant_runner
from tests.cpu.planted import CPU, chain

MB = 1 << 20
FEEDS = [{"x": np.full(4, value, np.float32)} for value in (1, 2)]


@dataclass
class Memory:
    """What the runs of all sessions share."""

    need: int
    """MB of one run."""
    wrong: bool = False
    """A run gives other values while another one has failed beside it."""
    limits: list[int] = field(default_factory=list)
    """MB that sessions were made with, in order."""
    error: str = "Failed to allocate memory for requested buffer of size 1024"


@dataclass(frozen=True)
class LimitedCuda(Configuration):
    """Makes stand-ins whose runs take memory from a limit."""

    memory: Memory = field(default_factory=lambda: Memory(0))

    def open(self, source: Source) -> Any:
        limit = int(self.providers[0][1].get("gpu_mem_limit", 1 << 60)) // MB
        self.memory.limits.append(limit)
        return Limited(self.memory, limit)


class Limited:
    """Doubles its input; fails where the runs at the time need more than the limit."""

    def __init__(self, memory: Memory, limit: int) -> None:
        self._memory, self._limit = memory, limit
        self._lock = threading.Lock()
        self._used = self._failed = 0

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> Sequence[Any]:
        with self._lock:
            if self._used + self._memory.need > self._limit:
                self._failed += 1
                raise RuntimeError(self._memory.error)
            self._used += self._memory.need
        # Runs overlap.
        threading.Event().wait(0.002)
        with self._lock:
            self._used -= self._memory.need
            return [input_feed["x"] * 2 + (self._memory.wrong and self._failed > 0)]

    def get_outputs(self) -> Sequence[Any]:
        return [type("Output", (), {"name": "y"})]

    def get_inputs(self) -> Sequence[Any]:
        raise NotImplementedError


def limited(memory: Memory, threads: int = 8, runs: int = 100, **how: Any) -> tuple[Evidence, StressResult]:
    maker = SessionMaker(LimitedCuda(((CUDA, {}),), "observe", memory=memory), Source(data=b"no model"))
    subject = Subject(maker, FEEDS, threads)
    found = verify(subject, budget=Budget(runs), stresses=("memory limit",), data=b"no model", **how)
    return found, found.stresses[0]


@pytest.mark.parametrize(("need", "least"), [(40, 48), (64, 64), (65, 96), (3, 8), (20_000, 24_576), (50_000, None)])
def test_the_least_limit_is_found(need: int, least: int | None) -> None:
    tried: list[int] = []

    def fits(limit: int) -> bool:
        tried.append(limit)
        return limit >= need

    assert least_that_fits(fits) == least
    assert tried[0] == 64
    assert len(tried) == len(set(tried))


def test_limits_follow_what_a_run_needs() -> None:
    memory = Memory(need=20)
    found, stress = limited(memory)
    # The reference, the trials from 64 MB down, then the stress.
    assert memory.limits[1:6] == [64, 48, 32, 24, 16]
    assert memory.limits[6:8] == [24, 18]
    assert (found.status, stress.distinct) == (Status.HOLDS, 1)
    assert stress.runs > 0
    assert stress.failed > 0
    assert stress.note == f"limits 24, 18, 30, 36 MB; {stress.failed} times memory was too short"


def test_wrong_values_beside_failures_are_found() -> None:
    found, stress = limited(Memory(need=20, wrong=True))
    assert (found.status, stress.status, stress.distinct) == (Status.VIOLATED, Status.VIOLATED, 2)
    assert found.localised is None
    assert found.note.startswith("The node was not looked for: outputs differed under memory limit alone")


def test_no_limit_is_enough() -> None:
    found, stress = limited(Memory(need=1 << 20), runs=2)
    assert found.status is Status.UNKNOWN
    assert (stress.runs, stress.failed) == (0, 2)
    assert stress.note == "every run failed; not even one run alone fits into 48 GB"


def test_a_lost_context_ends_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortlock.verify.memory.lost_context", lambda device: f"CUDA device {device}: error 700.")
    memory = Memory(need=20, error="CUDA failure 700: an illegal memory access was encountered")
    found, stress = limited(memory, runs=100_000, early_stop=False)
    assert (found.status, stress.status) == (Status.UNKNOWN, Status.UNKNOWN)
    assert found.note == "Nothing more was run: CUDA device 0: error 700."
    assert len(memory.limits) == 7
    assert stress.note.endswith(f"{stress.failed} other failures, the first: {memory.error}")
    # What was seen before stays.
    found, _ = limited(Memory(need=20, wrong=True))
    assert found.status is Status.VIOLATED


def test_what_the_cpu_answers_instead_does_not_count() -> None:
    subject = Subject(SessionMaker(Configuration(((CUDA, {}),), "observe"), Source(data=chain(3))), FEEDS)
    failures = Failures()
    on_cpu = ReproducibleSession(chain(3), providers=[CPU], mode="observe")
    assert tolerant_runner(subject, lambda: on_cpu, failures) is None
    assert str(failures) == f"1 other failures, the first: ONNX Runtime made the session on {CPU} instead."
    subject = Subject(SessionMaker(Configuration(((CPU, {}),), "observe"), Source(data=chain(3))), FEEDS)
    assert tolerant_runner(subject, lambda: on_cpu, failures) is on_cpu
    assert on_cpu._enable_fallback is False


def test_without_cuda_no_context_is_lost() -> None:
    assert lost_context(0) == ""
