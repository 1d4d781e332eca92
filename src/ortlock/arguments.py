"""Checking what callers pass: errors that name the argument."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

LARGEST_THREADS = 1024
"""Threads that may share a session: each is one of the operating system's."""


def check_count(name: str, value: Any, largest: int | None = None) -> None:
    """Check that an argument is a whole number from 1 on.

    Raises:
        ValueError: it is not, or is above ``largest``.
    """
    counts = isinstance(value, Integral) and not isinstance(value, bool)
    if not counts or value < 1 or (largest is not None and value > largest):
        range_ = "of 1 or more" if largest is None else f"from 1 to {largest}"
        raise ValueError(f"{name}={value!r}: give a whole number {range_}.")


def check_seconds(name: str, value: Any) -> None:
    """Check that an argument is a time that ends.

    Raises:
        ValueError: it is no number, not above 0, or not finite.
    """
    counts = isinstance(value, Real) and not isinstance(value, bool)
    if not counts or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name}={value!r}: give a number of seconds above 0.")


def check_feed(inputs: Any) -> Mapping[str, Any]:
    """Return one set of inputs.

    Raises:
        TypeError: it is no mapping from names to values.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs: {_FEED}, not {_kind(inputs)}.")
    if wrong := [name for name in inputs if not isinstance(name, str)]:
        raise TypeError(f"inputs: {_FEED}; {wrong[0]!r} is no name.")
    return inputs


def check_feeds(inputs: Any) -> list[Mapping[str, Any]]:
    """Return sets of inputs: one, or several in a sequence.

    Raises:
        TypeError: they are no mappings from names to values.
    """
    if isinstance(inputs, Mapping):
        return [check_feed(inputs)]
    # Rows of an array, or characters, would be taken for sets of inputs.
    if not isinstance(inputs, Iterable) or isinstance(inputs, str | bytes) or hasattr(inputs, "dtype"):
        raise TypeError(f"inputs: {_FEED}, or give a list of them, not {_kind(inputs)}.")
    return [check_feed(feed) for feed in inputs]


def check_names(name: str, value: Any) -> Sequence[str] | None:
    """Return an argument that is None or several names.

    Raises:
        TypeError: it is one text, or no sequence at all.
    """
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name}={value!r}: give a list of names{f': {[value]}' if isinstance(value, str) else ''}.")
    return list(value)


def check_path(name: str, value: Any, what: str = "a path") -> Path:
    """Return an argument that is the path of a file.

    Args:
        name: the argument's.
        value: what was given.
        what: what may be given, for the error text.

    Raises:
        TypeError: it is no path.
        ValueError: it is empty, which pathlib takes for the working directory.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(path := os.fspath(value), str):
        raise TypeError(f"{name}: give {what}, not {_kind(value)}.")
    if not path:
        raise ValueError(f"{name}={value!r}: the path is empty; give the path of a file.")
    return Path(path)


def check_outputs(value: Any) -> Sequence[Any]:
    """Return the outputs of a run.

    Raises:
        TypeError: they are no sequence of outputs, such as one array by itself, whose rows would be taken for outputs.
    """
    indexed = hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "dtype")
    if not indexed or isinstance(value, Mapping | str | bytes | bytearray | memoryview):
        one = " Put a single output into a list." if hasattr(value, "dtype") else ""
        raise TypeError(f"outputs: give the list of outputs that a run returned, not {_kind(value)}.{one}")
    sequence: Sequence[Any] = value
    return sequence


_FEED = "a feed is a mapping from input names to values, such as {'x': array}"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
