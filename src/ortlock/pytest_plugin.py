"""A pytest plugin: the fixture ``assert_reproducible`` and the marker ``reproducible``, which says how hard it looks.

Nothing of ONNX Runtime is imported until a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ortlock.verify import Evidence
    from ortlock.verify.golden import GoldenResult

_OPTIONS = frozenset({"runs", "seconds", "threads", "stresses", "mode", "providers", "lockfile", "golden_outputs"})

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

    With a lockfile its choices are replayed, and where it holds golden digests for these inputs the outputs must be
    those.

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
        AssertionError: outputs differed, from each other or from the golden ones, or nothing could be compared.
        ValueError: arguments that only a model takes were given with a session, or ``golden_outputs`` without a
            lockfile.
        GoldenOutputsError: ``golden_outputs`` cannot be read, or are not those of the lockfile.
    """
    __tracebackhide__ = True
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
    arrays = GoldenOutputs(Path(golden_outputs)) if golden_outputs is not None else None
    feeds = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    found = session.verify(feeds, runs=runs, seconds=seconds, threads=threads, stresses=stresses)
    if found.status is not Status.HOLDS:
        raise AssertionError(f"not shown to be reproducible\n{found}")
    if lock is not None:
        checked = check_golden(session, feeds, found.outputs, arrays)
        wrong = [line for one in checked if one.status is Status.VIOLATED for line in _lines(one)]
        if wrong:
            raise AssertionError("\n".join((f"other bits than {lock.path} holds", *wrong)))
    return found


def _lines(wrong: GoldenResult) -> Iterator[str]:
    """Yield what is told of inputs whose outputs are not the golden ones."""
    from ortlock.compare.text import MEASURES, cells

    yield f"inputs {wrong.inputs}: expected {wrong.expected}, got {wrong.actual}"
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
        return assert_reproducible(model_or_session, inputs, **{**given, **arguments})

    return check
