"""Condenses the results of operator_sweep.py into src/ortlock/operators/table/measured.json, which the table cites.

    python benchmarks/operator_evidence.py [--check]

Each case counts for the row of the table that its node falls under. Run it after a sweep, and after a change of the
table's conditions. ``--check`` writes nothing and ends with status 1 where the file is not what it would be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common import RESULTS, note
from operator_cases import Case, all_cases
from operator_cases.building import Draw
from ortlock.operators.conditions import CONDITIONS, NodeFacts
from ortlock.operators.measurements import MEASURED, Counted, Measured, Measurement, Source
from ortlock.operators.rows import PROVIDERS, rows

# Of an operator that several sweeps measured on one provider, the first counts.
SWEEPS = (
    "operator_sweep_cuda_ort1.31.1.json",
    "operator_sweep_cuda_nhwc_ort1.31.1.json",
    "operator_sweep_cpu_ort1.32.0.json",
    "operator_sweep_cpu_optimized_ort1.32.0.json",
)
_SHORT = {provider: short for short, provider in PROVIDERS.items()}
_NHWC = "com.ms.internal.nhwc"
_TRAINING_INPUT = {"Dropout": 2, "BitmaskDropout": 2}
_BIAS_INPUT = {"FastGelu": 1}

Key = tuple[str, str, str]


def condense(folder: Path) -> Measured:
    """Return what the sweeps of a folder measured.

    Raises:
        KeyError: a case of a sweep that is no longer there.
    """
    cases = {case.name: case for case in all_cases()}
    sources: list[Source] = []
    measured: list[Measurement] = []
    known: set[Key] = set()
    for number, file in enumerate(SWEEPS):
        sweep = json.loads((folder / file).read_text())
        sources.append(_source(file, sweep))
        groups: dict[tuple[Key, str | None], list[Mapping[str, Any]]] = {}
        for entry in sweep["cases"]:
            if entry["settings"]["stock"]["status"] not in ("same", "differs"):
                continue
            for key in _operators(entry, sweep):
                if key not in known:
                    groups.setdefault((key, _condition(key, cases[entry["case"]])), []).append(entry)
        known |= {key for key, _ in groups}
        measured += [_measurement(number, key, when, entries) for (key, when), entries in groups.items()]
    measured.sort(key=lambda one: (one.provider, one.domain, one.operator, one.when or ""))
    return Measured(tuple(sources), tuple(measured))


def _source(file: str, sweep: Mapping[str, Any]) -> Source:
    surroundings = sweep["environment"]
    provider = _SHORT[sweep["provider"]]
    processor = surroundings["cpu"]
    device = (
        surroundings["gpu"]["name"] if provider == "cuda" else f"{processor['model']}, {processor['logical']} cores"
    )
    return Source(file, provider, device, sweep["onnxruntime"], sweep["measured"][:10])


def _operators(entry: Mapping[str, Any], sweep: Mapping[str, Any]) -> Iterator[Key]:
    """Yield the operators that a case measures: its own; of a sweep with optimizations, those that it turned into.

    Of a sweep with ``prefer_nhwc`` only those that this brings.
    """
    provider = _SHORT[sweep["provider"]]
    if not sweep.get("optimized") and not sweep.get("nhwc"):
        yield provider, entry["domain"], entry["operator"]
        return
    for name in (entry["nodes"] or {}).get(sweep["provider"], ()):
        domain, _, operator = name.rpartition(":")
        if sweep.get("optimized") or domain == _NHWC:
            yield provider, domain, operator


def _condition(key: Key, case: Case) -> str | None:
    """Return the condition of the row that a case's node falls under."""
    facts = NodeFacts(_attributes(case), {case.dtype})
    for row in rows().get(key, ()):
        if row.when is None or CONDITIONS[row.when](facts):
            return row.when
    return None


def _attributes(case: Case) -> dict[str, object]:
    """Return a case's attributes and what stands for inputs, as a session's nodes have them."""
    found: dict[str, object] = {name: value for name, value in case.attributes.items() if value is not None}
    position = _TRAINING_INPUT.get(case.operator)
    if position is not None and len(case.inputs) > position and (spec := case.inputs[position]) is not None:
        found["training_mode"] = bool(spec.make(Draw(case.name, case.dtype))) if spec.constant else None
    position = _BIAS_INPUT.get(case.operator)
    if position is not None:
        found["bias"] = len(case.inputs) > position
    return found


def _measurement(source: int, key: Key, when: str | None, entries: Iterable[Mapping[str, Any]]) -> Measurement:
    members = list(entries)
    found = {setting: [one["settings"][setting] for one in members] for setting in ("stock", "deterministic")}
    differing = [
        one["case"] for one in members if any(each["status"] == "differs" for each in one["settings"].values())
    ]
    return Measurement(
        source=source,
        provider=key[0],
        domain=key[1],
        operator=key[2],
        when=when,
        cases=len(members),
        runs=min(one["runs"] for results in found.values() for one in results),
        types=tuple(sorted({one["own_type"] for one in members})),
        stock=_counted(found["stock"]),
        deterministic=_counted(found["deterministic"]),
        differing=tuple(differing),
    )


def _counted(results: list[Mapping[str, Any]]) -> Counted:
    return Counted(max(one["distinct"] for one in results), sum(one["status"] == "differs" for one in results))


def text(measured: Measured) -> str:
    """Return the file's text: one line an operator, so that differences can be read."""
    import msgspec

    raw = msgspec.to_builtins(measured)
    parts = []
    for name, members in raw.items():
        lines = ",\n".join(f"  {json.dumps(member)}" for member in members)
        parts.append(f' "{name}": [\n{lines}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the file is up to date")
    args = parser.parse_args()
    fresh = text(condense(RESULTS))
    if args.check:
        same = MEASURED.is_file() and MEASURED.read_text() == fresh
        note(f"{MEASURED.name} is {'up to date' if same else 'out of date: run benchmarks/operator_evidence.py'}")
        return 0 if same else 1
    MEASURED.write_text(fresh)
    note(f"wrote {MEASURED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
