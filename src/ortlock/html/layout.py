"""Where the nodes of a graph are drawn: a column for each step from the inputs, a row for each node in it.

Columns that do not fit beside each other go on in the next line, as text does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ortlock.localise import Graph, GraphNode

CELL = 22
BOX = 14
_MARGIN = 8
_MOST_EDGES = 4000
COLUMNS = 53
"""Of one line: a picture is at most 1,182 pixels wide."""
_GAP = 10
"""Between two lines."""


@dataclass(frozen=True, slots=True)
class Box:
    """One node's square."""

    x: int
    y: int
    kind: str
    """What colours it: a CSS class."""
    title: str
    """Shown when the pointer rests on it."""
    index: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph in pixels."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int, int, int], ...]
    """x and y of each end; left out between two lines, and where there are too many to be seen."""
    legend: tuple[tuple[str, str, int], ...]
    """CSS class, text and number of nodes."""


def draw(graph: Graph, judge: Callable[[GraphNode], tuple[str, str]], legend: Mapping[str, str]) -> Drawing:
    """Place the nodes of a graph; constants are left out, as weights are.

    Args:
        graph: the model's main graph.
        judge: returns the CSS class of a node and the text that explains it.
        legend: text of each class, in the order in which they are shown.
    """
    drawn = [node for node in graph.nodes if node.op_type != "Constant"]
    numbers = {node.index for node in drawn}
    before = {
        node.index: [
            graph.producer[name].index
            for name in node.inputs
            if name in graph.producer and graph.producer[name].index in numbers
        ]
        for node in drawn
    }
    columns: dict[int, int] = {}
    for node in drawn:
        columns[node.index] = max((columns[index] for index in before[node.index]), default=-1) + 1
    first_use: dict[int, int] = {}
    for index, sources in before.items():
        for source in sources:
            first_use[source] = min(first_use.get(source, columns[index]), columns[index])
    rows: dict[int, int] = {}
    filled: dict[int, int] = {}
    for node in drawn:
        if not before[node.index] and node.index in first_use:
            # What depends on nothing that is drawn stands beside what needs it.
            columns[node.index] = first_use[node.index] - 1
        column = columns[node.index]
        rows[node.index] = filled.get(column, 0)
        filled[column] = rows[node.index] + 1

    tops, bottom = _lines(filled)

    def place(index: int) -> tuple[int, int]:
        line, column = divmod(columns[index], COLUMNS)
        return _MARGIN + column * CELL, tops[line] + rows[index] * CELL

    boxes, counts = [], dict.fromkeys(legend, 0)
    for node in drawn:
        kind, text = judge(node)
        counts[kind] = counts.get(kind, 0) + 1
        boxes.append(Box(*place(node.index), kind, f"{node.label}: {text}", node.index))
    edges = []
    for index, sources in before.items():
        for source in sources:
            if columns[source] // COLUMNS != columns[index] // COLUMNS:
                continue
            (x, y), (to_x, to_y) = place(source), place(index)
            edges.append((x + BOX, y + BOX // 2, to_x, to_y + BOX // 2))
    return Drawing(
        2 * _MARGIN + CELL * min(COLUMNS, max(columns.values(), default=0) + 1),
        bottom + _MARGIN,
        tuple(boxes),
        tuple(edges) if len(edges) <= _MOST_EDGES else (),
        tuple((kind, text, counts[kind]) for kind, text in legend.items() if counts[kind]),
    )


def _lines(filled: Mapping[int, int]) -> tuple[list[int], int]:
    """Return where each line begins and where the last one ends, from how many rows each column has."""
    tops: list[int] = []
    y = _MARGIN
    for first in range(0, max(filled, default=0) + 1, COLUMNS):
        if tops:
            y += _GAP
        tops.append(y)
        y += CELL * max(filled.get(column, 1) for column in range(first, first + COLUMNS))
    return tops, y
