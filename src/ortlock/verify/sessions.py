"""``session.verify()`` and ``session.localise()``: what is measured on sessions made like a given one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ortlock.arguments import LARGEST_THREADS, check_count, check_feed, check_feeds, check_names
from ortlock.configuration import Configuration, Source
from ortlock.localise import Localised, SessionMaker, localise
from ortlock.lockfile import Golden
from ortlock.verify.batch import BatchClaim, batch_invariance
from ortlock.verify.result import Evidence
from ortlock.verify.running import Budget, Progress, verify
from ortlock.verify.subject import Feed, Subject, inputs_digest

if TYPE_CHECKING:
    from ortlock.session import ReproducibleSession

_THREADS = ("intra_op_num_threads", "inter_op_num_threads")


class HowToVerify(TypedDict, total=False):
    """Arguments of ``session.verify()``."""

    runs: int | None
    seconds: float | None
    threads: int
    stresses: Sequence[str] | None
    early_stop: bool
    progress: Progress | None


def maker_of(session: ReproducibleSession) -> SessionMaker:
    """Return how sessions like a given one are made.

    Raises:
        ModelFileError: the session's model has become another one since it was made.
    """
    files = session._ortlock.files
    lock = session._ortlock.lock
    if lock is not None and lock.writes:
        session.save_lockfile()
    source = Source(data=session._ortlock.source[1]) if files is None else Source(files.path, files=files)
    source.check()
    return SessionMaker(Configuration.of(session), source)


def verify_session(
    session: ReproducibleSession,
    inputs: Feed | Sequence[Feed],
    *,
    runs: int | None = None,
    seconds: float | None = None,
    threads: int = 4,
    stresses: Sequence[str] | None = None,
    early_stop: bool = True,
    progress: Progress | None = None,
) -> Evidence:
    """Verify sessions like ``session``, and keep what was found for its report."""
    feeds, budget = check_feeds(inputs), Budget(runs, seconds)
    check_count("threads", threads, LARGEST_THREADS)
    stresses = check_names("stresses", stresses)
    lock = session._ortlock.lock
    if lock is not None and lock.writes:
        # New sessions replay the file, so what these inputs need must be in it.
        for feed in feeds:
            session.run(None, feed)
    maker = maker_of(session)
    found = verify(
        Subject(maker, feeds, threads),
        budget=budget,
        stresses=stresses,
        own=session,
        data=maker.source.read(),
        early_stop=early_stop,
        progress=progress,
    )
    session._ortlock.evidence.append(found)
    return found


def batch_of_session(
    session: ReproducibleSession, inputs: Feed, progress: Callable[[int, int], None] | None
) -> BatchClaim:
    """Measure batch invariance of sessions like ``session``, and keep what was found for its report."""
    check_feed(inputs)
    maker = maker_of(session)
    found = batch_invariance(maker, maker.source.read(), inputs, progress=progress)
    session._ortlock.batch = found
    return found


def localise_session(session: ReproducibleSession, inputs: Feed, *, runs: int, sessions: int) -> Localised:
    """Find the first node that differs from run to run in sessions like ``session``."""
    check_feed(inputs)
    maker = maker_of(session)
    return localise(maker.source.read(), inputs, maker, runs=runs, sessions=sessions)


def threads_of(session: ReproducibleSession) -> dict[str, str]:
    """Return the settings for the numbers of CPU threads that are in force."""
    return {state.key: state.value for state in session._ortlock.settings if state.key in _THREADS and state.value}


def golden_of(session: ReproducibleSession, feed: Feed, outputs: str) -> tuple[str, Golden]:
    """Return what a lockfile holds of a set of inputs and the digest of its outputs."""
    return inputs_digest(feed), Golden(
        {name: _described(value) for name, value in sorted(feed.items())}, outputs, threads_of(session)
    )


def _described(value: Any) -> str:
    shape = value.shape() if callable(getattr(value, "shape", None)) else getattr(value, "shape", ())
    kind = value.data_type() if callable(getattr(value, "data_type", None)) else getattr(value, "dtype", type(value))
    return f"{kind}[{','.join(map(str, shape))}]"
