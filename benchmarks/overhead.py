"""What ``ReproducibleSession.run`` costs above ``InferenceSession.run`` on the smallest model there is.

    python benchmarks/overhead.py [--provider cpu|cuda] [--output FILE]

Rounds of many calls, the sides interleaved and in alternating order; of each round the median call counts, and of the
rounds the median and the interquartile range. The overhead is the median over the rounds of the difference to stock in
the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime

from common import RESULTS, note, stamp, table, write
from ortlock import ReproducibleSession, models, native

SIDES = ("stock", "observe", "pin", "strict", "pin, one lane")
"""On CUDA pin and strict have lanes in any case; on the CPU only where they are asked for."""


def median_ns(run: Callable[..., Any], feed: dict[str, Any], calls: int) -> float:
    """Return the median nanoseconds of one call."""
    times = []
    clock = time.perf_counter_ns
    for _ in range(calls):
        started = clock()
        run(None, feed)
        times.append(clock() - started)
    return statistics.median(times)


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=2000, help="calls a round and side")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/overhead_<provider>.json")
    args = parser.parse_args()

    name = "CPUExecutionProvider" if args.provider == "cpu" else "CUDAExecutionProvider"
    if args.provider == "cuda":
        native.load_cuda_provider()
    model, feed = models.trivial(), {"x": models.seeded_input([1])}
    sessions: dict[str, Any] = {side: ReproducibleSession(model, providers=[name], mode=side) for side in SIDES[1:4]}
    sessions[SIDES[4]] = ReproducibleSession(model, providers=[name], mode="pin", lanes=1)
    sessions["stock"] = onnxruntime.InferenceSession(model, providers=[name])
    for session in sessions.values():
        median_ns(session.run, feed, args.calls)

    rounds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(args.rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            rounds[side].append(median_ns(sessions[side].run, feed, args.calls))
        note(f"round {number + 1} of {args.rounds}")

    figures = {}
    for side in SIDES:
        above = [own - base for own, base in zip(rounds[side], rounds["stock"], strict=True)]
        lower, _, upper = statistics.quantiles(above, n=4)
        figures[side] = {
            "ns": statistics.median(rounds[side]),
            "above_stock_ns": statistics.median(above),
            "above_stock_quartiles_ns": [lower, upper],
        }
    table(
        f"run() of a trivial model on {name}, ONNX Runtime {onnxruntime.__version__}",
        ("side", "median", "above stock", "quartiles"),
        [
            (side, f"{f['ns']:.0f} ns", f"{f['above_stock_ns']:.0f} ns", f"{f['above_stock_quartiles_ns']}")
            for side, f in figures.items()
        ],
    )
    result = {
        "onnxruntime": onnxruntime.__version__,
        "provider": name,
        "rounds": args.rounds,
        "calls": args.calls,
        "sides": figures,
        **stamp(cuda=args.provider == "cuda"),
    }
    write(args.output or RESULTS / f"overhead_{args.provider}.json", result)


if __name__ == "__main__":
    main()
