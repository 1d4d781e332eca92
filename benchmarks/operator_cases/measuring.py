"""Runs cases in a process of its own and prints a JSON line for each case and setting, for operator_sweep.py."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from operator_cases.building import Array, Case
from ortlock import digest

# After these, every later call of the process fails.
_BROKEN = re.compile(
    r"CUDA (failure|error)[^0-9]{0,3}7\d\d|illegal memory|illegal instruction|misaligned|launch failure"
    r"|device-side assert|(CUDNN|CUBLAS)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)",
    re.IGNORECASE,
)
BROKEN_CODE = 70
_LONGEST_REASON = 300


class NotRunError(Exception):
    """The provider does not run the case."""


def difference(first: Array, other: Array, *, steps: int = 1) -> tuple[float | str | None, int | None]:
    """Return the largest absolute difference and the largest in units in the last place.

    Args:
        first: an output.
        other: the same output of another run.
        steps: how many units of the output's type one unit of the operator's is: bfloat16 is read as float32.
    """
    if first.shape != other.shape:
        return "shapes differ", None
    if first.dtype.kind not in "fiub" or not first.size:
        return None, None
    if first.dtype.kind != "f":
        return float(np.abs(first.astype(np.float64) - other.astype(np.float64)).max()), None
    missing = np.isnan(first), np.isnan(other)
    if not np.array_equal(*missing):
        return "NaN at other places", None
    kept = ~missing[0]
    a, b = first[kept], other[kept]
    if not a.size:
        return 0.0, 0
    with np.errstate(all="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a.astype(np.float64) - b.astype(np.float64)))
    largest = float(apart.max())
    ulp = int(np.abs(_ordered(a) - _ordered(b)).max()) // steps
    return (largest if np.isfinite(largest) else "infinite"), ulp


def _ordered(values: Array) -> NDArray[Any]:
    """Return whole numbers in the order of the floats, one apart for neighbours; Python's where 64 bits overflow."""
    width = values.dtype.itemsize
    raw = np.ascontiguousarray(values).view(f"i{width}").astype(object if width == 8 else np.int64)
    lowest = -(1 << (8 * width - 1))
    return np.where(raw >= 0, raw, lowest - raw)


def tensors(outputs: Sequence[Any]) -> list[Array]:
    """Return the arrays among outputs, those in sequences too."""
    found: list[Array] = []
    for output in outputs:
        if isinstance(output, list):
            found += tensors(output)
        elif output is not None:
            found.append(np.asarray(output))
    return found


def assignment(session: Any) -> dict[str, list[str]] | None:
    """Return the operators that each provider runs; None where this version of ONNX Runtime does not tell."""
    read = getattr(session, "get_provider_graph_assignment_info", None)
    if read is None:
        return None
    found: dict[str, set[str]] = {}
    try:
        for subgraph in read():
            names = {f"{node.domain or ''}:{node.op_type}".lstrip(":") for node in subgraph.get_nodes()}
            found.setdefault(subgraph.ep_name, set()).update(name.removeprefix("ai.onnx:") for name in names)
    except RuntimeError:
        return None
    return {provider: sorted(names) for provider, names in found.items()}


class Measurer:
    """Measures one case after another."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.provider: str = asked["provider"]
        self.sessions: int = asked["sessions"]
        self.runs: int = asked["runs"]
        self.folder = Path(asked["folder"])
        self.optimized: bool = asked["optimized"]
        self.given: dict[str, str] = asked["provider_options"]
        self._saved = self.folder / f"optimized_{os.getpid()}.onnx"
        self._built: tuple[str, bytes, dict[str, Array]] | None = None

    def measure(self, case: Case, setting: str) -> dict[str, Any]:
        """Return what a case gave under a setting."""
        result: dict[str, Any] = {"status": "ran", "digests": [], "max_abs": None, "max_ulp": None, "sessions": 0}
        try:
            data, feeds = self._build(case)
            for _ in range(self.sessions):
                session = self._session(data, setting)
                result |= self._place(case, session, data, setting)
                result["sessions"] += 1
                for _ in range(self.runs):
                    outputs = session.run(None, feeds)
                    self._add(case, setting, result, tensors(outputs), digest(outputs))
                del session
        except NotRunError as why:
            return result | {"status": "not run", "reason": _first_line(str(why))}
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            status = "crashed" if _BROKEN.search(text) else "not run"
            # Some runs and then none is no refusal.
            if status == "not run" and result["digests"]:
                status = "failed"
            return result | {"status": status, "reason": _first_line(text)}
        return result

    def _build(self, case: Case) -> tuple[bytes, dict[str, Array]]:
        if self._built is None or self._built[0] != case.name:
            try:
                self._built = (case.name, *case.build())
            except Exception as error:
                raise NotRunError(f"the model cannot be made: {type(error).__name__}: {error}") from error
        return self._built[1:]

    def _session(self, data: bytes, setting: str, entries: Mapping[str, str] | None = None) -> Any:
        options = onnxruntime.SessionOptions()
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if self.optimized else levels.ORT_DISABLE_ALL
        options.log_severity_level = 4
        if self.provider == "CUDAExecutionProvider":
            # Several workers: no pool of threads for each, which CUDA's kernels do not use.
            options.intra_op_num_threads = 1
        options.use_deterministic_compute = setting == "deterministic"
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in (entries or {}).items():
            options.add_session_config_entry(key, value)
        if self.optimized:
            options.optimized_model_filepath = str(self._saved)
        session = onnxruntime.InferenceSession(
            data, options, providers=[(self.provider, self.given)], enable_fallback=0
        )
        if session.get_providers()[0] != self.provider:
            raise NotRunError(f"{self.provider} is not there")
        return session

    def _place(self, case: Case, session: Any, data: bytes, setting: str) -> dict[str, Any]:
        """Return which provider runs the case's operator, and what else runs."""
        nodes = self._optimized_nodes() if self.optimized else assignment(session)
        name = f"{case.domain}:{case.operator}".lstrip(":")
        if nodes is None:
            try:
                self._session(data, setting, {"session.disable_cpu_ep_fallback": "1"})
            except Exception:
                return {"provider": "CPUExecutionProvider"}
            return {"provider": self.provider}
        holders = [provider for provider, names in nodes.items() if name in names]
        if holders:
            return {"provider": holders[0], "nodes": nodes}
        # Replaced by the nodes of its function.
        cpu = "CPUExecutionProvider"
        return {"provider": cpu if cpu in nodes else self.provider, "nodes": nodes, "as_function": True}

    def _optimized_nodes(self) -> dict[str, list[str]]:
        """Return the operators after all of ONNX Runtime's optimizations, some of which its record does not show.

        In the saved model nothing tells the providers, so that this serves the CPU provider alone.
        """
        import onnx

        nodes = onnx.load_model(self._saved).graph.node
        return {self.provider: sorted({f"{node.domain}:{node.op_type}".lstrip(":") for node in nodes})}

    def _add(self, case: Case, setting: str, result: dict[str, Any], outputs: list[Array], found: str) -> None:
        """Add a run, compared with the very first one, which a file keeps for the second phase."""
        path = self.folder / f"{hashlib.sha256(f'{case.name}/{setting}'.encode()).hexdigest()}.npz"
        if not path.exists():
            numeric = [output for output in outputs if output.dtype != object]
            np.savez(path, digest=np.array(found), *numeric)  # noqa: B026
        if found not in result["digests"]:
            with np.load(path) as kept:
                if str(kept["digest"]) != found:
                    self._compare(result, [kept[name] for name in kept.files if name != "digest"], outputs, case)
        result["digests"].append(found)

    def _compare(self, result: dict[str, Any], first: list[Array], outputs: list[Array], case: Case) -> None:
        numeric = [output for output in outputs if output.dtype != object]
        for a, b in zip(first, numeric, strict=False):
            largest, ulp = difference(a, b, steps=65536 if case.dtype == "bfloat16" else 1)
            result["max_abs"] = larger(result["max_abs"], largest)
            result["max_ulp"] = larger(result["max_ulp"], ulp)


def larger(one: Any, other: Any) -> Any:
    """Return the larger difference: words are worse than numbers, numbers than None."""
    return max(one, other, key=lambda value: (isinstance(value, str), value is not None, value or 0))


def _first_line(text: str) -> str:
    """Return a message without line breaks and folders, not too long."""
    text = re.sub(r"(/[\w.+-]+)+/", "", " ".join(text.split()))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


def main() -> int:
    """Measure what standard input asks for.

    It is ``{"provider", "sessions", "runs", "folder", "optimized", "provider_options", "units": [[name, setting]]}``.
    Prints ``{"begins": [name, setting]}`` and the result as a line each.
    """
    from operator_cases import all_cases

    asked = json.load(sys.stdin)
    # ONNX Runtime's own messages must not get among the lines.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    if asked["provider"] == "CUDAExecutionProvider":
        with contextlib.suppress(Exception):
            onnxruntime.preload_dlls()
    cases = {case.name: case for case in all_cases()}
    measurer = Measurer(asked)
    for name, setting in asked["units"]:
        print(json.dumps({"begins": [name, setting]}), file=lines)
        result = measurer.measure(cases[name], setting)
        print(json.dumps({"unit": [name, setting], "result": result}), file=lines)
        if result["status"] == "crashed":
            # A process whose CUDA context is broken can hang while it ends.
            lines.flush()
            os._exit(BROKEN_CODE)
    return 0
