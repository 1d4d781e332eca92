"""Draw a result of changing_shapes.py or ocr_lines.py: how long single runs took.

    python benchmarks/chart.py RESULT.json [--output FILE.svg]

One panel a net, one row a side: dots are the runs of later passes, diamonds those of the first pass; at the right stand
the mean of the first pass and the median of later passes. The same result gives the same file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from passes import SIDES

_LATER = "#1f77b4"
_FIRST = "#d95f02"
_STEADY = "#222222"


def draw(result: dict[str, Any], path: Path) -> bool:
    """Write the chart of a result; False, with a word on standard error, where Matplotlib is missing."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        print("no chart: it needs Matplotlib", file=sys.stderr)
        return False
    matplotlib.use("agg")
    # Names inside the file come from this, not from chance.
    style = {"svg.hashsalt": "ortlock", "font.size": 9, "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(style):
        figure = _figure(result)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)
        importlib.import_module("matplotlib.pyplot").close(figure)
    print(f"wrote {path}", file=sys.stderr)
    return True


def _figure(result: dict[str, Any]) -> Any:
    """Return the figure of a result."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    lines: Any = importlib.import_module("matplotlib.lines")
    ticker: Any = importlib.import_module("matplotlib.ticker")
    # A file's keys are sorted; the panels and rows keep the order of the tables.
    nets = {name: result["nets"][name] for name in result["order"]}
    rows = [len(net["sides"]) for net in nets.values()]
    # Inches: a row, and what a panel needs above and below its rows.
    row, around, top = 0.42, 0.75, 0.75
    height = top + sum(row * count + around for count in rows)
    figure = pyplot.figure(figsize=(9, height))
    below = height - top
    limits = _limits(nets)
    for (name, net), count in zip(nets.items(), rows, strict=True):
        below -= row * count
        axes = figure.add_axes((0.17, below / height, 0.61, row * count / height))
        below -= around
        _panel(axes, {side: net["sides"][side] for side in SIDES if side in net["sides"]})
        axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
        axes.set_xscale("log")
        axes.set_xlim(limits)
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("milliseconds a run (log scale); at the right: first pass, mean; later passes, median")
    figure.text(0.02, 1 - 0.25 / height, result["title"], fontsize=12, fontweight="bold", va="center")
    marks = [
        lines.Line2D([], [], color=_FIRST, marker="D", linestyle="", markersize=5, label="first pass"),
        lines.Line2D([], [], color=_LATER, marker="o", linestyle="", markersize=4, label="later passes"),
        lines.Line2D([], [], color=_STEADY, marker="|", linestyle="", markersize=11, label="one shape that stays"),
    ]
    anchor = (0.98, 1 - 0.25 / height)
    figure.legend(handles=marks, loc="center right", bbox_to_anchor=anchor, ncols=3, frameon=False, fontsize=9)
    return figure


def _limits(nets: dict[str, Any]) -> tuple[float, float]:
    """Return the limits of the axis that all panels share: full powers of ten would waste room, so a little air."""
    values = [
        value
        for net in nets.values()
        for side in net["sides"].values()
        for run in side["runs"]
        for value in (*(time for times in run["passes"] for time in times), *run["steady"].values())
    ]
    low, high = math.log10(min(values)), math.log10(max(values))
    air = 0.03 * (high - low) + 0.02
    return float(10 ** (low - air)), float(10 ** (high + air))


def _panel(axes: Any, sides: dict[str, Any]) -> None:
    """Draw one net's sides from top to bottom."""
    # Seeded: where a dot stands across its row says nothing and must not change from one drawing to the next.
    chance = random.Random(0)
    for position, side in enumerate(sides.values()):
        first = [time for run in side["runs"] for time in run["passes"][0]]
        later = [time for run in side["runs"] for times in run["passes"][1:] for time in times]
        # First passes in the upper part of the row, later ones in the lower, so that neither hides the other.
        heights = [position - 0.2 + chance.uniform(-0.1, 0.1) for _ in first]
        axes.plot(first, heights, "D", color=_FIRST, markersize=3.5, alpha=0.6, markeredgewidth=0, zorder=3)
        heights = [position + 0.17 + chance.uniform(-0.13, 0.13) for _ in later]
        axes.plot(later, heights, "o", color=_LATER, markersize=3, alpha=0.5, markeredgewidth=0, zorder=3)
        axes.plot([side["steady_ms"]], [position], "|", color=_STEADY, markersize=20, markeredgewidth=1.4, zorder=4)
        label = f"first {_short(side['first_ms'])}"
        if side["later_ms"] is not None:
            label += f", later {_short(side['later_ms'])}"
        axes.text(1.02, position, f"{label} ms", transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
    axes.set_yticks(range(len(sides)), list(sides))
    axes.set_ylim(len(sides) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    for edge in range(1, len(sides)):
        axes.axhline(edge - 0.5, color="#dddddd", linewidth=0.8, zorder=1)
    axes.grid(axis="x", which="major", color="#cccccc", linewidth=0.8, zorder=0)
    axes.grid(axis="x", which="minor", color="#eeeeee", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)


def _short(value: float) -> str:
    """Return three digits, and more only before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def command(description: str | None, draw_it: Callable[[dict[str, Any], Path], bool]) -> None:
    """Draw the chart of a results file that the command line names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--output", type=Path, help="default: beside the result, .svg")
    args = parser.parse_args()
    if not draw_it(json.loads(args.result.read_text()), args.output or args.result.with_suffix(".svg")):
        raise SystemExit(1)


if __name__ == "__main__":
    command(__doc__, draw)
