"""Golden digests in a lockfile: writing what a session gives, and checking it against what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlock.lockfile import read
from ortlock.report.model import Status
from ortlock.verify.golden_outputs import (
    GoldenOutputs,
    OutputDifference,
    check_verified,
    differences,
    run_for_arrays,
    write_outputs,
)
from ortlock.verify.sessions import golden_of, threads_of
from ortlock.verify.subject import Feed

if TYPE_CHECKING:
    from ortlock.session import ReproducibleSession


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """One set of inputs against the lockfile."""

    inputs: str
    """Digest of the inputs."""
    expected: str | None
    """Digest of the outputs that the lockfile holds; None: none for these inputs in this environment."""
    actual: str
    status: Status
    text: str
    differences: tuple[OutputDifference, ...] = ()
    """Per output, where digests differ and the golden outputs are at hand."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "status": str(self.status)}


def write_golden(
    session: ReproducibleSession, feeds: Sequence[Feed], outputs: Sequence[str], file: Path | None = None
) -> int:
    """Write the digests of outputs to the session's lockfile; return how many.

    Args:
        session: what gave the outputs.
        feeds: its inputs.
        outputs: digests of the outputs for them.
        file: where the outputs themselves go, of one more run; None: nowhere.

    Raises:
        ValueError: the session has no lockfile.
        LockfileError: it cannot be written.
        GoldenOutputsError: the file cannot be written, or outputs cannot be kept in it.
    """
    lock = session._ortlock.lock
    if lock is None:
        raise ValueError("Golden digests are kept in a lockfile; give the session one.")
    session.save_lockfile()
    if file is not None:
        # Before the lockfile, which then names nothing that is not there.
        _write_arrays(session, lock.path, feeds, outputs, file)
    golden = dict(golden_of(session, feed, found) for feed, found in zip(feeds, outputs, strict=True))
    lock.add_golden(golden)
    return len(golden)


def check_golden(
    session: ReproducibleSession, feeds: Sequence[Feed], outputs: Sequence[str], arrays: GoldenOutputs | None = None
) -> list[GoldenResult]:
    """Compare the digests of outputs with those in the session's lockfile.

    Args:
        session: what gave the outputs.
        feeds: its inputs.
        outputs: digests of the outputs for them.
        arrays: the golden outputs themselves, to tell how far those of one more run are from them.

    Raises:
        ValueError: the session has no lockfile.
        GoldenOutputsError: ``arrays`` are not those of the lockfile.
    """
    lock = session._ortlock.lock
    if lock is None:
        raise ValueError("Golden digests are kept in a lockfile; give the session one.")
    held, threads = lock.golden(), threads_of(session)
    results = []
    for feed, actual in zip(feeds, outputs, strict=True):
        key, _ = golden_of(session, feed, actual)
        golden = held.get(key)
        if golden is None:
            text = f"{lock.path} holds no golden digest for these inputs in this environment; write it with --golden."
            results.append(GoldenResult(key, None, actual, Status.UNKNOWN, text))
            continue
        found = _distances(session, feed, golden.outputs, arrays) if arrays is not None else ()
        if golden.outputs == actual:
            results.append(GoldenResult(key, golden.outputs, actual, Status.HOLDS, "the golden bits"))
        elif golden.threads != threads:
            text = f"other bits, but with {_words(threads)}; the golden ones came with {_words(golden.threads)}"
            results.append(GoldenResult(key, golden.outputs, actual, Status.UNKNOWN, text, found))
        else:
            text = "other bits than the golden ones"
            results.append(GoldenResult(key, golden.outputs, actual, Status.VIOLATED, text, found))
    return results


def _distances(
    session: ReproducibleSession, feed: Feed, golden: str, arrays: GoldenOutputs
) -> tuple[OutputDifference, ...]:
    now = run_for_arrays(session, feed, arrays.path)
    return differences(arrays.of(golden, now), now)


def _write_arrays(
    session: ReproducibleSession, lockfile: Path, feeds: Sequence[Feed], outputs: Sequence[str], file: Path
) -> None:
    new = {}
    for feed, verified in zip(feeds, outputs, strict=True):
        new[verified] = run_for_arrays(session, feed, file)
        check_verified(file, new[verified], verified)
    held = read(lockfile)
    sections = held.environments.values() if held is not None else ()
    write_outputs(file, new, {golden.outputs for section in sections for golden in section.golden.values()})


def _words(threads: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(threads.items())) or "the default number of threads"
