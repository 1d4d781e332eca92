"""A pytest plugin: the fixture ``assert_reproducible`` and the marker ``reproducible``, which says how hard it looks.

Nothing of ONNX Runtime is imported until a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ortlock.session import ReproducibleSession
    from ortlock.verify import Evidence
    from ortlock.verify.golden import GoldenResult

_OPTIONS = frozenset({"runs", "seconds", "threads", "stresses", "mode", "providers", "lockfile", "golden_outputs"})

_CALLED = pytest.StashKey[bool]()
"""A test has called its fixture."""

MARKER = (
    "reproducible(runs, seconds, threads, stresses, mode, providers, lockfile, golden_outputs): "
    "how assert_reproducible looks here"
)


def assert_reproducible(
    model_or_session: Any,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    lockfile: str | os.PathLike[str] | None = None,
    *,
    mode: str | None = None,
    providers: Sequence[Any] | None = None,
    runs: int | None = None,
    seconds: float | None = None,
    threads: int = 4,
    stresses: Sequence[str] | None = None,
    golden_outputs: str | os.PathLike[str] | None = None,
) -> Evidence:
    """Fail unless a model gives the same bits under stress; the message names the node where they differ.

    With a lockfile its choices are replayed. Where it holds golden digests, there must be some for these inputs in this
    environment, and the outputs must be those; where it holds none at all, it only pins choices.

    Args:
        model_or_session: a :class:`ortlock.ReproducibleSession`, or the path or bytes of a model.
        inputs: one set of inputs by name, or several.
        lockfile: of a model; a session has its own already.
        mode: of a model.
        providers: of a model; None: the CPU provider, and CUDA before it where it is offered.
        runs: under each stress; 20 unless given.
        seconds: for all stresses together.
        threads: that share a session.
        stresses: names of kinds of stress; None: all.
        golden_outputs: the .npz file of the outputs beside the lockfile's digests; where outputs are not the golden
            ones, the message says how far each is from them.

    Returns:
        what was measured.

    Raises:
        AssertionError: outputs differed, from each other or from the golden ones, nothing could be compared, or the
            lockfile lacks golden digests for these inputs that it should hold.
        ValueError: arguments that only a model takes were given with a session, ``golden_outputs`` without a
            lockfile, or an argument is out of range.
        TypeError: ``inputs`` are no mappings from input names to values.
        GoldenOutputsError: ``golden_outputs`` cannot be read, or are not those of the lockfile.
    """
    __tracebackhide__ = True
    from ortlock.arguments import check_feeds, check_path
    from ortlock.report import Status
    from ortlock.session import ReproducibleSession
    from ortlock.verify.golden import check_golden
    from ortlock.verify.golden_outputs import GoldenOutputs

    if isinstance(model_or_session, ReproducibleSession):
        if lockfile is not None or mode is not None or providers is not None:
            raise ValueError("lockfile, mode and providers are the session's own; leave them out.")
        session = model_or_session
    else:
        session = ReproducibleSession(
            model_or_session, providers=list(providers or _providers()), mode=mode, lockfile=lockfile
        )
    lock = session._ortlock.lock
    if golden_outputs is not None and lock is None:
        raise ValueError("golden_outputs goes with the golden digests of a lockfile; give lockfile too.")
    # Before all runs: a file that cannot be read is told at once.
    arrays = GoldenOutputs(check_path("golden_outputs", golden_outputs)) if golden_outputs is not None else None
    feeds = check_feeds(inputs)
    found = session.verify(feeds, runs=runs, seconds=seconds, threads=threads, stresses=stresses)
    if found.status is not Status.HOLDS:
        raise AssertionError(f"not shown to be reproducible\n{found}")
    if lock is not None and (arrays is not None or lock.holds_golden):
        failed = [one for one in check_golden(session, feeds, found.outputs, arrays) if one.status is not Status.HOLDS]
        if failed:
            differ = any(one.expected is not None for one in failed)
            told = f"other bits than {lock.path} holds" if differ else f"not compared with golden bits of {lock.path}"
            raise AssertionError("\n".join((told, *(line for one in failed for line in _lines(one, session)))))
    return found


def _lines(wrong: GoldenResult, session: ReproducibleSession) -> Iterator[str]:
    """Yield what is told of inputs whose outputs are not known to be the golden ones."""
    from ortlock.compare.text import MEASURES, cells
    from ortlock.report import Status

    if wrong.expected is None:
        lock, model = session._ortlock.lock, session._ortlock.source[0] or "MODEL"
        assert lock is not None
        yield f"inputs {wrong.inputs}: it holds no golden digest for them in this environment, got {wrong.actual}"
        yield f"  write it: ortlock verify {model} --inputs FILE.npz --lock {lock.path} --golden"
        return
    yield f"inputs {wrong.inputs}: expected {wrong.expected}, got {wrong.actual}"
    if wrong.status is Status.UNKNOWN:
        yield f"  {wrong.text}"
    for one in wrong.differences:
        measured = zip(MEASURES, cells(one.difference), strict=True)
        yield f"  output {one.name}: {', '.join(f'{name} {value}' for name, value in measured if value)}"


def _providers() -> list[str]:
    import onnxruntime

    offered = onnxruntime.get_available_providers()
    return [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in offered]


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that passed without having checked what its own marker ``reproducible`` promises.

    One on a class or module is for those of its tests that call the fixture.
    """
    marked = any(mark.name == "reproducible" for mark in item.own_markers)
    if marked and not item.stash.get(_CALLED, False):
        pytest.fail(
            "marked reproducible, and nothing was checked: the test never called its fixture assert_reproducible. "
            "Take the fixture as an argument and call it (one that is imported does not see the marker), or remove "
            "the marker.",
            pytrace=False,
        )


@pytest.fixture(name="assert_reproducible")
def _fixture(request: pytest.FixtureRequest) -> Callable[..., Evidence]:
    """Return :func:`assert_reproducible` with the arguments of the test's marker ``reproducible`` filled in."""
    marker = request.node.get_closest_marker("reproducible")
    given: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    if unknown := sorted(set(given) - _OPTIONS) or (marker is not None and marker.args):
        raise pytest.UsageError(
            f"@pytest.mark.reproducible: {unknown} is not understood; it takes {', '.join(sorted(_OPTIONS))} by name."
        )

    def check(model_or_session: Any, inputs: Any, **arguments: Any) -> Evidence:
        __tracebackhide__ = True
        request.node.stash[_CALLED] = True
        return assert_reproducible(model_or_session, inputs, **{**given, **arguments})

    return check
