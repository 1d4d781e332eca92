"""Batch invariance: whether a row's bits depend on the batch it travels in, and on which nodes that lies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ortlock.arguments import check_feed
from ortlock.compare.metrics import Difference, difference
from ortlock.localise import Graph, Maker, Runner
from ortlock.report.model import Status
from ortlock.verify.breaking import BreakingNode, breaking_nodes
from ortlock.verify.rows import NoBatchError, batched_inputs, chosen_rows, enlarged, row_axis
from ortlock.verify.subject import Feed

ROWS = 8
"""Rows that are made of inputs that have fewer."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BatchRuns:
    """Rows in one kind of company, against the same rows alone."""

    text: str
    rows: int
    """Rows that were compared."""
    differing: int
    worst: Difference | None
    """The largest difference of a row; None where none differed."""


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """Whether row i is independent of the batch it travels in."""

    status: Status
    """``holds`` is by evidence, for these inputs and batches."""
    reason: str
    batch: int
    """Rows of the largest batch."""
    runs: tuple[BatchRuns, ...]
    nodes: tuple[BreakingNode, ...]
    """Nodes whose rows depend on the batch although their inputs' rows do not, in topological order."""
    unjudged: tuple[str, ...]
    """Nodes of which that could not be told: their rows, or their inputs', could not be told apart."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "status": str(self.status)}

    def summary(self) -> str:
        """Return it in one line."""
        broken = f" Broken by {', '.join(node.label for node in self.nodes)}." if self.nodes else ""
        return f"batch invariance {self.status}: {self.reason}{broken}"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"batch invariance {self.status}: {self.reason}"
        for one in self.runs:
            worst = f", by up to {one.worst.max_abs:.3g}" if one.worst and one.worst.max_abs is not None else ""
            yield f"  {one.text}: {one.differing} of {one.rows} rows have other bits than alone{worst}"
        for node in self.nodes:
            worst = f" ({node.worst.max_abs:.3g})" if node.worst and node.worst.max_abs is not None else ""
            yield f"  broken by {node.label}{worst}"
        if self.unjudged:
            more = f" and {len(self.unjudged) - 5} more" if len(self.unjudged) > 5 else ""
            yield f"  not judged: {', '.join(self.unjudged[:5])}{more}"


def batch_invariance(maker: Maker, data: bytes, feed: Feed, *, progress: Progress | None = None) -> BatchClaim:
    """Run rows alone, in batches of several sizes and at other positions, and compare each row's bits.

    Args:
        maker: how sessions are made.
        data: the model's bytes.
        feed: one set of inputs; of fewer than 8 rows further ones are made, their values shifted along.
        progress: called with how many nodes have been looked at, and of how many.

    Raises:
        ValueError: the feed lacks inputs of the model.
        TypeError: it is no mapping from input names to values.
        GraphError: the model cannot be read.
        Exception: whatever ONNX Runtime raises.
    """
    check_feed(feed)
    runner = maker.original()
    inputs = _inputs(runner)
    _check_complete(feed, inputs)
    try:
        names, rows = batched_inputs(feed, {value.name: value.shape for value in inputs})
    except NoBatchError as error:
        return BatchClaim(Status.UNKNOWN, str(error), 0, (), (), ())
    feed = enlarged(feed, names, rows, ROWS)
    rows = max(rows, ROWS)
    alone = [_run(runner, chosen_rows(feed, names, [row])) for row in range(rows)]
    found = [_company(runner, feed, names, alone, text, orders) for text, orders in _orders(rows)]
    if any(runs is None for runs in found):
        text = "the outputs' rows cannot be told apart: their shapes do not grow with the batch."
        return BatchClaim(Status.UNKNOWN, text, rows, (), (), ())
    runs = tuple(one for one in found if one is not None)
    differing = sum(one.differing for one in runs)
    if not differing:
        text = f"{sum(one.rows for one in runs)} rows had the same bits as alone."
        return BatchClaim(Status.HOLDS, text, rows, runs, (), ())
    nodes, unjudged = breaking_nodes(Graph(data), maker, feed, names, rows, progress)
    text = f"{differing} of {sum(one.rows for one in runs)} rows had other bits than alone."
    if not nodes:
        text += " No node breaks it when the graph is not optimised."
    return BatchClaim(Status.VIOLATED, text, rows, runs, nodes, unjudged)


def _inputs(runner: Runner) -> Sequence[Any]:
    inputs: Sequence[Any] = runner.get_inputs()
    return inputs


def _check_complete(feed: Feed, inputs: Sequence[Any]) -> None:
    """Refuse a feed that lacks inputs.

    Raises:
        ValueError: it does.
    """
    names = [value.name for value in inputs]
    optional = {value.name for value in inputs if str(getattr(value, "type", "")).startswith("optional")}
    missing = [name for name in names if name not in feed and name not in optional]
    if missing:
        others = [name for name in feed if name not in names]
        more = f", and {', '.join(others)} is none of the model's inputs" if others else ""
        raise ValueError(f"inputs: {', '.join(missing)} is missing{more}. The model takes {', '.join(names)}.")


def _run(runner: Runner, feed: Mapping[str, Any]) -> list[Any]:
    return list(runner.run(None, feed))


def _orders(rows: int) -> list[tuple[str, list[list[int]]]]:
    """Return which rows go together: kinds of company, each with batches of row numbers."""
    everything = list(range(rows))
    shuffled = everything.copy()
    random.Random(0).shuffle(shuffled)
    return [
        (f"in a batch of {rows}", [everything]),
        ("at other positions", [everything[::-1], everything[1:] + everything[:1], shuffled]),
        ("in pairs", [[row, (row + 1) % rows] for row in range(0, rows, 2)]),
        (f"in a batch of {rows - 1}", [everything[:-1]]),
        ("beside copies of themselves", [[row] * rows for row in (0, rows - 1)]),
    ]


def _company(
    runner: Runner,
    feed: Feed,
    names: Sequence[str],
    alone: Sequence[Sequence[Any]],
    text: str,
    orders: Sequence[Sequence[int]],
) -> BatchRuns | None:
    compared = differing = 0
    worst: Difference | None = None
    for order in orders:
        outputs = _run(runner, chosen_rows(feed, names, order))
        for position, row in enumerate(order):
            differs = False
            for value, expected in zip(outputs, alone[row], strict=True):
                if not isinstance(value, np.ndarray):
                    return None
                axis = row_axis(value.shape, expected.shape, len(order))
                if axis is None:
                    return None
                found = difference(expected, axis.row(value, position))
                if not found.same:
                    differs = True
                    worst = max(worst or found, found, key=lambda one: one.max_abs or 0.0)
            compared += 1
            differing += differs
    return BatchRuns(text, compared, differing, worst)
