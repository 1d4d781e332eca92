"""The nodes whose rows depend on the batch although their inputs' rows do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortlock.compare.metrics import Difference, difference
from ortlock.compare.observing import observed
from ortlock.localise import Graph, GraphNode, Maker, Runner
from ortlock.verify.rows import RowAxis, chosen_rows, row_axis
from ortlock.verify.subject import Feed

_BUDGET = 2 << 30


@dataclass(frozen=True, slots=True)
class BreakingNode:
    """A node that breaks batch invariance."""

    name: str
    label: str
    index: int
    op_type: str
    worst: Difference | None
    """The largest difference of a row in the batch from the same row alone."""


def breaking_nodes(
    graph: Graph,
    maker: Maker,
    feed: Feed,
    names: Sequence[str],
    rows: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[BreakingNode, ...], tuple[str, ...]]:
    """Return the nodes that break batch invariance by themselves, and those of which it could not be told.

    Every node is run by itself: on what it had in the whole batch, and on single rows of that. So a node is judged
    although the nodes before it have changed the rows already.

    Args:
        graph: the model.
        maker: how sessions are made.
        feed: inputs of a batch.
        names: the inputs that have rows.
        rows: how many.
        progress: called with how many nodes are done, and of how many.
    """
    broken: list[BreakingNode] = []
    unjudged: list[str] = []
    single = chosen_rows(feed, names, [0])
    done = 0
    whole_batches = observed(graph, graph.nodes, [maker], feed, _BUDGET)
    alone_batches = observed(graph, graph.nodes, [maker], single, _BUDGET // rows)
    shapes = {name: np.shape(value) for nodes, (tensors,), _ in alone_batches for name, value in tensors.items()}
    for nodes, (tensors,), _types in whole_batches:
        for node in nodes:
            found = _judge(graph, node, maker, tensors, shapes, rows)
            if found is None:
                unjudged.append(node.label)
            elif not found.same:
                broken.append(BreakingNode(node.name, node.label, node.index, node.op_type, found))
        done += len(nodes)
        if progress is not None:
            progress(done, len(graph.nodes))
    return tuple(broken), tuple(unjudged)


def _judge(
    graph: Graph,
    node: GraphNode,
    maker: Maker,
    whole: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rows: int,
) -> Difference | None:
    """Return the largest difference of the node's first output's rows; None where it cannot be told."""
    if node.op_type in ("Shape", "Size"):
        return _NOTHING  # they tell the batch, and break nothing by that
    feed: dict[str, Any] = {}
    axes: dict[str, RowAxis | None] = {}
    for name in node.inputs:
        if name not in whole:
            if name in graph.producer or name in graph.inputs:
                return None
            continue  # a constant
        value = whole[name]
        if not isinstance(value, np.ndarray) or name not in shapes:
            return None
        feed[name] = value
        if value.shape == shapes[name]:
            axes[name] = None  # the same for all rows
            continue
        axes[name] = row_axis(value.shape, shapes[name], rows)
        if axes[name] is None:
            return None
    if not any(axes.values()):
        return _NOTHING
    # What is a batch size to the node, such as the target of a Reshape, would be wrong for a single row.
    if any(axis is None and feed[name].dtype.kind == "i" for name, axis in axes.items()):
        return None
    try:
        runner = maker.derived(graph.isolated(node, feed), optimised=False)
        together = _first_output(runner, feed)
        found = []
        for row in range(rows):
            one = {name: _of_row(value, axes[name], row) for name, value in feed.items()}
            found.append(_against(together, _first_output(runner, one), row, rows))
    except Exception:
        # Constants that hold the batch size, such as a Reshape's, do not go with a single row.
        return None
    differing = [one for one in found if one is not None and not one.same]
    if not differing:
        return None if None in found else _NOTHING
    return max(differing, key=lambda one: one.max_abs or 0.0)


def _first_output(runner: Runner, feed: Mapping[str, Any]) -> Any:
    return next(iter(runner.run(None, feed)))


def _of_row(value: Any, axis: RowAxis | None, row: int) -> Any:
    return value if axis is None else np.ascontiguousarray(axis.row(value, row))


def _against(together: Any, alone: Any, row: int, rows: int) -> Difference | None:
    """Compare what belongs to a row; an output without rows must be the same for each of them."""
    if not isinstance(together, np.ndarray) or not isinstance(alone, np.ndarray):
        return None
    if together.shape == alone.shape:
        return difference(alone, together)
    place = row_axis(together.shape, alone.shape, rows)
    return None if place is None else difference(alone, place.row(together, row))


_NOTHING = difference(np.zeros(0, np.float32), np.zeros(0, np.float32))
