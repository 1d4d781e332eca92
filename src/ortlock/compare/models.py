"""What two models differ in, where that changes what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortlock.digest import digest
from ortlock.localise import Graph

_EXAMPLES = 5


def told_apart(a: Graph, b: Graph, weights_a: Mapping[str, Any], weights_b: Mapping[str, Any]) -> list[str]:
    """Return what two models differ in, the weights first; empty where they compute the same.

    Args:
        a: one model.
        b: the other one.
        weights_a: arrays of its initializers by name.
        weights_b: those of the other one.
    """
    found = []
    names = list(dict.fromkeys((*weights_a, *weights_b)))
    other = [
        name
        for name in names
        if (name in weights_a) != (name in weights_b)
        or (name in weights_a and digest([weights_a[name]]) != digest([weights_b[name]]))
    ]
    if other:
        found.append(
            f"The models' weights differ: {len(other)} of {len(names)} initializers ({_some(other)}). Other weights "
            "make other outputs, and no bound of rounding goes across that."
        )
    changed = [node.label for node in a.nodes if not _has(b, a, node.outputs)]
    added = [node.label for node in b.nodes if not _has(a, b, node.outputs)]
    if changed or added or len(a.nodes) != len(b.nodes):
        labels = list(dict.fromkeys((*changed, *added)))
        examples = f", e.g. {_some(labels)}" if labels else ""
        found.append(f"The models' nodes differ: A has {len(a.nodes)}, B has {len(b.nodes)}{examples}.")
    for name, one, two in (("A", a, b), ("B", b, a)):
        if only := [output for output in one.outputs if output not in two.outputs]:
            found.append(f"Only {name} has these outputs: {_some(only)}.")
    if not found and _frame(a) != _frame(b):
        found.append("The models' operator sets, functions, inputs or outputs differ.")
    return found


def _has(graph: Graph, owner: Graph, outputs: tuple[str, ...]) -> bool:
    """Return whether a graph computes these tensors with the same node."""
    if not outputs:
        return True
    node = graph.producer.get(outputs[0])
    if node is None:
        return False
    protos = (graph.proto(node), owner.proto(owner.producer[outputs[0]]))
    return len({proto.SerializeToString(deterministic=True) for proto in protos}) == 1


def _frame(graph: Graph) -> tuple[Any, ...]:
    model = graph.model
    opsets = sorted((opset.domain, opset.version) for opset in model.opset_import)
    functions = sorted(function.SerializeToString(deterministic=True) for function in model.functions)
    return opsets, functions, graph.inputs, graph.outputs


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _EXAMPLES} more" if len(names) > _EXAMPLES else ""
    return ", ".join(names[:_EXAMPLES]) + more
