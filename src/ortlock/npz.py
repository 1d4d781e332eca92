"""Reading files of named arrays."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class NpzError(ValueError):
    """A file is no .npz file or cannot be read; the text is the cause alone."""


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name.

    Raises:
        NpzError: it cannot be read, is no such file, or holds objects of Python.
    """
    try:
        with path.open("rb") as opened:
            start = opened.read(6)
        if start == b"\x93NUMPY":
            raise ValueError("one array without a name")
        if start and not start.startswith(b"PK"):
            # NumPy would take it for a pickle, and advise to load it unsafely.
            raise ValueError("this is no .npz file")
        file = np.load(path, allow_pickle=False)
        with file:
            return {name: _array(file, name) for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise NpzError((error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")) from error


def _array(file: Any, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = file[name]
        return array
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise ValueError(f"{name} holds objects of Python, not numbers") from error
        raise
