"""Golden digests in a lockfile: writing what a session gives, and checking it against what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ortlock.report.model import Status
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "status": str(self.status)}


def write_golden(session: ReproducibleSession, feeds: Sequence[Feed], outputs: Sequence[str]) -> int:
    """Write the digests of outputs to the session's lockfile; return how many.

    Raises:
        ValueError: the session has no lockfile.
        LockfileError: it cannot be written.
    """
    lock = session._ortlock.lock
    if lock is None:
        raise ValueError("Golden digests are kept in a lockfile; give the session one.")
    session.save_lockfile()
    golden = dict(golden_of(session, feed, found) for feed, found in zip(feeds, outputs, strict=True))
    lock.add_golden(golden)
    return len(golden)


def check_golden(session: ReproducibleSession, feeds: Sequence[Feed], outputs: Sequence[str]) -> list[GoldenResult]:
    """Compare the digests of outputs with those in the session's lockfile.

    Raises:
        ValueError: the session has no lockfile.
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
        elif golden.outputs == actual:
            results.append(GoldenResult(key, golden.outputs, actual, Status.HOLDS, "the golden bits"))
        elif golden.threads != threads:
            text = f"other bits, but with {_words(threads)}; the golden ones came with {_words(golden.threads)}"
            results.append(GoldenResult(key, golden.outputs, actual, Status.UNKNOWN, text))
        else:
            results.append(
                GoldenResult(key, golden.outputs, actual, Status.VIOLATED, "other bits than the golden ones")
            )
    return results


def _words(threads: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(threads.items())) or "the default number of threads"
