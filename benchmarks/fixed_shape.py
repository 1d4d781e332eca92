"""One shape that stays: stock against ortlock in pin and strict mode, in one process.

    python benchmarks/fixed_shape.py [--provider cuda|cpu] [--model FILE --shape 1x3x48x320] [--output FILE]

Rounds of many runs, the sides interleaved and in alternating order; of each round the median run counts. Of the rounds
the median and the interquartile range are shown, and the median ratio to stock in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import onnxruntime

from common import RESULTS, feed_for, note, require_provider, stamp, table, write
from ortlock import NotReproducibleError, ReproducibleSession, digest, models

STOCK = "stock EXHAUSTIVE"


def sessions(name: str, model: bytes | str, providers: list[Any]) -> dict[str, Any]:
    """Return the sides of one model, stock first.

    ortlock's are made before stock's: stock would otherwise look cuDNN's functions up before ortlock could see them.
    """
    made: dict[str, Any] = {}
    for mode in ("pin", "strict"):
        try:
            made[f"ortlock {mode}"] = ReproducibleSession(model, providers=providers, mode=mode)
        except NotReproducibleError as error:
            note(f"{name}: left out: {mode}: {error}")
    return {STOCK: onnxruntime.InferenceSession(model, providers=providers), **made}


def times(session: Any, feed: dict[str, Any], runs: int) -> list[float]:
    """Return the milliseconds of each run."""
    durations = []
    clock = time.perf_counter_ns
    for _ in range(runs):
        started = clock()
        session.run(None, feed)
        durations.append((clock() - started) / 1e6)
    return durations


def measure(name: str, sides: dict[str, Any], shape: list[int], rounds: int, runs: int) -> dict[str, Any]:
    """Return the figures of each side at one shape."""
    feed = feed_for(sides[STOCK], shape)
    order = list(sides)
    digests: dict[str, str] = {}
    for side in order:
        digests[side] = digest(sides[side].run(None, feed))
        times(sides[side], feed, max(runs // 5, 1))
    found: dict[str, list[list[float]]] = {side: [] for side in order}
    for number in range(rounds):
        # Every side comes after every other one in turn, so that none always follows the same.
        turned = order[number % len(order) :] + order[: number % len(order)]
        for side in turned if number % 2 == 0 else turned[::-1]:
            found[side].append(times(sides[side], feed, runs))
        if (number + 1) % max(rounds // 5, 1) == 0:
            note(f"{name}: round {number + 1} of {rounds}")

    base = [statistics.median(durations) for durations in found[STOCK]]
    figures: dict[str, Any] = {}
    for side in order:
        medians = [statistics.median(durations) for durations in found[side]]
        ratios = [own / stock for own, stock in zip(medians, base, strict=True)]
        single = [value for durations in found[side] for value in durations]
        figures[side] = {
            "ms": round(statistics.median(medians), 4),
            "iqr_ms": _iqr(medians),
            "single_runs_iqr_ms": _iqr(single),
            "rounds_ms": [round(value, 4) for value in medians],
            "ratio": round(statistics.median(ratios), 4),
            "ratio_iqr": _iqr(ratios),
            "digest": digests[side],
        }
    return {"shape": shape, "sides": figures}


def _iqr(values: list[float]) -> float | None:
    """Return the interquartile range; None for a single value, which has none."""
    if len(values) < 2:
        return None
    lower, _, upper = statistics.quantiles(values, n=4)
    return round(upper - lower, 4)


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=300, help="runs a round and side")
    parser.add_argument("--model", type=Path, help="one more model, with --shape")
    parser.add_argument("--shape", help="of its input, e.g. 1x3x48x320")
    parser.add_argument("--output", type=Path, default=RESULTS / "fixed_shape.json")
    args = parser.parse_args()
    if (args.model is None) != (args.shape is None):
        parser.error("--model and --shape go together")

    nets: dict[str, tuple[bytes | str, list[int]]] = {
        "10 convolutions": (models.conv_net(10, size=224), [1, 3, 224, 224]),
        "residual net": (models.residual_net(size=224), [1, 3, 224, 224]),
    }
    if args.model is not None:
        nets[args.model.name] = (str(args.model), [int(word) for word in args.shape.split("x")])
    provider = "CPUExecutionProvider" if args.provider == "cpu" else "CUDAExecutionProvider"
    options = {"cudnn_conv_algo_search": "EXHAUSTIVE"} if args.provider == "cuda" else {}

    results: dict[str, Any] = {}
    for name, (model, shape) in nets.items():
        sides = sessions(name, model, [(provider, options)])
        require_provider(sides[STOCK], provider)
        results[name] = measure(name, sides, shape, args.rounds, args.runs)
    rows = []
    for name, figures in results.items():
        for side, f in figures["sides"].items():
            spread = "" if f["iqr_ms"] is None else f" ({f['iqr_ms']:.4f})"
            ratio = f"{f['ratio']:.3f}" + ("" if f["ratio_iqr"] is None else f" ({f['ratio_iqr']:.3f})")
            shape_text = "x".join(str(size) for size in figures["shape"])
            rows.append((f"{name}, {shape_text}", side, f"{f['ms']:.4f}{spread}", ratio))
    title = f"One shape that stays, {args.rounds} rounds of {args.runs} runs, {provider}"
    table(title, ("net", "side", "milliseconds a run (iqr)", "ratio to stock (iqr)"), rows)
    write(
        args.output,
        {"nets": results, "rounds": args.rounds, "runs": args.runs, **stamp(cuda=args.provider == "cuda")},
    )


if __name__ == "__main__":
    main()
