"""Draw a result of lanes.py: runs a second over the number of threads.

    python benchmarks/lanes_chart.py RESULT.json [--output FILE.svg]

One panel a net and kind of shapes, one line a side. The same result gives the same file.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from chart import command

_SHAPES = ("fixed", "changing")
_STOCK = ("#444444", "#999999")
_LANES = ("#c6dbef", "#6baed6", "#2171b5", "#08306b")


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
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
        figure = _figure(pyplot, result)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)
        pyplot.close(figure)
    print(f"wrote {path}", file=sys.stderr)
    return True


def _figure(pyplot: Any, result: dict[str, Any]) -> Any:
    nets = result["order"]
    figure, axes = pyplot.subplots(len(nets), len(_SHAPES), figsize=(9, 0.9 + 2.6 * len(nets)), squeeze=False)
    colours = _colours(result["sides"])
    for row, net in enumerate(nets):
        for column, shapes in enumerate(_SHAPES):
            panel = axes[row][column]
            _panel(panel, result, net, shapes, colours)
            panel.set_title(f"{net} net, {shapes} shapes", loc="left", fontsize=10, fontweight="bold")
    for panel in axes[-1]:
        panel.set_xlabel("threads")
    for row in axes:
        row[0].set_ylabel("runs a second")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False, fontsize=8.5)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / (0.9 + 2.6 * len(nets))))
    return figure


def _panel(panel: Any, result: dict[str, Any], net: str, shapes: str, colours: dict[str, str]) -> None:
    threads = result["threads"]
    for side in result["sides"]:
        runs = result["nets"][net][side]["runs"]
        values = [runs[f"{shapes} {count}"]["runs_per_second"] for count in threads]
        dashed = "--" if side.startswith("stock") else "-"
        panel.plot(threads, values, dashed, color=colours[side], marker="o", markersize=3.5, label=side, zorder=3)
    panel.set_xscale("log", base=2)
    panel.set_xticks(threads, [str(count) for count in threads])
    panel.minorticks_off()
    if shapes == "changing":
        # Stock is far below: a linear axis would show it as zero.
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
    else:
        panel.set_ylim(bottom=0)
    panel.grid(color="#dddddd", linewidth=0.8, zorder=0)
    panel.set_axisbelow(True)


def _colours(sides: list[str]) -> dict[str, str]:
    stock = [side for side in sides if side.startswith("stock")]
    lanes = [side for side in sides if side not in stock]
    last = len(_LANES) - 1
    shades = {
        side: _LANES[round(position * last / max(1, len(lanes) - 1)) if len(lanes) > 1 else last]
        for position, side in enumerate(lanes)
    }
    return {**dict(zip(stock, _STOCK, strict=False)), **shades}


if __name__ == "__main__":
    command(__doc__, draw)
