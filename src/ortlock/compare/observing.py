"""Both sides' tensors, node by node, in batches that fit a memory budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ortlock.localise import Graph, GraphNode, Maker
from ortlock.localise.graph import shapes_of

Tensors = Mapping[str, Any]

_COPIES = 12
"""Of each float32 value: one on each side, and in float64 the inputs, magnitudes, results and limits."""


def observed(
    graph: Graph, names: Sequence[GraphNode], makers: Sequence[Maker], feed: Mapping[str, Any], budget_bytes: int
) -> Iterator[tuple[list[GraphNode], list[Tensors], Mapping[str, str]]]:
    """Yield some nodes at a time with what each maker's session computed for them: inputs and outputs.

    Nodes whose tensors' types ONNX Runtime does not tell are left out.
    """
    types, sizes = _ask(graph, makers[0], feed)
    for nodes in _batches(names, sizes, budget_bytes / _COPIES):
        wanted = dict.fromkeys(
            name
            for node in nodes
            for name in (*(name for name in node.inputs if name in graph.producer), *node.outputs)
            if name in types
        )
        if not wanted:
            continue
        model = graph.exposing(list(wanted), shapes_of(feed), types)
        sides: list[Tensors] = []
        for maker in makers:
            values = maker.derived(model, optimised=False).run(None, feed)
            sides.append({**feed, **dict(zip(wanted, values, strict=True))})
        yield nodes, sides, types


def _batches(nodes: Sequence[GraphNode], sizes: Mapping[str, int], limit: float) -> Iterator[list[GraphNode]]:
    batch: list[GraphNode] = []
    held: set[str] = set()
    for node in nodes:
        names = {*node.inputs, *node.outputs}
        if batch and sum(sizes.get(name, 0) for name in held | names) > limit:
            yield batch
            batch, held = [], set()
        batch.append(node)
        held |= names
    if batch:
        yield batch


def _ask(graph: Graph, maker: Maker, feed: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    runner = maker.derived(graph.exposing(graph.tensors, shapes_of(feed)), optimised=False)
    types, sizes = {}, {}
    for value in runner.get_outputs():
        types[value.name] = value.type
        if value.shape is not None and all(isinstance(size, int) for size in value.shape):
            sizes[value.name] = 4 * math.prod(value.shape)
    return types, sizes
