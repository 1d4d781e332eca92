"""Looking at the tensors of a graph over runs and sessions, in batches that fit a memory budget."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortlock.compare.metrics import Difference, difference
from ortlock.digest import digest
from ortlock.localise.graph import Graph, element_type, shapes_of
from ortlock.localise.runners import Maker, Runner

_COPIES = 3
"""Values of one tensor held at a time: the first run's, this run's, and what a comparison needs."""

_UNKNOWN_SHARE = 16
"""A tensor of unknown size is taken to need this part of the budget, until it has been seen."""

_NUMPY_NAMES = {"float": "float32", "double": "float64"}


@dataclass
class Seen:
    """What was seen of one tensor."""

    type: str
    shape: tuple[int, ...] = ()
    batch: int = 0
    """Tensors of one batch were looked at in the same runs."""
    digests: list[set[str]] = field(default_factory=list)
    """By side."""
    difference: Difference | None = None
    """The largest against the first run."""

    @property
    def distinct(self) -> int:
        return len(set().union(*self.digests))

    @property
    def differs(self) -> bool:
        return self.distinct > 1


@dataclass(frozen=True)
class Effort:
    """How hard to look."""

    runs: int
    sessions: int
    budget_bytes: int


class Observer:
    """Looks at tensors of one graph, run by one or two makers."""

    def __init__(self, graph: Graph, makers: Sequence[Maker], feed: Mapping[str, Any], effort: Effort) -> None:
        self._graph, self._makers, self._feed, self._effort = graph, makers, feed, effort
        self._shapes = shapes_of(feed)
        self._types, self._sizes = self._ask()
        self.batches = 0
        self.plans: tuple[Any, ...] = ()
        """Choices of cuDNN's that the sessions report."""

    def observable(self, name: str) -> bool:
        """Return whether a tensor can be an output: ONNX Runtime knows its type."""
        return not self._types or name in self._types

    def batched(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield the names in order, as many at a time as the memory budget allows, one at least."""
        batch: list[str] = []
        room = 0.0
        limit = self._effort.budget_bytes / _COPIES
        for name in names:
            size = self._sizes.get(name, limit / _UNKNOWN_SHARE)
            if batch and room + size > limit:
                yield batch
                batch, room = [], 0.0
            batch.append(name)
            room += size
        if batch:
            yield batch

    def look(self, names: Sequence[str]) -> dict[str, Seen]:
        """Run with these tensors as outputs, every side and session, and return what was seen.

        A batch that cannot be run is halved.

        Raises:
            Exception: a single tensor cannot be looked at; what ONNX Runtime raised.
        """
        try:
            return self._look(names)
        except (RuntimeError, MemoryError):
            if len(names) == 1:
                raise
        half = len(names) // 2
        return {**self.look(names[:half]), **self.look(names[half:])}

    def _look(self, names: Sequence[str]) -> dict[str, Seen]:
        self.batches += 1
        model = self._graph.exposing(names, self._shapes, self._types)
        seen: dict[str, Seen] = {}
        first: dict[str, Any] = {}
        for side, maker in enumerate(self._makers):
            for _ in range(self._effort.sessions):
                runner = maker.derived(model, optimised=False)
                for _ in range(self._effort.runs):
                    values = runner.run(None, self._feed)
                    self._add(side, names, values, seen, first)
                self._keep_plans(runner)
        return seen

    def _add(
        self, side: int, names: Sequence[str], values: Sequence[Any], seen: dict[str, Seen], first: dict[str, Any]
    ) -> None:
        for name, value in zip(names, values, strict=True):
            if name not in seen:
                shape = tuple(value.shape) if isinstance(value, np.ndarray) else ()
                element = element_type(self._types.get(name, ""))
                element = _NUMPY_NAMES.get(element, element) or _type_of(value)
                seen[name] = Seen(element, shape, self.batches, [set() for _ in self._makers])
                first[name] = value
                if isinstance(value, np.ndarray):
                    self._sizes[name] = value.nbytes
            known = seen[name]
            found = digest([value])
            new = not any(found in digests for digests in known.digests)
            known.digests[side].add(found)
            if new and known.differs and isinstance(value, np.ndarray) and isinstance(first[name], np.ndarray):
                measured = difference(first[name], value, bfloat16=known.type == "bfloat16")
                known.difference = _larger(known.difference, measured)

    def _keep_plans(self, runner: Runner) -> None:
        report: Callable[[], Any] | None = getattr(runner, "report", None)
        if report is not None and not self.plans:
            self.plans = tuple(plan for plan in report().plans if plan.status != "refused")

    def _ask(self) -> tuple[dict[str, str], dict[str, float]]:
        """Return the types and bytes of all tensors, as ONNX Runtime infers them for these inputs."""
        model = self._graph.exposing(self._graph.tensors, self._shapes)
        types, sizes = {}, {}
        runner = self._makers[0].derived(model, optimised=False)
        for value in runner.get_outputs():
            types[value.name] = value.type
            shape = value.shape
            if shape is not None and all(isinstance(size, int) for size in shape):
                sizes[value.name] = float(math.prod(shape) * _item_bytes(value.type))
        return types, sizes


def _larger(known: Difference | None, new: Difference) -> Difference:
    if known is None:
        return new
    return max(known, new, key=lambda found: (found.mismatch is not None, found.max_ulp or 0, found.max_abs or 0.0))


def _item_bytes(text: str) -> int:
    element = element_type(text)
    if element == "string":
        return 64
    width = re.search(r"(\d+)", element.replace("bfloat16", "float32"))
    if element.startswith("float8") or element == "bool":
        return 4 if element != "bool" else 1
    if element == "double":
        return 8
    return int(width[1]) // 8 if width else 4


def _type_of(value: Any) -> str:
    return str(value.dtype) if isinstance(value, np.ndarray) else type(value).__name__
