"""Named conditions of the operator table: what of a node, beside its operator, decides how its outputs repeat.

A condition says whether something *may* be so: what is not known counts as the worse case. Rows of the table are tried
in order and the worse ones come first, so that a node of which nothing is known gets the worst row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

HALF_TYPES: Final = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one node."""

    attributes: Mapping[str, object] | None
    """Its attributes and what stands for inputs (see ``operators.graph.Node``); None where they are not known."""
    types: Collection[str] | None
    """The floating-point types that its model uses, such as ``float16``; None where they are not known."""

    def may_be(self, *types: str) -> bool:
        """Return whether the node may compute in one of the types."""
        return self.types is None or any(kind in self.types for kind in types)


Condition = Callable[[NodeFacts], bool]


def _adds_or_multiplies(facts: NodeFacts) -> bool:
    return facts.attributes is None or facts.attributes.get("reduction", "none") in ("add", "mul")


def _overwrites(facts: NodeFacts) -> bool:
    return facts.attributes is None or facts.attributes.get("reduction", "none") == "none"


def _equation_unknown(facts: NodeFacts) -> bool:
    return facts.attributes is None or not isinstance(facts.attributes.get("equation"), str)


def _sums_one_operand(facts: NodeFacts) -> bool:
    """Return whether an Einsum may drop a label that only one operand has."""
    if facts.attributes is None or not isinstance(equation := facts.attributes.get("equation"), str):
        return True
    operands, arrow, output = equation.replace(" ", "").replace(".", "").partition("->")
    terms = [set(term) for term in operands.split(",")]
    if not arrow:
        return False  # the output then has every label that comes once
    return any(sum(label in term for term in terms) == 1 for label in set().union(*terms) - set(output))


def _training(facts: NodeFacts) -> bool:
    return facts.attributes is not None and bool(facts.attributes.get("training_mode"))


def _maybe_training(facts: NodeFacts) -> bool:
    return facts.attributes is None or facts.attributes.get("training_mode", False) is None


def _tanh_in_half(facts: NodeFacts) -> bool:
    approximate = "tanh" if facts.attributes is None else facts.attributes.get("approximate", "none")
    return approximate == "tanh" and facts.may_be(*HALF_TYPES)


def _float16_without_bias(facts: NodeFacts) -> bool:
    bias = facts.attributes is not None and facts.attributes.get("bias") is True
    return not bias and facts.may_be("float16")


def _half(facts: NodeFacts) -> bool:
    return facts.may_be(*HALF_TYPES)


def _prepacked(facts: NodeFacts) -> bool:
    return facts.attributes is not None and bool(facts.attributes.get("weight_prepacked", 0))


CONDITIONS: Final[Mapping[str, Condition]] = {
    "reduction is add or mul": _adds_or_multiplies,
    "reduction is none": _overwrites,
    "the equation is not known": _equation_unknown,
    "a label of one operand alone is summed": _sums_one_operand,
    "training_mode is on": _training,
    "training_mode is not known": _maybe_training,
    "approximate is tanh, float16 or bfloat16": _tanh_in_half,
    "float16 without a bias": _float16_without_bias,
    "float16 or bfloat16": _half,
    "weight_prepacked is set": _prepacked,
}
