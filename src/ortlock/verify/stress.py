"""What every kind of stress has, and ways to run that several of them use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from onnxruntime import InferenceSession

from ortlock.errors import DeviceLostError, NotReproducibleError
from ortlock.lanes.streams import all_streams
from ortlock.localise import Runner
from ortlock.verify.failures import Failures
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
    lost = ""
    """Why no run is possible any more, where the device's context was lost."""
    repeatable = True
    """A difference can come again in runs one after another, without the stress."""

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


def together(subject: Subject, runner: Runner, failures: Failures | None = None) -> list[Observation]:
    """Run all inputs from several threads at once.

    Args:
        subject: what is run: inputs and number of threads.
        runner: runs them.
        failures: what runs raise is added here, and they count as failed.

    Raises:
        Exception: what a run raised, without ``failures``.
    """
    found: list[Observation] = []
    errors: list[Exception] = []
    start = threading.Barrier(subject.threads)

    def work(first: int) -> None:
        try:
            start.wait()
        except threading.BrokenBarrierError:
            return
        for number in range(len(subject.feeds)):
            index = (first + number) % len(subject.feeds)
            try:
                found.append((index, observe(runner, subject.feeds[index])))
            except Exception as error:
                if failures is None:
                    errors.append(error)
                else:
                    failures.add(error)
                found.append((index, None))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(subject.threads)]
    try:
        for thread in threads:
            thread.start()
    except BaseException:
        start.abort()  # those that wait for one that does not come
        raise
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def tolerant_runs(subject: Subject, make: Callable[[], Runner], failures: Failures) -> Iterator[Observation]:
    """Run where memory may be too short: what fails is counted, and only what returns is compared.

    Args:
        subject: what is run.
        make: makes what runs it.
        failures: what was raised is added here.

    Raises:
        NotReproducibleError: the session is refused, which has nothing to do with memory.
    """
    runner = tolerant_runner(subject, make, failures)
    for index, feed in enumerate(subject.feeds):
        try:
            yield index, observe(runner, feed) if runner is not None else None
        except Exception as error:
            failures.add(error)
            yield index, None


def tolerant_runner(subject: Subject, make: Callable[[], Runner], failures: Failures) -> Runner | None:
    """Return a new runner that fails where memory is too short; None where it cannot be made on the provider.

    ONNX Runtime would answer from the CPU instead: those bits say nothing of the provider's.

    Raises:
        NotReproducibleError: the session is refused.
    """
    try:
        runner = make()
    except NotReproducibleError:
        raise
    except Exception as error:
        failures.add(error)
        return None
    if isinstance(runner, InferenceSession):
        runner.disable_fallback()
        if (first := runner.get_providers()[0]) != subject.maker.provider:
            failures.add(RuntimeError(f"ONNX Runtime made the session on {first} instead."))
            return None
    return runner


def lost_context(device: int) -> str:
    """Return why a CUDA device cannot be used any more in this process, empty where it can or there is none."""
    try:
        all_streams(device).drain()
    except DeviceLostError as error:
        return str(error)
    return ""
