"""Runs in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortlock.errors import OrtlockError

if TYPE_CHECKING:
    from ortlock.verify.subject import Subject

_RUNS = 2


class WorkerError(OrtlockError):
    """A process of its own ended with an error; the text is its last line."""


def transferable(subject: Subject) -> str | None:
    """Return why a subject cannot be run in another process, None if it can."""
    if subject.sessions is None:
        return "needs sessions of ONNX Runtime"
    for feed in subject.feeds:
        for name, value in feed.items():
            if not isinstance(value, np.ndarray) or value.dtype == object:
                return f"input {name} is no array of numbers, which alone can be handed to another process"
    return None


def run_in_process(subject: Subject, variables: Mapping[str, str]) -> Iterator[tuple[int, str | None]]:
    """Run all inputs twice in a new process; give the number of the inputs and the digest of each run.

    Args:
        subject: what is run.
        variables: environment variables to set for it.

    Raises:
        WorkerError: the process failed.
    """
    sessions = subject.sessions
    assert sessions is not None
    with tempfile.TemporaryDirectory() as folder:
        path = sessions.source.path
        if path is None:
            path = str(Path(folder) / "model.onnx")
            Path(path).write_bytes(sessions.source.read())
        files = []
        for number, feed in enumerate(subject.feeds):
            files.append(str(Path(folder) / f"inputs{number}.npz"))
            # Keyed by position: an input's name may be no file name.
            arrays: dict[str, Any] = {f"i{position}": value for position, value in enumerate(feed.values())}
            np.savez(files[-1], **arrays)
        task = {
            "model": os.fspath(Path(path).absolute()),
            "configuration": sessions.configuration.to_dict(),
            "inputs": [{"file": file, "names": list(feed)} for file, feed in zip(files, subject.feeds, strict=True)],
            "runs": _RUNS,
        }
        # The same packages as here, however they were found.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
        done = subprocess.run(
            [sys.executable, "-m", "ortlock.verify.worker"],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    sessions.source.check()
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise WorkerError(f"a new process failed ({done.returncode}): {lines[-1] if lines else 'it said nothing'}")
    for index, found in json.loads(done.stdout.splitlines()[-1]):
        yield int(index), str(found)
