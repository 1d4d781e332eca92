"""An OCR service's shapes: text lines of 40 widths and pages of 4 sizes, with recognition and detection models.

    python benchmarks/ocr_lines.py --rec FILE --det FILE [--provider cuda|cpu] [--output FILE]

The models are those of PP-OCRv4 as ONNX files; either may be left out. Each side runs in a process of its own. A pass
runs every shape once, the next one backwards. Times are milliseconds a run: of the first and the second pass the mean.
``one shape`` is the steady state with a shape that stays, the mean over the shapes of its median; for sides other than
ortlock over a sample of shapes from the smallest to the largest. Beside the JSON a chart is drawn.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from common import RESULTS, table
from passes import CPU, ORTLOCK, STOCK, Effort, Net, number, publish, queries, run_sides

HEIGHT = 48
PAGES = [[640, 480], [960, 736], [736, 1024], [416, 640]]
SAMPLE = 8

# Name: the side and pass above the line, the side and pass below it.
RATIOS = {
    "first pass, stock EXHAUSTIVE / ortlock": (STOCK[0], "first_ms", ORTLOCK[0], "first_ms"),
    "first pass, stock HEURISTIC / ortlock": (STOCK[1], "first_ms", ORTLOCK[0], "first_ms"),
    "first pass, stock EXHAUSTIVE / ortlock, lockfile": (STOCK[0], "first_ms", ORTLOCK[1], "first_ms"),
    "first pass, stock HEURISTIC / ortlock, lockfile": (STOCK[1], "first_ms", ORTLOCK[1], "first_ms"),
    "first pass after its first run, stock EXHAUSTIVE / ortlock": (STOCK[0], "started_ms", ORTLOCK[0], "started_ms"),
    "first pass after its first run, stock EXHAUSTIVE / ortlock, lockfile": (
        STOCK[0],
        "started_ms",
        ORTLOCK[1],
        "started_ms",
    ),
    "second pass, stock EXHAUSTIVE / ortlock": (STOCK[0], "second_ms", ORTLOCK[0], "second_ms"),
    "second pass, stock HEURISTIC / ortlock": (STOCK[1], "second_ms", ORTLOCK[0], "second_ms"),
    "ortlock, second pass / one shape": (ORTLOCK[0], "second_ms", ORTLOCK[0], "steady_ms"),
}


def line_widths(count: int = 40, seed: int = 0) -> list[int]:
    """Return distinct widths from 96 to 1200, multiples of 8, in a seeded order."""
    return random.Random(seed).sample(range(96, 1201, 8), count)


def ratios(sides: dict[str, Any]) -> dict[str, float]:
    """Return how the sides compare, where both were measured."""
    found = {}
    for name, (above, above_pass, below, below_pass) in RATIOS.items():
        over, under = sides.get(above, {}).get(above_pass), sides.get(below, {}).get(below_pass)
        if over and under:
            found[name] = round(over / under, 3)
    return found


def main() -> None:
    """Run every side, print tables, write JSON and a chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rec", type=Path, help="recognition model, x [1,3,48,width]")
    parser.add_argument("--det", type=Path, help="detection model, x [1,3,height,width]")
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--passes", type=int, default=3, help="passes of ortlock's sides")
    parser.add_argument("--stock-passes", type=int, default=2)
    parser.add_argument("--steady", type=int, default=20, help="runs of each shape for the steady state")
    parser.add_argument("--repetitions", type=int, default=1, help="processes a side")
    parser.add_argument("--output", type=Path, default=RESULTS / "ocr_lines.json")
    args = parser.parse_args()
    nets = {}
    if args.rec:
        shapes = [[1, 3, HEIGHT, width] for width in line_widths()]
        nets[f"recognition, {len(shapes)} line widths"] = Net(str(args.rec), None, shapes)
    if args.det:
        nets[f"detection, {len(PAGES)} page sizes"] = Net(str(args.det), None, [[1, 3, *page] for page in PAGES])
    if not nets:
        parser.error("give --rec, --det or both")

    efforts = {side: Effort(args.stock_passes, args.steady, SAMPLE) for side in STOCK}
    efforts |= {side: Effort(args.passes, args.steady) for side in ORTLOCK}
    efforts[CPU] = Effort(1, min(args.steady, 3), SAMPLE)
    if args.provider == "cpu":
        efforts = {CPU: efforts[CPU]}
    figures = {name: run_sides(name, net, efforts, args.repetitions) for name, net in nets.items()}
    rows: list[tuple[object, ...]] = []
    compared: list[tuple[object, ...]] = []
    for name, net_figures in figures.items():
        net_figures["model"] = Path(nets[name].model).name
        net_figures["ratios"] = ratios(net_figures["sides"])
        compared += [(name, *item) for item in net_figures["ratios"].items()]
        for side, f in net_figures["sides"].items():
            times = (number(f[key]) for key in ("created_ms", "first_ms", "started_ms", "second_ms", "steady_ms"))
            rows.append((name, side, *times, f["distinct"], queries(f)))
    header = (
        "net",
        "side",
        "session ms",
        "first pass ms",
        "without its first run",
        "second pass ms",
        "one shape ms",
        "distinct",
    )
    table("OCR, milliseconds a run", (*header, "queries in the first pass"), rows)
    if compared:
        table("Ratios", ("net", "ratio", "times"), compared)
    publish("OCR: line widths and page sizes", figures, args.output, cuda=args.provider == "cuda")


if __name__ == "__main__":
    main()
