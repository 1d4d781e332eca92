"""``ortlock bench MODEL``: what reproducibility costs on a model of the user's."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ortlock.cli.errors import cannot_load, does_not_run, readable_model
from ortlock.cli.feeds import chosen_feeds, input_options
from ortlock.cli.files import model_argument
from ortlock.cli.inputs import Feed, input_specs
from ortlock.cli.options import (
    DOES_NOT_HOLD,
    HOLDS,
    choose_providers,
    json_option,
    nothing_but_json,
    progress,
    provider_option,
    same_provider,
    show_json,
    show_table,
)
from ortlock.words import counted

SIDES = ("stock", "observe", "pin", "strict")


@dataclass
class Side:
    """One side's sessions and what was measured of it."""

    name: str
    session: Any = None
    refused: str | None = None
    first_ms: float = 0.0
    fixed: list[float] = field(default_factory=list)
    """Milliseconds a run, one shape: the median of each round."""
    changing: list[float] = field(default_factory=list)
    """The same with the shape changing at every run."""
    distinct: int = 0

    def summary(self, stock: Side) -> dict[str, Any]:
        """Return the figures, times as medians with their interquartile range, and ratios to stock."""
        if self.refused:
            return {"refused": self.refused}
        result: dict[str, Any] = {"first_run_ms": self.first_ms, "distinct": self.distinct}
        for name, own, base in (("fixed", self.fixed, stock.fixed), ("changing", self.changing, stock.changing)):
            if own:
                ratio = statistics.median(own) / statistics.median(base) if base else None
                result[name] = {"ms": statistics.median(own), "iqr_ms": _spread(own), "ratio": ratio}
        return result


@click.command("bench")
@model_argument
@provider_option
@input_options
@click.option("--sessions", type=click.IntRange(1), default=3, show_default=True, help="Sessions for distinct outputs.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Interleaved rounds.")
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="Runs a round.")
@click.option("--warmup", type=click.IntRange(0), default=3, show_default=True, help="Runs of each shape beforehand.")
@json_option
def command(
    model: Path,
    provider: str,
    inputs: tuple[Path, ...],
    seed: int | None,
    dim: tuple[str, ...],
    shapes: str,
    sessions: int,
    rounds: int,
    runs: int,
    warmup: int,
    as_json: bool,
) -> int:
    """Measure what reproducibility costs on MODEL: stock, observe, pin and strict, in interleaved rounds.

    Exit status 1 if strict refuses the model or its outputs differ.
    """
    path = str(readable_model(model))
    sides = [Side(name) for name in SIDES]
    with nothing_but_json(as_json):
        providers = choose_providers(provider)
        # Sessions that intercept come before stock's, which would otherwise have resolved cuDNN's functions.
        for side in sorted(sides, key=lambda side: side.name == "stock"):
            _open(side, path, providers)
    feeds = chosen_feeds(input_specs(sides[0].session), inputs, seed, dim, shapes)
    open_sides = [side for side in sides if side.session is not None]
    with nothing_but_json(as_json), progress(as_json) as bar:
        # What only the first session of a process pays (CUDA's and cuDNN's start) belongs to no side.
        _warm_process(path, providers, feeds[0])
        task = bar.add_task("measuring", total=len(open_sides) * (1 + sessions) + rounds * len(open_sides))
        for side in open_sides:
            _first(side, feeds, warmup)
            bar.advance(task)
        for number in range(rounds):
            # Back and forth, so that no side always follows the same one.
            for side in open_sides if number % 2 == 0 else open_sides[::-1]:
                if side.session is not None:
                    side.fixed.append(_median_ms(side.session, feeds[:1], runs))
                    if len(feeds) > 1:
                        side.changing.append(_median_ms(side.session, feeds, max(runs, len(feeds))))
                bar.advance(task)
        for side in open_sides:
            if side.session is not None:
                side.distinct = _distinct(side, path, providers, feeds, sessions)
                same_provider(side.session, providers[0], side.name)
            bar.advance(task, sessions)
    strict = sides[-1]
    holds = strict.refused is None and strict.distinct == 1
    _show(model, providers, sides, feeds, sessions, rounds, runs, holds, as_json)
    return HOLDS if holds else DOES_NOT_HOLD


def _make(side: str, path: str, providers: Sequence[str]) -> Any:
    import onnxruntime

    from ortlock import ReproducibilityWarning, ReproducibleSession

    if side == "stock":
        return onnxruntime.InferenceSession(path, providers=list(providers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReproducibilityWarning)
        return ReproducibleSession(path, providers=list(providers), mode=side)


def _open(side: Side, path: str, providers: Sequence[str]) -> None:
    from ortlock import NotReproducibleError

    try:
        side.session = _make(side.name, path, providers)
    except NotReproducibleError as error:
        side.refused = str(error)
    except Exception as error:
        raise cannot_load(Path(path), error) from error


def _warm_process(path: str, providers: Sequence[str], feed: Feed) -> None:
    try:
        _make("stock", path, providers).run(None, feed)
    except Exception as error:
        raise does_not_run(Path(path), "does not run with these inputs", error) from error


def _first(side: Side, feeds: Sequence[Feed], warmup: int) -> None:
    """Time the first run and warm up; strict may refuse at its first run."""
    from ortlock import NotReproducibleError

    started = time.perf_counter()
    try:
        side.session.run(None, feeds[0])
        side.first_ms = (time.perf_counter() - started) * 1e3
        for feed in feeds:
            for _ in range(warmup):
                side.session.run(None, feed)
    except NotReproducibleError as error:
        side.refused, side.session = str(error), None


def _median_ms(session: Any, feeds: Sequence[Feed], runs: int) -> float:
    times = []
    for index in range(runs):
        started = time.perf_counter()
        session.run(None, feeds[index % len(feeds)])
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def _distinct(side: Side, path: str, providers: Sequence[str], feeds: Sequence[Feed], sessions: int) -> int:
    """Return the most distinct outputs that any feed gave over new sessions, two runs each."""
    from ortlock import digest

    seen: list[set[str]] = [set() for _ in feeds]
    for _ in range(sessions):
        session = _make(side.name, path, providers)
        for digests, feed in zip(seen, feeds, strict=True):
            for _ in range(2):
                digests.add(digest(session.run(None, feed)))
        same_provider(session, providers[0], side.name)
    return max(len(digests) for digests in seen)


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return upper - lower


def _show(
    model: Path,
    providers: Sequence[str],
    sides: Sequence[Side],
    feeds: Sequence[Feed],
    sessions: int,
    rounds: int,
    runs: int,
    holds: bool,
    as_json: bool,
) -> None:
    results = {side.name: side.summary(sides[0]) for side in sides}
    if as_json:
        asked = {"rounds": rounds, "runs": runs, "sessions": sessions, "shapes": len(feeds)}
        show_json({"model": str(model), "provider": providers[0], **asked, "sides": results, "holds": holds})
        return
    several = len(feeds) > 1
    header = ["", "first run", "one shape", "ratio", f"distinct of {2 * sessions}"]
    if several:
        header[4:4] = [f"{len(feeds)} shapes in turn", "ratio"]
    rows = []
    for name, result in results.items():
        if "refused" in result:
            rows.append([name, "refused", *[""] * (len(header) - 2)])
            continue
        row = [name, f"{result['first_run_ms']:.1f} ms", *_cells(result["fixed"])]
        if several:
            row += _cells(result["changing"])
        rows.append([*row, str(result["distinct"])])
    how = f"median of {counted(rounds, 'interleaved round')} of {counted(runs, 'run')} (interquartile range)"
    title = f"{model.name} on {providers[0]}: {how}"
    show_table(title, header, rows)
    for name, result in results.items():
        if "refused" in result:
            print(f"{name} refuses: {result['refused']}")


def _cells(figures: dict[str, Any]) -> list[str]:
    return [f"{figures['ms']:.3f} ms ({figures['iqr_ms']:.3f})", f"{figures['ratio']:.3f}"]
