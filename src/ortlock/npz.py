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
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("one array without a name")
        with file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise NpzError((error.strerror if isinstance(error, OSError) else None) or str(error)) from error
