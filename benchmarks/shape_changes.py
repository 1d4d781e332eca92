"""Memory and descriptors over very many changes of shape: flat once the plan book has reached its bound.

    python benchmarks/shape_changes.py [--provider cuda|cpu] [--changes N] [--shapes N] [--output FILE]

One session runs one Conv with shapes drawn at random. Measured every tenth of the way: resident memory of the
process, device memory in use, what the plan book holds, and the descriptors that the provider has made and not
destroyed. Every result is compared with that of the shape's first run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from common import RESULTS, note, stamp, table, write

_COLUMNS = 100


def resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def device_mb() -> float | None:
    """Return the memory in use on the device in MB; None where CuPy cannot tell."""
    try:
        import cupy

        free, total = cupy.cuda.runtime.memGetInfo()
    except Exception:
        return None
    return float(total - free) / 1e6


def measure(provider: str, changes: int, shapes: int) -> dict[str, Any]:
    """Run the changes and return the samples."""
    from ortlock import ReproducibleSession, digest, models, native

    session = ReproducibleSession(models.conv_net(1), providers=[provider], mode="pin")
    sizes = [(1, 3, 8 + 2 * (index // _COLUMNS), 8 + 2 * (index % _COLUMNS)) for index in range(shapes)]
    random = np.random.default_rng(0)
    largest: Any = models.seeded_input((1, 3, max(size[2] for size in sizes), max(size[3] for size in sizes)))
    first: dict[int, str] = {}
    samples, wrong = [], 0
    started = time.perf_counter()
    for number in range(changes + 1):
        if number % max(changes // 10, 1) == 0:
            calls = native.state().calls
            live = calls.get("cudnnBackendCreateDescriptor", 0) - calls.get("cudnnBackendDestroyDescriptor", 0)
            samples.append(
                {
                    "changes": number,
                    "seconds": time.perf_counter() - started,
                    "resident_mb": resident_mb(),
                    "device_mb": device_mb(),
                    "shapes_seen": len(first),
                    "descriptors_of_the_provider": live,
                    **asdict(native.book()),
                }
            )
            note(f"{number} changes, {samples[-1]['resident_mb']:.0f} MB, {samples[-1]['plans']} plans")
        index = int(random.integers(shapes))
        height, width = sizes[index][2:]
        found = digest(session.run(None, {"x": largest[:, :, :height, :width]}))
        wrong += first.setdefault(index, found) != found
    return {"samples": samples, "wrong": wrong, "verdict": str(session.report().verdict)}


def main() -> int:
    """Measure, print a table, write JSON; 1 if memory or descriptors went on growing, or a result changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--shapes", type=int, default=5_000)
    parser.add_argument("--output", type=Path, default=RESULTS / "shape_changes.json")
    args = parser.parse_args()
    cuda = args.provider == "cuda"
    result = measure("CUDAExecutionProvider" if cuda else "CPUExecutionProvider", args.changes, args.shapes)
    samples = result["samples"]
    names = ("changes", "shapes_seen", "resident_mb", "device_mb", "plans", "evicted", "descriptors", "queries")
    rows = [[f"{s[name]:.1f}" if isinstance(s[name], float) else s[name] for name in names] for s in samples]
    table(f"{args.changes} changes over {args.shapes} shapes", names, rows)
    half, last = samples[len(samples) // 2], samples[-1]
    growth = last["resident_mb"] / half["resident_mb"] - 1
    print(f"second half: resident memory {growth:+.1%}, descriptors {last['descriptors'] - half['descriptors']:+d}")
    print(f"results that differ from the shape's first: {result['wrong']}")
    write(args.output, {**result, "growth_second_half": growth, **stamp(cuda=cuda)})
    return int(result["wrong"] > 0 or growth > 0.02 or last["descriptors"] > half["descriptors"] + 100)


if __name__ == "__main__":
    sys.exit(main())
