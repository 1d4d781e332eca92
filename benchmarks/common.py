"""What the benchmarks share: environment stamp, results files, tables, a load for the GPU."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

_LOAD = """
import sys
try:
    import cupy as xp
    sync = xp.cuda.Device().synchronize
except ImportError:
    import torch as xp
    sync = xp.cuda.synchronize
    a = xp.randn(4096, 4096, device="cuda")
else:
    a = xp.random.standard_normal((4096, 4096), dtype=xp.float32)
print("ready", flush=True)
while True:
    for _ in range(20):
        b = a @ a
    sync()
"""


def stamp(*, cuda: bool) -> dict[str, Any]:
    """Return when and on what a result was measured."""
    from ortlock import native
    from ortlock.environment import environment

    surroundings = environment(cuda=cuda, cudnn_path=native.state().cudnn_path if cuda else None)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {"measured": when, "environment": surroundings.to_dict(), "command": _command()}


def _command() -> str:
    """Return the command line with file names only: folders say nothing about the result."""
    words = [Path(word).name if "/" in word else word for word in sys.argv]
    return " ".join(words)


def write(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, indented so that differences can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Replaced in one step: whoever is stopped while writing leaves the previous file whole.
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    fresh.replace(path)
    note(f"wrote {path}")


# How the input types of a session are called in NumPy.
_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}


def feed_for(session: Any, shape: Sequence[int]) -> dict[str, Any]:
    """Return seeded values of ``shape`` for the one input of a session."""
    from ortlock import models

    entry = session.get_inputs()[0]
    return {entry.name: models.seeded_input(shape, _TYPES[entry.type])}


def require_provider(session: Any, name: str) -> None:
    """Check that a session runs on the provider ``name``.

    Raises:
        SystemExit: stock goes on with the CPU where CUDA cannot be used; its times would be taken for those of the GPU.
    """
    if session.get_providers()[0] != name:
        raise SystemExit(f"{name} cannot be used here; the session has {session.get_providers()}")


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table to standard output."""
    shown = Table(title=title)
    for name in header:
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*(str(value) for value in row))
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


_STARTED = time.monotonic()


def note(text: str) -> None:
    """Tell the progress on standard error."""
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def busy_gpu() -> Iterator[None]:
    """Keep the GPU busy with matrix products of another process inside the block.

    Raises:
        RuntimeError: neither CuPy nor PyTorch can be used for it.
    """
    with subprocess.Popen([sys.executable, "-c", _LOAD], stdout=subprocess.PIPE, text=True) as load:
        try:
            if load.stdout is None or load.stdout.readline().strip() != "ready":
                raise RuntimeError("the GPU load did not start: it needs CuPy or PyTorch with CUDA")
            yield
        finally:
            load.kill()
