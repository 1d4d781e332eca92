"""Batches and their rows: which axis of a tensor the batch is, and what of it belongs to one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortlock.verify.subject import Feed


class NoBatchError(ValueError):
    """A model or its inputs have no batch that can be varied; the text says why."""


@dataclass(frozen=True, slots=True)
class RowAxis:
    """Where the rows of a tensor are."""

    axis: int
    width: int
    """Elements along the axis for each row."""

    def row(self, values: Any, index: int) -> Any:
        """Return what belongs to one row."""
        return np.take(values, range(index * self.width, (index + 1) * self.width), self.axis)


def row_axis(whole: Sequence[int], alone: Sequence[int], rows: int) -> RowAxis | None:
    """Return where the rows are, by the shapes that a tensor has in a batch and for one row; None where nobody knows.

    Rows that were merged with another axis are taken to follow each other, the batch being the slower index.
    """
    if len(whole) != len(alone):
        return None
    changed = [axis for axis, (a, b) in enumerate(zip(whole, alone, strict=True)) if a != b]
    if len(changed) != 1:
        return None
    axis = changed[0]
    return RowAxis(axis, alone[axis]) if whole[axis] == rows * alone[axis] else None


def batched_inputs(feed: Feed, declared: Mapping[str, Sequence[Any]]) -> tuple[list[str], int]:
    """Return the inputs whose first axis is the batch, and how many rows there are.

    Args:
        feed: the inputs.
        declared: the shapes that the model declares.

    Raises:
        NoBatchError: no first axis can vary, or they disagree.
    """
    names = []
    for name, value in feed.items():
        shape = declared.get(name)
        if isinstance(value, np.ndarray) and value.ndim and shape and not isinstance(shape[0], int):
            names.append(name)
    if not names:
        raise NoBatchError("no input has a first axis of variable size, so the model's batch cannot be varied.")
    sizes = {feed[name].shape[0] for name in names}
    if len(sizes) != 1 or 0 in sizes:
        told = ", ".join(f"{name}: {feed[name].shape[0]}" for name in names)
        raise NoBatchError(f"the first axes of the inputs are no common batch ({told}).")
    return names, sizes.pop()


def enlarged(feed: Feed, names: Sequence[str], rows: int, wanted: int) -> dict[str, Any]:
    """Return inputs of at least ``wanted`` rows: the first rows, and copies whose values are shifted along."""
    if rows >= wanted:
        return dict(feed)
    result = dict(feed)
    for name in names:
        values = feed[name]
        # Slices, as an element of an array of objects is no array.
        parts = [values[index % rows : index % rows + 1] for index in range(wanted)]
        result[name] = np.concatenate([np.roll(part, 7 * (index // rows)) for index, part in enumerate(parts)])
    return result


def chosen_rows(feed: Feed, names: Sequence[str], order: Sequence[int]) -> dict[str, Any]:
    """Return inputs that hold only these rows, in this order."""
    return {name: np.ascontiguousarray(value[list(order)]) if name in names else value for name, value in feed.items()}
