"""What ``verify`` and ``localise`` find: differences in stock, the node where they begin, and none in strict.

    python benchmarks/verify_evidence.py [--provider cuda|cpu] [--parts PART ...] [--models FILE ...] [--html DIR]
                                         [--quick] [--memory-seconds N] [--output FILE]

- ``observe``: models whose bits vary, run until that is seen; the node that is named.
- ``strict``: the same and two nets under every stress, 1,000 runs a model over all of them.
- ``settings``: a setting that must not matter and does.
- ``memory``: twelve threads, a session with little memory, through ``ortlock verify`` in processes of their own.
- ``localise``: one node whose bits vary among 300.
- ``ocr``: recognition models (``rec`` in the file's name) and others, detection, in strict under every stress.

The result file is written after every part. ``--html`` also writes the reports as pages.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import verify_parts
from common import RESULTS, note, stamp, table, write
from verify_parts import CPU, CUDA, Row, Settings, SkippedError

PARTS: dict[str, Callable[[Settings], list[Row]]] = {
    "observe": verify_parts.observe,
    "strict": verify_parts.strict,
    "settings": verify_parts.settings_that_must_not_matter,
    "memory": verify_parts.memory,
    "localise": verify_parts.localise,
    "ocr": verify_parts.ocr,
}


HIDDEN = ("not_run", "skipped", "note", "evidence_note", "op_type", "command", "shapes", "notes", "seconds_by_stress")
"""Said below the table, or in the result file alone."""


def show(part: str, rows: Sequence[Row]) -> None:
    """Print the rows of a part."""
    measured = [row for row in rows if "skipped" not in row]
    names = [name for name in dict.fromkeys(key for row in measured for key in row) if name not in HIDDEN]
    if measured:
        header = [name.replace("_", " ") for name in names]
        table(part, header, [[_cell(row.get(name)) for name in names] for row in measured])
    for row in rows:
        said = {name: row.get(name) for name in ("skipped", "note", "evidence_note")}
        said |= {f"{name} was not run": why for name, why in row.get("not_run", {}).items()}
        for name, text in said.items():
            if text:
                print(f"{row['case']}: {name}: {text}")


def _cell(value: object) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else value


def main() -> int:
    """Run the parts, print tables, write JSON; 0 where everything is as expected, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--models", nargs="+", type=Path, default=[], help="PP-OCRv4 models, for the part ocr")
    parser.add_argument("--html", type=Path, help="folder for the reports")
    parser.add_argument("--quick", action="store_true", help="few runs, to check the script itself")
    parser.add_argument("--memory-seconds", type=float, default=45, help="for stock in the part memory; strict: half")
    parser.add_argument("--output", type=Path, help="default: verify_evidence.json, another on the CPU or quick")
    args = parser.parse_args()
    from ortlock import native

    cuda = args.provider == "cuda"
    if cuda:
        native.load_cuda_provider()
    if args.html is not None:
        args.html.mkdir(parents=True, exist_ok=True)
    kind = [word for word, there in (("cpu", not cuda), ("quick", args.quick)) if there]
    output = args.output or RESULTS / f"{'_'.join(['verify_evidence', *kind])}.json"
    settings = Settings(CUDA if cuda else CPU, args.quick, args.html, tuple(args.models), args.memory_seconds)
    result: dict[str, Any] = {"provider": settings.provider, "quick": args.quick, "parts": {}}
    for part in args.parts:
        started = time.perf_counter()
        entry: dict[str, Any] = {"rows": []}
        try:
            entry["rows"] = PARTS[part](settings)
            show(part, entry["rows"])
        except SkippedError as skipped:
            entry["skipped"] = str(skipped)
            note(f"{part} is skipped: {skipped}")
        except Exception as error:
            note(traceback.format_exc())
            entry["error"] = f"{type(error).__name__}: {error}"
        entry["seconds"] = round(time.perf_counter() - started, 1)
        result["parts"][part] = entry
        write(output, result | {"complete": part == args.parts[-1], **stamp(cuda=cuda)})
    entries = result["parts"].values()
    return int(any("error" in entry or any(not row.get("ok", True) for row in entry["rows"]) for entry in entries))


if __name__ == "__main__":
    raise SystemExit(main())
