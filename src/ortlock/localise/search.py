"""Finding the first node, in topological order, whose output differs although its inputs do not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ortlock.arguments import check_count, check_feed
from ortlock.digest import digest
from ortlock.localise.graph import Graph, GraphError, GraphNode, shapes_of
from ortlock.localise.observing import Effort, Observer, Seen
from ortlock.localise.result import DifferingNode, DifferingTensor, Localised, Tensor
from ortlock.localise.runners import Maker
from ortlock.operators import lookup
from ortlock.report.text import plan_line

DEFAULT_BUDGET = 1 << 30
"""Bytes of host memory for the tensors that are looked at."""

OPTIMISED, AS_IN_MODEL = "optimised", "as in the model"

Progress = Callable[[int, int], None]
"""Called with how many tensors have been looked at, and of how many."""


def localise(
    data: bytes,
    feed: Mapping[str, Any],
    maker: Maker,
    other: Maker | None = None,
    *,
    runs: int = 4,
    sessions: int = 2,
    budget_bytes: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> Localised:
    """Find the first node whose output differs from run to run, or between two configurations.

    Every tensor that a node computes is made an output, in topological order, in batches that fit the memory budget,
    until one differs. From run to run the graph is searched as ONNX Runtime has optimised it, where it can save that,
    so that fused nodes run fused; between two configurations, as it is in the model, without optimisation on either
    side.

    Args:
        data: the model's bytes (external data stay where the makers find them).
        feed: one value for each input.
        maker: how sessions are made.
        other: how those of the other side are made; None: runs of ``maker`` are compared with each other.
        runs: runs of each session.
        sessions: new sessions of each side.
        budget_bytes: host memory for the tensors that are looked at.
        progress: called after each batch.

    Raises:
        ValueError: ``runs`` or ``sessions`` is no whole number from 1 on, or nothing can be compared: one run of one
            session of ``maker`` alone.
        TypeError: ``feed`` is no mapping from input names to values.
        GraphError: the model cannot be searched.
        Exception: whatever the makers raise.
    """
    check_feed(feed)
    check_count("runs", runs)
    check_count("sessions", sessions)
    if other is None and runs * sessions == 1:
        raise ValueError("runs=1 with sessions=1: one run has none to be compared with; give more of either.")
    started = time.perf_counter()
    makers = [maker] if other is None else [maker, other]
    effort = Effort(runs, sessions, budget_bytes)
    notes: list[str] = []
    differs = _outputs_differ(makers, feed, effort, notes)
    graph, which = _graph(data, maker, other)
    if not differs:
        return Localised(
            False, None, runs, sessions, len(graph.nodes), 0, 0, which, False, time.perf_counter() - started, (*notes,)
        )
    try:
        observer = Observer(graph, makers, feed, effort)
    except Exception:
        # What ONNX Runtime has optimised it cannot always load again.
        if which != OPTIMISED:
            raise
        graph, which = Graph(data), AS_IN_MODEL
        observer = Observer(graph, makers, feed, effort)
    if other is None and which == AS_IN_MODEL:
        notes.append("The optimised graph cannot be searched here, so the model's own nodes ran unfused.")
    names = [name for name in graph.tensors if observer.observable(name)]
    seen: dict[str, Seen] = {}
    found: GraphNode | None = None
    latest: dict[str, Seen] = {}
    for batch in observer.batched(names):
        latest = observer.look(batch)
        seen.update(latest)
        if progress is not None:
            progress(len(seen), len(names))
        found = next((node for node in graph.nodes if any(_differs(latest, name) for name in node.outputs)), None)
        if found is not None:
            break
    confirmed = False
    if found is not None:
        found, confirmed = _confirm(graph, observer, found, seen, latest)
    else:
        notes.append(
            "Making tensors outputs keeps ONNX Runtime from fusing or reusing memory around them; "
            "that can make a difference vanish."
        )
    node = _describe(graph, found, seen, feed, maker.provider, observer.plans) if found is not None else None
    return Localised(
        True,
        node,
        runs,
        sessions,
        len(graph.nodes),
        len(seen),
        observer.batches,
        which,
        confirmed,
        time.perf_counter() - started,
        tuple(notes),
    )


def _differs(seen: Mapping[str, Seen], name: str) -> bool:
    return name in seen and seen[name].differs


def _outputs_differ(makers: Sequence[Maker], feed: Mapping[str, Any], effort: Effort, notes: list[str]) -> bool:
    """Return whether the model's own outputs differ, as it is."""
    sides: list[set[str]] = []
    for maker in makers:
        digests: set[str] = set()
        for _ in range(effort.sessions):
            runner = maker.original()
            digests.update(digest(list(runner.run(None, feed))) for _ in range(effort.runs))
        sides.append(digests)
    if len(makers) > 1:
        for name, digests in zip("AB", sides, strict=True):
            if len(digests) > 1:
                notes.append(f"Side {name} differs from run to run by itself: {len(digests)} distinct outputs.")
    return len(set().union(*sides)) > 1


def _graph(data: bytes, maker: Maker, other: Maker | None) -> tuple[Graph, str]:
    optimised = maker.optimise() if other is None else None
    if optimised is not None:
        try:
            return Graph(optimised), OPTIMISED
        except GraphError:
            pass
    return Graph(data), AS_IN_MODEL


def _confirm(
    graph: Graph, observer: Observer, found: GraphNode, seen: dict[str, Seen], latest: Mapping[str, Seen]
) -> tuple[GraphNode, bool]:
    """Look at a node's inputs in the same runs as its outputs; where one differs, go on with the node it comes from.

    A rare difference may not have shown yet in the batch in which an earlier tensor was looked at.
    """
    while True:
        inputs = [name for name in found.inputs if name in graph.producer and observer.observable(name)]
        if _together(latest, found, inputs):
            return found, True
        latest = observer.look([*inputs, *(name for name in found.outputs if observer.observable(name))])
        before = next((name for name in inputs if latest[name].differs), None)
        if before is None:
            if not any(_differs(latest, name) for name in found.outputs):
                return found, False
            seen.update(latest)
            return found, _together(latest, found, inputs)
        seen.update({name: value for name, value in latest.items() if value.differs})
        found = graph.producer[before]


def _together(latest: Mapping[str, Seen], node: GraphNode, inputs: Sequence[str]) -> bool:
    """Return whether a node's inputs were looked at in the same runs as its differing output."""
    batch = next(latest[name].batch for name in node.outputs if _differs(latest, name))
    return all(name in latest and latest[name].batch == batch for name in inputs)


def _describe(
    graph: Graph,
    node: GraphNode,
    seen: Mapping[str, Seen],
    feed: Mapping[str, Any],
    provider: str,
    plans: Sequence[Any],
) -> DifferingNode:
    knowledge = lookup(node.op_type, node.domain, provider, node.attributes)
    fed = shapes_of(feed)
    inputs = []
    for name in node.inputs:
        if name in seen:
            inputs.append(Tensor(name, seen[name].type, seen[name].shape))
        elif name in fed:
            inputs.append(Tensor(name, str(getattr(feed[name], "dtype", "tensor")), fed[name]))
    outputs = tuple(
        DifferingTensor(Tensor(name, seen[name].type, seen[name].shape), seen[name].distinct, seen[name].difference)
        for name in node.outputs
        if _differs(seen, name)
    )
    return DifferingNode(
        node.name,
        node.label,
        node.index,
        node.op_type,
        node.domain,
        provider,
        tuple(inputs),
        outputs,
        str(knowledge.status),
        f"{knowledge.reason} {knowledge.evidence}".strip(),
        knowledge.remedy,
        tuple(plan_line(plan) for plan in plans if _may_be(graph, node, plan)),
        node.has_subgraphs,
    )


def _may_be(graph: Graph, node: GraphNode, plan: Any) -> bool:
    """Return whether an operation of cuDNN's has the shape of the node's weights."""
    if "Conv" not in node.op_type:
        return False
    weights = {tensor.name: list(tensor.dims) for tensor in graph.model.graph.initializer}
    shapes = [weights[name] for name in node.inputs if name in weights]
    found = [match[1] for text in plan.tensors if (match := re.match(r"w \S*?\[([0-9,]+)\]", text))]
    return any([int(size) for size in text.split(",")] == shape for text in found for shape in shapes)
