"""Comparing two sides: outputs as configured, nodes one by one, and both against float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ortlock.compare.judging import UNKNOWN, judge
from ortlock.compare.metrics import Difference, difference
from ortlock.compare.observing import observed
from ortlock.compare.reference import Reference, widened
from ortlock.compare.result import Comparison, NodeComparison, OutputComparison
from ortlock.compare.verdict import verdict
from ortlock.digest import digest
from ortlock.localise import Graph, GraphNode, Maker
from ortlock.localise.graph import element_type

DEFAULT_BUDGET = 4 << 30
"""Bytes of host memory for the tensors of both sides and their evaluation in float64."""

_NUMPY_NAMES = {"float": "float32", "double": "float64"}

Progress = Callable[[int, int], None]


class Compared:
    """One side: how its sessions are made, and what it is called."""

    def __init__(self, text: str, maker: Maker, data: bytes, *, tf32: bool = False, exact: Maker | None = None) -> None:
        self.text, self.maker, self.data = text, maker, data
        self.tf32 = tf32
        """Whether it may take products in TF32."""
        self.exact = exact
        """The same side with TF32 off; None where it is off already."""

    def without_tf32(self) -> Compared:
        """Return the side with TF32 off."""
        return Compared(f"{self.text} without TF32", self.exact, self.data) if self.exact is not None else self


def compare(
    a: Compared,
    b: Compared,
    feed: Mapping[str, Any],
    *,
    folder: Path | None = None,
    per_node: bool = True,
    budget_bytes: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two sides on the same inputs.

    The outputs are those of each side as it is configured. For the nodes both sides run without graph optimisation,
    with every tensor an output, and each node is judged on the inputs that its own side had.

    Args:
        a: one side.
        b: the other one; its model may be another one.
        feed: one value for each input.
        folder: where the first model's external data are.
        per_node: whether nodes are compared and judged.
        budget_bytes: host memory for it.
        progress: called with how many nodes are done, and of how many.

    Raises:
        GraphError: a model cannot be read.
        Exception: whatever ONNX Runtime raises.
    """
    notes: list[str] = []
    graph = Graph(a.data)
    other = graph if b.data == a.data else Graph(b.data)
    outputs_a, outputs_b = (_outputs(side, name, feed, notes) for side, name in ((a, "A"), (b, "B")))
    names = [name for name in graph.outputs if name in other.outputs]
    off = None
    if a.exact is not None or b.exact is not None:
        exact = (a.without_tf32(), b.without_tf32())
        off = compare(*exact, feed, folder=folder, per_node=per_node, budget_bytes=budget_bytes)
    weights = _weights(graph.model, folder)
    reference = Reference(graph.model)
    nodes: tuple[NodeComparison, ...] = ()
    whole: dict[str, Any] = {}
    unevaluated: list[str] = []
    if per_node:
        whole, unevaluated = evaluate_whole(graph, reference, weights, feed)
        if other is not graph and other.model != graph.model:
            notes.append("The two models differ: nodes are compared by the names of their outputs, and judged by A's.")
        nodes = _nodes(graph, other, (a, b), feed, reference, weights, budget_bytes, progress)
    outputs = tuple(_output(name, outputs_a.get(name), outputs_b.get(name), whole.get(name)) for name in names)
    expected, reasons = verdict(a.text, b.text, outputs, nodes, off, judged=per_node)
    return Comparison(
        a.text, b.text, expected, tuple(reasons), outputs, nodes, tuple(dict.fromkeys(unevaluated)), tuple(notes), off
    )


def _outputs(side: Compared, name: str, feed: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    runner = side.maker.original()
    names = [value.name for value in runner.get_outputs()]
    first = list(runner.run(None, feed))
    if digest(first) != digest(list(runner.run(None, feed))):
        notes.append(f"{name} ({side.text}) differs from run to run by itself; the first run is compared.")
    return dict(zip(names, first, strict=True))


def _output(name: str, a: Any, b: Any, exact: Any) -> OutputComparison:
    error_a, error_b = (_distance(value, exact) for value in (a, b))
    closer = "unknown"
    if error_a is not None and error_b is not None:
        closer = "equal" if error_a == error_b else "A" if error_a < error_b else "B"
    return OutputComparison(name, _difference(a, b), error_a, error_b, closer)


def _difference(a: Any, b: Any, *, bfloat16: bool = False) -> Difference | None:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return None
    return difference(a, b, bfloat16=bfloat16)


def _distance(value: Any, exact: Any) -> float | None:
    if not isinstance(value, np.ndarray) or not isinstance(exact, np.ndarray) or value.shape != exact.shape:
        return None
    if value.dtype.kind not in "fiub":
        return None
    finite = np.isfinite(value) & np.isfinite(exact) if value.dtype.kind == "f" else np.ones(value.shape, np.bool_)
    return float(np.abs(value[finite].astype(np.float64) - exact[finite].astype(np.float64)).max(initial=0))


def _weights(model: onnx.ModelProto, folder: Path | None) -> dict[str, Any]:
    base = str(folder) if folder is not None else ""
    return {tensor.name: _array(numpy_helper.to_array(tensor, base)) for tensor in model.graph.initializer}


def _array(value: Any) -> Any:
    # bfloat16 and the like come in types of their own, of which float32 holds every value.
    return value.astype(np.float32) if value.dtype.kind == "V" or value.dtype.name == "bfloat16" else value


def evaluate_whole(
    graph: Graph, reference: Reference, weights: Mapping[str, Any], feed: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Run the whole graph in float64; return its outputs, and the nodes that cannot be evaluated.

    What comes after such a node has no value. Values are dropped after their last reader.
    """
    last = {name: node.index for node in graph.nodes for name in node.inputs}
    values: dict[str, Any] = {**{name: widened(value) for name, value in feed.items()}}
    failed = []
    for node in graph.nodes:
        proto = graph.proto(node)
        inputs = _inputs(proto, values, weights)
        results = reference.evaluate(proto, inputs) if inputs is not None else None
        if results is None and inputs is not None:
            failed.append(node.label)
        if results is not None:
            values.update(zip((name for name in proto.output if name), results, strict=True))
        for name in node.inputs:
            if last[name] == node.index and name not in graph.outputs:
                values.pop(name, None)
    return {name: values[name] for name in graph.outputs if name in values}, failed


def _inputs(proto: onnx.NodeProto, values: Mapping[str, Any], weights: Mapping[str, Any]) -> list[Any] | None:
    """Return a node's inputs; None where one of them is not known."""
    inputs = []
    for name in proto.input:
        if name and name not in values and name not in weights:
            return None
        inputs.append(None if not name else values[name] if name in values else widened(weights[name]))
    return inputs


def _nodes(
    graph: Graph,
    other: Graph,
    sides: Sequence[Compared],
    feed: Mapping[str, Any],
    reference: Reference,
    weights: Mapping[str, Any],
    budget_bytes: int,
    progress: Progress | None,
) -> tuple[NodeComparison, ...]:
    found: list[NodeComparison] = []
    shared = [node for node in graph.nodes if node.outputs and node.outputs[0] in other.producer]
    if other is not graph:
        # Two graphs: the second side's tensors come from its own.
        return tuple(_between(graph, other, shared, sides, feed, budget_bytes))
    makers = [side.maker for side in sides]
    for nodes, tensors, types in observed(graph, shared, makers, feed, budget_bytes):
        for node in nodes:
            element = element_type(types.get(node.outputs[0], ""))
            element = _NUMPY_NAMES.get(element, element)
            roundings, length = [], None
            for side, values in zip(sides, tensors, strict=True):
                rounding, known = _judged(graph, node, values, weights, reference, element, tf32=side.tf32)
                roundings.append(rounding)
                length = length or known
            found.append(_node(node, tensors[0], tensors[1], element, length, roundings))
        if progress is not None:
            progress(len(found), len(shared))
    return tuple(found)


def _judged(
    graph: Graph,
    node: GraphNode,
    values: Mapping[str, Any],
    weights: Mapping[str, Any],
    reference: Reference,
    element: str,
    *,
    tf32: bool,
) -> tuple[Any, int | None]:
    proto = graph.proto(node)
    inputs = _inputs(proto, values, weights)
    if inputs is None or node.outputs[0] not in values:
        return UNKNOWN, None
    return judge(reference, proto, inputs, values[node.outputs[0]], element=element, tf32=tf32)


def _node(
    node: GraphNode,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    element: str,
    length: int | None,
    roundings: Sequence[Any],
) -> NodeComparison:
    tensor = node.outputs[0]
    differ = any(
        digest([a[name]]) != digest([b[name]]) for name in node.inputs if name in a and name in b and a is not b
    )
    measured = _difference(a.get(tensor), b.get(tensor), bfloat16=element == "bfloat16")
    return NodeComparison(
        node.name, node.label, node.index, node.op_type, tensor, measured, differ, length, roundings[0], roundings[1]
    )


def _between(
    graph: Graph,
    other: Graph,
    shared: Sequence[GraphNode],
    sides: Sequence[Compared],
    feed: Mapping[str, Any],
    budget_bytes: int,
) -> list[NodeComparison]:
    """Compare the tensors that two models both have."""
    found = []
    partners = {node.index: other.producer[node.outputs[0]] for node in shared}
    for nodes, (tensors,), types in observed(graph, shared, [sides[0].maker], feed, budget_bytes):
        wanted = list({partner.index: partner for partner in (partners[node.index] for node in nodes)}.values())
        second: dict[str, Any] = {}
        for _, (values,), _types in observed(other, wanted, [sides[1].maker], feed, budget_bytes):
            second.update(values)
        for node in nodes:
            element = element_type(types.get(node.outputs[0], ""))
            found.append(_node(node, tensors, second, element, None, [replace(UNKNOWN), replace(UNKNOWN)]))
    return found
