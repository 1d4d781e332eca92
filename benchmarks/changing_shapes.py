"""Input sizes that change at every run: stock plans every convolution again, ortlock plans each once.

    python benchmarks/changing_shapes.py [--provider cuda|cpu] [--net NAME ...] [--output FILE]

Each side runs in processes of its own, one a net, in several repetitions. A pass runs every size once, in turn. Times
are milliseconds a run: of the first pass the mean, of later passes the median and the interquartile range over single
runs. ``one size`` is the steady state with a size that stays, the mean over the sizes of its median. With a lockfile,
recorded by one process before, the choices are read instead of asked of cuDNN: the first pass makes no queries. Beside
the JSON a chart is drawn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import RESULTS, table
from passes import CPU, SIDES, Effort, Net, number, publish, queries, run_sides

NETS = {
    "10 convolutions": Net("conv_net", {"depth": 10}, [[1, 3, size, size] for size in (224, 192, 160, 256)]),
    "residual net": Net(
        "residual_net",
        {"size": "size"},
        [[1, 3, size, size] for size in (224, 192, 160, 256, 208, 176, 144, 240)],
    ),
    "transposed decoder": Net("decoder", {}, [[1, 128, size, size] for size in (14, 16, 20, 28)]),
    "depthwise net": Net("depthwise_net", {}, [[1, 3, size, size] for size in (224, 192, 160, 256)]),
}


def main() -> None:
    """Run every side, print a table, write JSON and a chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--net", action="append", choices=sorted(NETS))
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--steady", type=int, default=20, help="runs of each size for the steady state")
    parser.add_argument("--repetitions", type=int, default=3, help="processes a side")
    parser.add_argument("--output", type=Path, default=RESULTS / "changing_shapes.json")
    args = parser.parse_args()

    effort = Effort(args.passes, args.steady)
    efforts = {side: effort for side in SIDES if args.provider == "cuda" or side == CPU}
    nets = {net: run_sides(net, NETS[net], efforts, args.repetitions) for net in args.net or NETS}
    rows = []
    for net, figures in nets.items():
        sides = figures["sides"]
        base = sides[next(iter(efforts))]["later_ms"]
        for side, f in sides.items():
            rows.append(
                (
                    f"{net}, {len(figures['shapes'])} sizes",
                    side,
                    number(f["first_ms"]),
                    f"{number(f['later_ms'])} ({number(f['later_iqr_ms'])})",
                    number(f["steady_ms"]),
                    f"{base / f['later_ms']:.1f}" if f["later_ms"] else "",
                    f["distinct"],
                    queries(f),
                )
            )
    header = ("net", "side", "first pass ms", "later passes ms (iqr)", "one size ms", "times faster", "distinct")
    table("Changing input sizes, milliseconds a run", (*header, "queries in the first pass"), rows)
    publish("Input sizes that change at every run", nets, args.output, cuda=args.provider == "cuda")


if __name__ == "__main__":
    main()
