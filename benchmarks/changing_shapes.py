"""Input sizes that change at every run: stock plans every convolution again, ortlock plans each once.

    python benchmarks/changing_shapes.py [--provider cuda|cpu] [--net NAME ...] [--output FILE]

Each side runs in processes of its own, one a net, in several repetitions. A pass runs every size once, in turn. Times
are milliseconds a run: of the first pass the mean, of later passes the median and the interquartile range over single
runs. ``one size`` is the steady state with a size that stays, the mean over the sizes of its median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import RESULTS, note, stamp, table, write

NETS: dict[str, tuple[str, dict[str, Any], list[list[int]]]] = {
    "10 convolutions": ("conv_net", {"depth": 10}, [[1, 3, size, size] for size in (224, 192, 160, 256)]),
    "residual net": (
        "residual_net",
        {"size": "size"},
        [[1, 3, size, size] for size in (224, 192, 160, 256, 208, 176, 144, 240)],
    ),
    "transposed decoder": ("decoder", {}, [[1, 128, size, size] for size in (14, 16, 20, 28)]),
}
SIDES = {
    "stock EXHAUSTIVE": ("stock", "EXHAUSTIVE"),
    "stock HEURISTIC": ("stock", "HEURISTIC"),
    "ortlock": ("pin", "EXHAUSTIVE"),
    "CPU provider": ("cpu", ""),
}


def measure(net: str, side: str, passes: int, steady: int) -> dict[str, Any]:
    """Measure one side in this process."""
    import onnxruntime

    from ortlock import ReproducibleSession, digest, models

    build, arguments, shapes = NETS[net]
    kind, search = SIDES[side]
    provider: list[Any] = [("CUDAExecutionProvider", {"cudnn_conv_algo_search": search})]
    if kind == "cpu":
        provider = ["CPUExecutionProvider"]
    data = getattr(models, build)(**arguments)
    make: Any = ReproducibleSession if kind == "pin" else onnxruntime.InferenceSession
    # What only the first session of a process pays is not what is measured here.
    warm = make(models.conv_net(1, size=8), providers=provider)
    warm.run(None, {"x": models.seeded_input([1, 3, 8, 8])})

    feeds = [{"x": models.seeded_input(shape)} for shape in shapes]
    session = make(data, providers=provider)
    times: list[list[float]] = []
    digests: list[list[str]] = []
    for number in range(passes):
        order = range(len(feeds)) if number % 2 == 0 else range(len(feeds) - 1, -1, -1)
        durations, seen = [], [""] * len(feeds)
        for index in order:
            started = time.perf_counter()
            outputs = session.run(None, feeds[index])
            durations.append((time.perf_counter() - started) * 1e3)
            seen[index] = digest(outputs)
        times.append(durations)
        digests.append(seen)
    steady_times = []
    for feed in feeds:
        session.run(None, feed)
        own = []
        for _ in range(steady):
            started = time.perf_counter()
            session.run(None, feed)
            own.append((time.perf_counter() - started) * 1e3)
        steady_times.append(statistics.median(own))
    result: dict[str, Any] = {"passes": times, "steady": steady_times, "digests": digests}
    if kind == "pin":
        report = session.report()
        result |= {"verdict": str(report.verdict), "calls": report.calls, "executions": report.executions}
    return result


def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the repetitions of one side."""
    first = [statistics.mean(result["passes"][0]) for result in results]
    later = [value for result in results for durations in result["passes"][1:] for value in durations]
    steady = [statistics.mean(result["steady"]) for result in results]
    lower, _, upper = statistics.quantiles(later, n=4)
    outputs = zip(*(seen for result in results for seen in result["digests"]), strict=True)
    return {
        "first_ms": statistics.median(first),
        "later_ms": statistics.median(later),
        "later_iqr_ms": upper - lower,
        "steady_ms": statistics.median(steady),
        "distinct": max(len(set(values)) for values in outputs),
    }


def main() -> None:
    """Run every side, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--net", action="append", choices=sorted(NETS))
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--steady", type=int, default=20, help="runs of each size for the steady state")
    parser.add_argument("--repetitions", type=int, default=3, help="processes a side")
    parser.add_argument("--output", type=Path, default=RESULTS / "changing_shapes.json")
    parser.add_argument("--worker", nargs=2, metavar=("NET", "SIDE"), help="measure one side and print JSON")
    args = parser.parse_args()
    if args.worker:
        net, side = args.worker
        print(json.dumps(measure(net, side, args.passes, args.steady)))
        return

    sides = [side for side in SIDES if args.provider == "cuda" or side == "CPU provider"]
    summary: dict[str, Any] = {}
    for net in args.net or NETS:
        results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for number in range(args.repetitions):
            # Interleaved, in alternating order.
            for side in sides if number % 2 == 0 else sides[::-1]:
                note(f"{net}: {side}")
                command = [sys.executable, __file__, "--worker", net, side]
                command += ["--passes", str(args.passes), "--steady", str(args.steady)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise SystemExit(done.stderr)
                results[side].append(json.loads(done.stdout.splitlines()[-1]))
        summary[net] = {side: summarize(found) for side, found in results.items()}
        summary[net]["sizes"] = len(NETS[net][2])
        if "ortlock" in results:
            summary[net]["ortlock"]["verdict"] = results["ortlock"][0]["verdict"]
    rows = []
    for net, figures in summary.items():
        base = figures.get("stock EXHAUSTIVE", figures[sides[0]])["later_ms"]
        for side in sides:
            f = figures[side]
            rows.append(
                (
                    f"{net}, {figures['sizes']} sizes",
                    side,
                    f"{f['first_ms']:.2f}",
                    f"{f['later_ms']:.2f} ({f['later_iqr_ms']:.2f})",
                    f"{f['steady_ms']:.2f}",
                    f"{base / f['later_ms']:.1f}",
                    f["distinct"],
                )
            )
    header = ("net", "side", "first pass ms", "later passes ms (iqr)", "one size ms", "times faster", "distinct")
    table("Changing input sizes, milliseconds a run", header, rows)
    if args.provider == "cuda":
        from ortlock import native

        native.load_cuda_provider()
    write(
        args.output,
        {"nets": summary, "sizes": {k: v[2] for k, v in NETS.items()}, **stamp(cuda=args.provider == "cuda")},
    )


if __name__ == "__main__":
    main()
