"""What one intercepted call costs for an operation that the plan book knows, in nanoseconds, on 1, 2 and 8 threads.

    python benchmarks/hooks.py [--output FILE]

Needs no GPU: the calls that a frontend makes to name a plan are replayed through the hooks, beside a stand-in for
cuDNN. Medians of 101 samples of 20 plans a thread. Needs the extra ``test``, which brings CMake and Ninja.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import RESULTS, stamp, table, write

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.native.building import build


def main() -> None:
    """Build, measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "hooks.json")
    args = parser.parse_args()
    by_threads: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder)) / "hooks_bench"
        for _ in range(args.repetitions):
            lines = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
            for line in map(json.loads, lines):
                by_threads.setdefault(line["threads"], []).append(line["ns_per_call"])
    rows = [
        (count, f"{sorted(found)[len(found) // 2]:.1f}", f"{min(found):.1f} to {max(found):.1f}")
        for count, found in by_threads.items()
    ]
    table(f"Nanoseconds an intercepted call, {os.cpu_count()} CPUs", ("threads", "median", "range"), rows)
    write(args.output, {"ns_per_call": by_threads, "cpus": os.cpu_count(), **stamp(cuda=False)})


if __name__ == "__main__":
    main()
