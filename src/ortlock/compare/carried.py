"""How far rounding can move a model's outputs: each node's bound, carried through all nodes that read it.

A node gets inputs that are off by at most ``e`` and adds its own rounding. For sums of products the magnitudes tell
both: with P the node evaluated on magnitudes, the output moves by at most P(|x| + e) - P(|x|), and its own rounding is
bounded at |x| + e. This is the worst case, in which all errors have the signs that hurt most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from ortlock.compare.reference import Reference, widened
from ortlock.compare.rounding import KINDS, UNIT, attribute, bound_of, positive
from ortlock.localise import Graph
from ortlock.localise.graph import element_type

_NUMPY_NAMES = {"float": "float32", "double": "float64"}

_MOVING = frozenset(
    (
        *("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Split", "Slice", "Gather"),
        *("GatherElements", "GatherND", "Expand", "Tile", "Pad", "DepthToSpace", "SpaceToDepth", "MaxPool"),
        *("GlobalMaxPool", "ReduceMax", "ReverseSequence", "Trilu"),
    )
)
"""They move values, or take the largest of some, so that they do to the errors what they do to the values."""
_STEEPEST = {
    **dict.fromkeys(("Relu", "Abs", "Neg", "Clip", "Cast", "Tanh", "Sin", "Cos", "Softsign", "Atan", "Softplus"), 1.0),
    "Sigmoid": 0.25,
    "Erf": 1.13,
    "Gelu": 1.13,
}
"""Of functions of one value: the largest slope."""


@dataclass
class Carried:
    """What is known of the outputs."""

    exact: dict[str, Any] = field(default_factory=dict)
    """In float64."""
    limits: dict[str, Any] = field(default_factory=dict)
    """The largest distance from it that rounding allows, for each element."""
    stopped: list[str] = field(default_factory=list)
    """Nodes through which it is not known how errors are carried."""


def carry(
    graph: Graph,
    reference: Reference,
    weights: Mapping[str, Any],
    feed: Mapping[str, Any],
    types: Mapping[str, str],
    *,
    tf32: bool,
) -> Carried:
    """Run a graph in float64 with a bound for every value.

    Args:
        graph: the graph.
        reference: evaluates its nodes.
        weights: its initializers.
        feed: its inputs.
        types: types of its tensors as ONNX Runtime writes them.
        tf32: whether products may be taken in TF32.
    """
    found = Carried()
    values = {name: widened(value) for name, value in {**weights, **feed}.items()}
    errors: dict[str, Any] = {}
    last = {name: node.index for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        proto = graph.proto(node)
        if any(name and name not in values for name in proto.input):
            continue
        inputs = [values[name] if name else None for name in proto.input]
        off = [errors.get(name) for name in proto.input]
        results = reference.evaluate(proto, inputs)
        element = element_type(types.get(node.outputs[0], "")) if node.outputs else ""
        limits = None
        if results is not None:
            with np.errstate(all="ignore"):
                limits = _limits(reference, proto, inputs, off, results, _NUMPY_NAMES.get(element, element), tf32=tf32)
        if results is None or limits is None:
            found.stopped.append(node.label)
            continue
        for name, result, limit in zip((name for name in proto.output if name), results, limits, strict=True):
            values[name] = result
            if limit is not None:
                errors[name] = limit
        for name in node.inputs:
            if last[name] == node.index and name not in graph.outputs:
                values.pop(name, None)
                errors.pop(name, None)
    for name in graph.outputs:
        if name in values:
            found.exact[name] = values[name]
            found.limits[name] = errors.get(name, np.zeros(np.shape(values[name])))
    return found


def _limits(
    reference: Reference,
    node: onnx.NodeProto,
    inputs: list[Any],
    off: list[Any],
    results: Any,
    element: str,
    *,
    tf32: bool,
) -> list[Any] | None:
    """Return how far off each output may be, None for one that is exact; None where that is not known."""
    known = any(error is not None for error in off)
    moved = _moved(reference, node, inputs, off, results) if known else [0.0] * len(results)
    if moved is None:
        return None
    first = results[0]
    if not all(isinstance(result, np.ndarray) for result in results):
        return None
    if any(result.dtype.kind != "f" for result in results):
        # A whole number or a truth value does not move a little.
        return None if known else [None] * len(results)
    # Magnitudes that the node may have met, with their signs.
    grown = [
        value if error is None else value + np.copysign(error, value) for value, error in zip(inputs, off, strict=True)
    ]
    size = np.abs(first) + moved[0]
    bound = bound_of(node, grown, size, reference.evaluate)
    if bound is None or element not in UNIT:
        return None
    if bound.basis == "exact":
        return list(moved) if known else [None] * len(results)
    if len(results) > 1:
        return None
    own = bound.limit("tf32 cut off" if tf32 and bound.matrix and element == "float32" else "fp32", element, size)
    return [own + moved[0]]


def _moved(
    reference: Reference, node: onnx.NodeProto, inputs: list[Any], off: list[Any], results: Any
) -> Sequence[Any] | None:
    """Return how far the outputs move with their inputs; None where that is not known."""
    operator = node.op_type
    errors = [np.zeros(np.shape(value)) if error is None else error for value, error in zip(inputs, off, strict=True)]
    if node.domain not in ("", "ai.onnx", "com.microsoft"):
        return None
    if operator == "Concat" or (operator in _MOVING and all(error is None for error in off[1:])):
        arguments = errors if operator == "Concat" else [errors[0], *inputs[1:]]
        found = reference.evaluate(node, arguments)
        return None if found is None else [np.abs(value) for value in found]
    if operator in _STEEPEST and all(error is None for error in off[1:]):
        return [_STEEPEST[operator] * errors[0]]
    if operator in ("Max", "Min"):
        return [_broadcast(np.maximum, errors, results[0])]
    if operator in ("Add", "Sub"):
        return [_broadcast(np.add, errors, results[0])]
    if operator == "Mul":
        (x, y), (of_x, of_y) = (np.abs(value) for value in inputs), errors
        return [x * of_y + y * of_x + of_x * of_y]
    if operator == "BatchNormalization" and all(error is None for error in off[1:]):
        scale, bias, mean, variance = inputs[1:5]
        return reference.evaluate(node, [errors[0], np.abs(scale), 0 * bias, 0 * mean, variance])
    if KINDS.get(operator) in ("matrix", "sum"):
        if operator == "FusedConv" and attribute(node, "activation", b"Relu") != b"Relu":
            return None
        sizes = [
            np.abs(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value for value in inputs
        ]
        low = reference.evaluate(positive(node), sizes)
        high = reference.evaluate(
            positive(node),
            [size if error is None else size + error for size, error in zip(sizes, off, strict=True)],
        )
        # A little more for the rounding of this very difference in float64.
        return None if low is None or high is None else [np.maximum(high[0] - low[0], 0) + 1e-12 * high[0]]
    return None


def _broadcast(operation: Any, errors: list[Any], result: Any) -> Any:
    total = np.zeros(result.shape)
    for error in errors:
        total = operation(total, error)
    return total
