"""Comparing two sides: outputs as configured, nodes one by one, and both against float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ortlock.compare.carried import carry
from ortlock.compare.evaluating import evaluate_whole, inputs_of, weights_of
from ortlock.compare.judging import UNKNOWN, judge
from ortlock.compare.metrics import Difference, difference
from ortlock.compare.models import told_apart
from ortlock.compare.observing import MovedError, check_provider, observed
from ortlock.compare.reference import Reference
from ortlock.compare.result import Comparison, NodeComparison, OutputComparison
from ortlock.compare.verdict import verdict
from ortlock.compare.whole import judge_outputs
from ortlock.digest import digest
from ortlock.errors import OrtlockError
from ortlock.localise import Graph, GraphError, GraphNode, Maker
from ortlock.localise.graph import element_type

DEFAULT_BUDGET = 4 << 30
"""Bytes of host memory for the tensors of both sides and their evaluation in float64."""

_NUMPY_NAMES = {"float": "float32", "double": "float64"}

Progress = Callable[[int, int], None]


class SideFailedError(OrtlockError):
    """One side does not run; its cause is what ONNX Runtime raised.

    Attributes:
        side: ``A`` or ``B``.
    """

    def __init__(self, side: str, text: str) -> None:
        self.side = side
        super().__init__(text)

    def __reduce__(self) -> tuple[type[SideFailedError], tuple[str, str]]:
        return (type(self), (self.side, str(self)))


class Compared:
    """One side: how its sessions are made, and what it is called."""

    def __init__(
        self,
        text: str,
        maker: Maker,
        data: bytes,
        *,
        tf32: bool = False,
        exact: Maker | None = None,
        folder: Path | None = None,
    ) -> None:
        self.text, self.maker, self.data = text, maker, data
        self.folder = folder
        """Where its model's external data are."""
        self.tf32 = tf32
        """Whether it may take products in TF32."""
        self.exact = exact
        """The same side with TF32 off; None where it is off already."""

    def without_tf32(self) -> Compared:
        """Return the side with TF32 off."""
        if self.exact is None:
            return self
        return Compared(f"{self.text} without TF32", self.exact, self.data, folder=self.folder)


def compare(
    a: Compared,
    b: Compared,
    feed: Mapping[str, Any],
    *,
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
        per_node: whether nodes are compared and judged.
        budget_bytes: host memory for it.
        progress: called with how many nodes are done, and of how many.

    Raises:
        GraphError: a model cannot be read.
        SideFailedError: a side does not run with these inputs.
        MovedError: ONNX Runtime moved a side's session to another provider.
        Exception: whatever ONNX Runtime raises.
    """
    notes: list[str] = []
    graph = _graph(a, "A")
    other = graph if b.data == a.data else _graph(b, "B")
    (outputs_a, varies_a), (outputs_b, varies_b) = (_outputs(side, name, feed) for side, name in ((a, "A"), (b, "B")))
    names = [name for name in graph.outputs if name in other.outputs]
    complete = len(names) == len(graph.outputs) == len(other.outputs)
    off = None
    if a.exact is not None or b.exact is not None:
        exact = (a.without_tf32(), b.without_tf32())
        off = compare(*exact, feed, per_node=per_node, budget_bytes=budget_bytes)
    weights = weights_of(graph.model, a.folder)
    models: list[str] = []
    if other is not graph:
        models = told_apart(graph, other, weights, weights_of(other.model, b.folder))
        # Files may differ in what is not computed, such as who made them.
        other = other if models else graph
    reference = Reference(graph.model)
    nodes: tuple[NodeComparison, ...] = ()
    whole: dict[str, Any] = {}
    unevaluated: list[str] = []
    types: Mapping[str, str] = {}
    if per_node:
        if models:
            # A float64 run of the one says nothing of the other.
            notes.append("Nodes of two models are compared by the names of their outputs, and are not judged.")
        else:
            whole, unevaluated = evaluate_whole(graph, reference, weights, feed)
        nodes, types = _nodes(graph, other, (a, b), feed, reference, weights, budget_bytes, progress)
    outputs = tuple(_output(name, outputs_a.get(name), outputs_b.get(name), whole.get(name)) for name in names)
    differing = [output.name for output in outputs if not output.same]

    def judge_whole() -> tuple[bool, list[str]]:
        carried = carry(graph, reference, weights, feed, types, tf32=a.tf32 or b.tf32)
        return judge_outputs(
            {name: outputs_a[name] for name in differing}, {name: outputs_b[name] for name in differing}, carried
        )

    varying = [f"{name} ({side.text})" for side, name, own in ((a, "A", varies_a), (b, "B", varies_b)) if own]
    expected, reasons = verdict(
        a.text,
        b.text,
        outputs,
        nodes,
        off,
        judged=per_node,
        complete=complete,
        varying=varying,
        models=models,
        whole=judge_whole,
    )
    return Comparison(
        a.text, b.text, expected, tuple(reasons), outputs, nodes, tuple(dict.fromkeys(unevaluated)), tuple(notes), off
    )


def _graph(side: Compared, name: str) -> Graph:
    try:
        return Graph(side.data)
    except GraphError as error:
        raise GraphError(f"side {name} ({side.text}): {error}") from error


def _outputs(side: Compared, name: str, feed: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the outputs of a first run, and whether a second one gave others."""
    try:
        runner = side.maker.original()
        names = [value.name for value in runner.get_outputs()]
        first = list(runner.run(None, feed))
        second = list(runner.run(None, feed))
        check_provider(runner, side.maker)
    except MovedError as error:
        raise MovedError(f"side {name} ({side.text}): {error}") from error
    except OrtlockError:
        raise
    except Exception as error:
        raise SideFailedError(name, f"side {name} ({side.text}) does not run with these inputs") from error
    return dict(zip(names, first, strict=True)), digest(first) != digest(second)


def _output(name: str, a: Any, b: Any, exact: Any) -> OutputComparison:
    error_a, error_b = (_distance(value, exact) for value in (a, b))
    closer = "unknown"
    if error_a is not None and error_b is not None:
        closer = "equal" if error_a == error_b else "A" if error_a < error_b else "B"
    measured = _difference(a, b)
    same = measured.same if measured is not None else digest([a]) == digest([b])
    return OutputComparison(name, measured, error_a, error_b, closer, same)


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


def _nodes(
    graph: Graph,
    other: Graph,
    sides: Sequence[Compared],
    feed: Mapping[str, Any],
    reference: Reference,
    weights: Mapping[str, Any],
    budget_bytes: int,
    progress: Progress | None,
) -> tuple[tuple[NodeComparison, ...], Mapping[str, str]]:
    """Return the nodes, and the types of their tensors as ONNX Runtime writes them."""
    found: list[NodeComparison] = []
    types: Mapping[str, str] = {}
    shared = [node for node in graph.nodes if node.outputs and node.outputs[0] in other.producer]
    if other is not graph:
        # Two graphs: the second side's tensors come from its own.
        return tuple(_between(graph, other, shared, sides, feed, budget_bytes)), types
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
    return tuple(found), types


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
    inputs = inputs_of(proto, values, weights)
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
