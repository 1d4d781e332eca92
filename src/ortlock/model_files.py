"""The files that a session was made from: whether they are still what they were."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ortlock.errors import ModelFileError
from ortlock.operators.model_file import external_tensors
from ortlock.operators.weightless import load_slim

Stamp = tuple[int, int, int]
"""Bytes of a file, and when it was last written and last changed in any way, in ns."""

_LOCATION = b"location"
"""What a model names a file of external data by."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's file and those of its external data, as they were when they were looked at."""

    path: str
    """Of the model, absolute: the working directory may be another one later."""
    stamps: Mapping[str, Stamp | None]
    """By path; None for a file that is not there."""

    @classmethod
    def of(cls, path: str) -> ModelFiles:
        """Look at the files now. A model that cannot be read has no external data: ONNX Runtime says why."""
        whole = Path(path).absolute()
        files = [whole, *(whole.parent / location for location in sorted(_external(whole)))]
        return cls(str(whole), {str(file): _stamp(file) for file in files})

    def changed(self) -> str | None:
        """Return the first file that is not as it was, None where all are."""
        return next((path for path, stamp in self.stamps.items() if _stamp(Path(path)) != stamp), None)

    def check(self) -> None:
        """Refuse files that are not as they were.

        Raises:
            ModelFileError: one of them was replaced, written, or removed.
        """
        if (path := self.changed()) is not None:
            was = "changed" if Path(path).exists() else "removed"
            raise ModelFileError(
                path,
                f"It was {was} after the session was made, which still runs what it held then, and another session "
                "cannot be made like it.",
                "Make a new session.",
            )


@contextmanager
def unchanged(files: ModelFiles | None) -> Iterator[None]:
    """Refuse files that are not as they were, before the block or after it; None: there are none to look at.

    Raises:
        ModelFileError: as ``ModelFiles.check``.
    """
    if files is not None:
        files.check()
    yield
    # They may have changed while they were read.
    if files is not None:
        files.check()


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except (OSError, ValueError):  # the latter of a path that cannot be one
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _external(path: Path) -> set[str]:
    """Return the locations of a model's external data. Most models have none, and a glance tells."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            if mapped.find(_LOCATION) < 0:
                return set()
    except (OSError, ValueError):
        return set()
    model = load_slim(str(path), None)
    if model is None:
        return set()
    entries = (entry for tensor in external_tensors(model) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}
