"""What every kind of stress has, and ways to run that several of them use."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ortlock.errors import NotReproducibleError
from ortlock.localise import Runner
from ortlock.verify.subject import Subject, observe

Observation = tuple[int, str | None]
"""Number of the inputs, and the digest of the outputs; None for a run that failed."""

NO_CUPY = "needs CuPy (ortlock[cuda12] or [cuda13]) and a GPU"
NEEDS_SESSIONS = "needs sessions of ONNX Runtime"
ON_CUDA = "needs the CUDA provider"


class Stress:
    """One kind of stress on a subject."""

    name = ""
    scope = "run"
    text = ""
    note = ""
    """What became known while it ran."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def unavailable(self) -> str | None:
        """Return why it cannot be done here, None if it can."""
        return None

    def step(self) -> Iterator[Observation]:
        """Run every set of inputs once or more."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up what is held."""

    @property
    def device(self) -> int:
        sessions = self.subject.sessions
        given = sessions.configuration.providers[0][1] if sessions is not None else {}
        return int(given.get("device_id", "0"))

    def in_order(self, runner: Runner, order: Sequence[int] | None = None) -> Iterator[Observation]:
        for index in order if order is not None else range(len(self.subject.feeds)):
            yield index, observe(runner, self.subject.feeds[index])


class OneSession(Stress):
    """Keeps one session."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._runner: Runner | None = None

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            self._runner = self.subject.maker.original()
        return self._runner

    def close(self) -> None:
        self._runner = None


def together(subject: Subject, runner: Runner, *, tolerant: bool = False) -> list[Observation]:
    """Run all inputs from several threads at once.

    Raises:
        Exception: what a run raised, unless ``tolerant``: it then counts as failed.
    """
    found: list[Observation] = []
    errors: list[BaseException] = []
    start = threading.Barrier(subject.threads)

    def work(first: int) -> None:
        start.wait()
        for number in range(len(subject.feeds)):
            index = (first + number) % len(subject.feeds)
            try:
                found.append((index, observe(runner, subject.feeds[index])))
            except Exception as error:
                errors.append(error)
                found.append((index, None))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(subject.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors and not tolerant:
        raise errors[0]
    return found


def tolerant_runs(subject: Subject, make: Any, *, threads: bool = False) -> Iterator[Observation]:
    """Run where memory may be too short: what fails is counted, and only what returns is compared."""
    try:
        runner = make()
    except NotReproducibleError:
        raise
    except Exception:
        yield from ((index, None) for index in range(len(subject.feeds)))
        return
    if threads:
        yield from together(subject, runner, tolerant=True)
        return
    for index, feed in enumerate(subject.feeds):
        try:
            yield index, observe(runner, feed)
        except Exception:
            yield index, None
