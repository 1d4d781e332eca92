"""One lane against stock, single-threaded: the nets of lanes.py, all sides in one process, interleaved.

    python benchmarks/one_lane.py [--provider cuda|cpu] [--rounds N] [--runs N] [--output FILE]

A second stock session, made last, stands beside the first: what two sessions of the same kind differ by is what the
measurement cannot see. The session inside the lane, called without ortlock's Python, tells where a difference is made.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnxruntime

from common import RESULTS, require_provider, stamp, table, write
from fixed_shape import STOCK, measure
from lanes import NETS, PROVIDERS
from ortlock import ReproducibleSession, models


def sides(model: bytes, provider: str) -> dict[str, Any]:
    """Return the sessions to compare.

    ortlock's are made before stock's: stock would otherwise look cuDNN's functions up before ortlock could see them.
    """
    pin = ReproducibleSession(model, providers=[provider], lanes=1)
    strict = ReproducibleSession(model, providers=[provider], lanes=1, mode="strict")
    stock, again = (onnxruntime.InferenceSession(model, providers=[provider]) for _ in range(2))
    require_provider(stock, provider)
    inside = pin._ortlock.lanes.pool.first.session
    return {STOCK: stock, "one lane, pin": pin, "its session alone": inside, "one lane, strict": strict, "again": again}


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=tuple(PROVIDERS), default="cuda")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--runs", type=int, default=100, help="runs a round and side")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/one_lane_<provider>.json")
    args = parser.parse_args()
    provider = PROVIDERS[args.provider]
    results = {}
    for name, net in NETS.items():
        model = getattr(models, net["model"])(**net["arguments"])
        size = net["sizes"][len(net["sizes"]) // 2]
        results[name] = measure(name, sides(model, provider), [1, 3, size, size], args.rounds, args.runs)
    rows = [
        (name, side, f"{f['ms']:.4f} ({f['iqr_ms']})", f"{f['ratio']:.3f} ({f['ratio_iqr']})")
        for name, figures in results.items()
        for side, f in figures["sides"].items()
    ]
    title = f"One thread, {args.rounds} rounds of {args.runs} runs, {provider}"
    table(title, ("net", "side", "milliseconds a run (iqr)", "ratio to stock (iqr)"), rows)
    result = {"provider": provider, "nets": results, "rounds": args.rounds, "runs": args.runs}
    write(args.output or RESULTS / f"one_lane_{args.provider}.json", result | stamp(cuda=args.provider == "cuda"))


if __name__ == "__main__":
    main()
