"""Both sides' tensors, node by node, in batches that fit a memory budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ortlock.errors import OrtlockError
from ortlock.localise import Graph, GraphNode, Maker
from ortlock.localise.graph import shapes_of

Tensors = Mapping[str, Any]

_COPIES = 12
"""Of each float32 value: one on each side, and in float64 the inputs, magnitudes, results and limits."""


class MovedError(OrtlockError):
    """ONNX Runtime moved a session to another provider, whose outputs say nothing of the one that was asked for."""


def check_provider(runner: Any, maker: Maker) -> None:
    """Check that what has run did so on its maker's provider, as far as it has one.

    Raises:
        MovedError: ONNX Runtime moved it to another one.
    """
    providers = getattr(runner, "get_providers", None)
    if providers is not None and (used := providers()[0]) != maker.provider:
        raise MovedError(
            f"ONNX Runtime moved a session from {maker.provider} to {used}, so nothing can be told of "
            f"{maker.provider}. `ortlock doctor` says whether it can be used."
        )


def observed(
    graph: Graph, names: Sequence[GraphNode], makers: Sequence[Maker], feed: Mapping[str, Any], budget_bytes: int
) -> Iterator[tuple[list[GraphNode], list[Tensors], Mapping[str, str]]]:
    """Yield some nodes at a time with what each maker's session computed for them: inputs and outputs.

    Nodes whose tensors' types ONNX Runtime does not tell are left out.

    Raises:
        MovedError: ONNX Runtime moved a session to another provider.
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
            runner = maker.derived(model, optimised=False)
            values = runner.run(None, feed)
            check_provider(runner, maker)
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
