"""From two sides' nodes and outputs to the answer: is this expected?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortlock.compare.result import Comparison, Expected, NodeComparison, OutputComparison, Rounding
from ortlock.words import counted

_EXAMPLES = 5

_JUDGED = {
    Expected.SAME: "the same bits",
    Expected.YES: "which is rounding in fp32",
    Expected.NO: "which rounding in fp32 does not explain",
    Expected.UNKNOWN: "of which it is not known whether it is rounding",
}


def verdict(
    a: str,
    b: str,
    outputs: Sequence[OutputComparison],
    nodes: Sequence[NodeComparison],
    off: Comparison | None,
    *,
    judged: bool,
    complete: bool = True,
    varying: Sequence[str] = (),
    models: Sequence[str] = (),
    whole: Callable[[], tuple[bool, list[str]]],
) -> tuple[Expected, list[str]]:
    """Return the judgement and its reasons, the weightiest first.

    Args:
        a: what one side is called.
        b: what the other side is called.
        outputs: the model's outputs.
        nodes: its nodes.
        off: the same comparison with TF32 off.
        judged: whether nodes were looked at.
        complete: whether both sides have the same outputs.
        varying: the sides whose outputs differ from run to run by themselves.
        models: what the sides' models differ in.
        whole: judges the outputs where no node differs by itself.
    """
    sides = (("A", a), ("B", b))
    if varying:
        which = " and ".join(varying)
        verb = "differ" if len(varying) > 1 else "differs"
        text = f"{which} {verb} from run to run, so one run tells nothing of how far the sides are apart."
        return Expected.UNKNOWN, [f"{text} `ortlock verify` names the node."]
    if complete and outputs and all(output.same for output in outputs):
        return Expected.SAME, ["Every output has the same bits on both sides."]
    if any(output.difference is not None and output.difference.mismatch for output in outputs):
        shapes = [f"{o.name}: {o.difference.mismatch}" for o in outputs if o.difference and o.difference.mismatch]
        return Expected.NO, [f"Outputs have other shapes or types: {'; '.join(shapes)}."]
    if models:
        first = next((node.label for node in nodes if node.difference is not None and not node.difference.same), None)
        return Expected.UNKNOWN, [*models, *([f"The first node that differs is {first}."] if first else [])]
    if not judged:
        return Expected.UNKNOWN, ["Nodes were not looked at, so nothing is known of why the outputs differ."]
    wrong = [
        f"{node.label} on {name} ({text}) is off by {rounding.error:.3g} where rounding allows {rounding.limit:.3g}."
        if rounding.error is not None and rounding.limit is not None
        else f"{node.label} on {name} ({text}) has other NaN, infinity or shape than its evaluation in float64."
        for node in nodes
        for (name, text), rounding in zip(sides, (node.a, node.b), strict=True)
        if rounding.explained_by == "nothing"
    ]
    if wrong:
        return Expected.NO, [*wrong[:_EXAMPLES], *_more(wrong)]
    reasons = [*_tf32(sides, outputs, nodes, off), *_fp16(sides, nodes)]
    unknown = [
        node
        for node in nodes
        if "unknown" in (node.a.explained_by, node.b.explained_by)
        and (node.difference is None or not node.difference.same or node.inputs_differ)
    ]
    if unknown or not nodes:
        labels = ", ".join(node.label for node in unknown[:_EXAMPLES])
        text = f"What rounding can do to these nodes is not known: {labels}{_count(unknown)}."
        return Expected.UNKNOWN, [*reasons, text if nodes else "No node could be compared."]
    rounded = [node for node in nodes if node.difference is not None and not node.difference.same]
    if not rounded:
        within, more = whole()
        return Expected.YES if within else Expected.UNKNOWN, [*reasons, *more]
    longest = max(rounded, key=lambda node: node.length or 0)
    text = f"All {len(nodes)} nodes are within what rounding allows, given the inputs that each had"
    if longest.length and longest.length > 1:
        text += f"; the longest sum has {longest.length} terms ({longest.label})"
    reasons.append(f"{text}.")
    return Expected.YES, reasons


def _tf32(
    sides: Sequence[tuple[str, str]],
    outputs: Sequence[OutputComparison],
    nodes: Sequence[NodeComparison],
    off: Comparison | None,
) -> list[str]:
    found = []
    for number, (name, text) in enumerate(sides):
        reached = [(node, rounding) for node, rounding in _side(nodes, number) if rounding.explained_by[:4] == "tf32"]
        if not reached:
            continue
        node, rounding = max(reached, key=lambda pair: pair[1].error or 0)
        line = f"TF32 on {name} ({text}) explains {counted(len(reached), 'node')}: "
        line += f"{node.label} is off by {rounding.error:.3g}"
        if rounding.shift is not None and rounding.rest is not None:
            line += (
                f", of which rounding its operands to TF32 makes {rounding.shift:.3g} and leaves {rounding.rest:.3g}"
            )
        found.append(f"{line} (products in fp32 are not that far off; in TF32 {rounding.limit:.3g} is allowed).")
    exact = {output.name: output.difference for output in off.outputs} if off is not None else {}
    for output in outputs:
        full, rest = output.difference, exact.get(output.name)
        if off is None or full is None or rest is None or full.max_abs is None or rest.max_abs is None:
            continue
        remaining = "nothing remains" if rest.same else f"{rest.max_abs:.2g} remains, {_JUDGED[off.expected]}"
        found.append(f"{output.name}: {full.max_abs:.2g} apart; with TF32 off {remaining}.")
    return found


def _fp16(sides: Sequence[tuple[str, str]], nodes: Sequence[NodeComparison]) -> list[str]:
    found = []
    for number, (name, text) in enumerate(sides):
        reached = [node for node, rounding in _side(nodes, number) if rounding.explained_by == "fp16"]
        if reached:
            found.append(
                f"Sums in fp16 on {name} ({text}) explain {counted(len(reached), 'node')}, e.g. {reached[0].label}."
            )
    return found


def _side(nodes: Sequence[NodeComparison], number: int) -> list[tuple[NodeComparison, Rounding]]:
    return [(node, (node.a, node.b)[number]) for node in nodes]


def _more(texts: Sequence[str]) -> list[str]:
    return [f"And {len(texts) - _EXAMPLES} more."] if len(texts) > _EXAMPLES else []


def _count(nodes: Sequence[NodeComparison]) -> str:
    return f" and {len(nodes) - _EXAMPLES} more" if len(nodes) > _EXAMPLES else ""
