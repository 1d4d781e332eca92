"""What placed nodes cost: their kernels' time and the copies between devices, from ONNX Runtime's profile."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

_WARM_UP = 2
_COPIES = ("MemcpyToHost", "MemcpyFromHost")


@dataclass(frozen=True, slots=True)
class NodeCost:
    """One part of a run, median over the measured runs."""

    name: str
    """A node's name as it runs, or ``copies`` for all copies between devices together."""
    milliseconds: float


def measure(
    model: bytes, options: Any, providers: list[tuple[str, dict[str, str]]], feed: Mapping[str, Any], runs: int
) -> tuple[NodeCost, ...]:
    """Return what each node of a model costs in a session of its own that profiles.

    Args:
        model: serialized.
        options: session options to use up: profiling is switched on in them.
        providers: with their options.
        feed: inputs by name.
        runs: how many runs to measure, after two that are not.

    Raises:
        Exception: whatever ONNX Runtime raises.
    """
    with tempfile.TemporaryDirectory(prefix="ortlock_profile_") as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "run")
        session = onnxruntime.InferenceSession(model, options, providers=providers)
        for _ in range(_WARM_UP + runs):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: dict[tuple[int, str], float] = defaultdict(float)
    ends = [event["ts"] + event["dur"] for event in events if event.get("name") == "model_run"]
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        number = sum(end <= event["ts"] for end in ends)
        if number < _WARM_UP:
            continue
        operator = event.get("args", {}).get("op_name", "")
        name = "copies" if operator in _COPIES else event["name"].removesuffix("_kernel_time")
        spent[number, name] += event["dur"] / 1000
    totals: dict[str, list[float]] = defaultdict(list)
    for (_, name), milliseconds in spent.items():
        totals[name].append(milliseconds)
    return tuple(NodeCost(name, round(statistics.median(values), 4)) for name, values in totals.items())
