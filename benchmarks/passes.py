"""Measuring passes over input shapes that change: what changing_shapes.py and ocr_lines.py share.

A pass runs every shape once, in turn. Each side is measured in processes of its own; such a process is this file, with
a :class:`Job` as JSON on standard input and the result as JSON on standard output.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import feed_for, note, require_provider, stamp, write

CPU = "CPU provider"
STOCK = ("stock EXHAUSTIVE", "stock HEURISTIC")
ORTLOCK = ("ortlock", "ortlock, lockfile")
SIDES = (*STOCK, *ORTLOCK, CPU)
_SEARCH = {"stock HEURISTIC": "HEURISTIC"}


@dataclass(frozen=True, slots=True)
class Net:
    """A model and the shapes that its one input takes in turn."""

    model: str
    """A function of ``ortlock.models``; a file where ``arguments`` is None."""
    arguments: dict[str, Any] | None
    shapes: list[list[int]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured of one side."""

    passes: int
    steady: int
    """Runs of a shape that stays."""
    steady_shapes: int | None = None
    """How many shapes the steady state is measured of, spread evenly over their sizes; all where it is None."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one process measures."""

    net: Net
    side: str
    effort: Effort
    lockfile: str | None = None
    record: bool = False
    """Write the lockfile instead of reading it."""


def pass_order(shapes: int, number: int) -> list[int]:
    """Return the order of pass ``number``: forwards, then backwards, never beginning with the shape run last."""
    forwards = list(range(shapes))
    return forwards if number % 2 == 0 else [*forwards[-2::-1], *forwards[-1:]]


def sample(shapes: Sequence[Sequence[int]], count: int | None) -> list[int]:
    """Return the positions of ``count`` shapes, spread evenly from the smallest to the largest."""
    by_size = sorted(range(len(shapes)), key=lambda index: statistics.geometric_mean(shapes[index]))
    if count is None or count >= len(shapes):
        return sorted(by_size)
    return sorted({by_size[round(step * (len(shapes) - 1) / max(count - 1, 1))] for step in range(count)})


def measure(job: Job) -> dict[str, Any]:
    """Measure one side in this process. Lists of times and digests stand in the order of the net's shapes."""
    import onnxruntime

    from ortlock import ReproducibleSession, digest, models, native

    cpu = job.side == CPU
    own = job.side in ORTLOCK
    name = "CPUExecutionProvider" if cpu else "CUDAExecutionProvider"
    options = {} if cpu else {"cudnn_conv_algo_search": _SEARCH.get(job.side, "EXHAUSTIVE")}
    providers: list[Any] = [(name, options)]
    net = job.net
    model: Any = net.model if net.arguments is None else getattr(models, net.model)(**net.arguments)
    make: Any = ReproducibleSession if own else onnxruntime.InferenceSession
    lock: dict[str, Any] = {}
    if job.record:
        lock = {"mode": "pin", "lockfile": job.lockfile, "lock_mode": "record"}
    else:
        # What only the first session of a process pays is not what is measured here.
        warm = make(models.conv_net(1, size=8), providers=providers)
        warm.run(None, {"x": models.seeded_input([1, 3, 8, 8])})
        if job.lockfile is not None:
            lock = {"lockfile": job.lockfile, "lock_mode": "replay"}

    before = native.book() if own else None
    started = time.perf_counter()
    session = make(model, providers=providers, **lock)
    created = time.perf_counter() - started
    require_provider(session, name)
    feeds = [feed_for(session, shape) for shape in net.shapes]

    result: dict[str, Any] = {"created": round(created * 1e3, 3), "passes": [], "digests": []}
    for number in range(job.effort.passes):
        durations, seen = [0.0] * len(feeds), [""] * len(feeds)
        for index in pass_order(len(feeds), number):
            started = time.perf_counter()
            outputs = session.run(None, feeds[index])
            durations[index] = round((time.perf_counter() - started) * 1e3, 3)
            seen[index] = digest(outputs)
        result["passes"].append(durations)
        result["digests"].append(seen)
        if before is not None and number == 0:
            # The counters are those of the process, the first session's included; what counts is what was added.
            earlier, now = dataclasses.asdict(before), dataclasses.asdict(native.book())
            result["book"] = {field: now[field] - earlier[field] for field in now}
    if job.record:
        session.save_lockfile()
        return result

    result["steady"] = {}
    for index in sample(net.shapes, job.effort.steady_shapes):
        session.run(None, feeds[index])
        durations = []
        for _ in range(job.effort.steady):
            started = time.perf_counter()
            session.run(None, feeds[index])
            durations.append((time.perf_counter() - started) * 1e3)
        result["steady"][index] = round(statistics.median(durations), 3)
    if own:
        result["verdict"] = str(session.report().verdict)
    return result


def run(job: Job) -> dict[str, Any]:
    """Measure one side in a process of its own.

    Raises:
        SystemExit: the process failed; with what it wrote to standard error.
    """
    text = json.dumps(dataclasses.asdict(job))
    done = subprocess.run([sys.executable, __file__], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{job.side} failed\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_sides(name: str, net: Net, efforts: Mapping[str, Effort], repetitions: int) -> dict[str, Any]:
    """Measure the sides of ``efforts`` on one net and return their figures."""
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in efforts}
    recorded: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        lockfile = str(Path(folder) / "lockfile")
        if ORTLOCK[1] in efforts:
            note(f"{name}: recording the lockfile")
            recorded.append(run(Job(net, ORTLOCK[1], Effort(1, 0), lockfile, record=True)))
        for number in range(repetitions):
            # Interleaved, in alternating order.
            for side in list(efforts)[:: 1 if number % 2 == 0 else -1]:
                note(f"{name}: {side}")
                job = Job(net, side, efforts[side], lockfile if side == ORTLOCK[1] else None)
                results[side].append(run(job))
    figures: dict[str, Any] = {"shapes": net.shapes}
    figures["sides"] = {side: summarize(found) for side, found in results.items()}
    own = [result for side in ORTLOCK for result in results.get(side, [])] + recorded
    if own:
        figures["ortlock_distinct"] = _distinct(own)
    return figures


def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the repetitions of one side: milliseconds a run, and the single runs that they come from."""
    later = [value for result in results for durations in result["passes"][1:] for value in durations]
    figures: dict[str, Any] = {
        "created_ms": statistics.median(result["created"] for result in results),
        "first_ms": _of_pass(results, 0),
        "started_ms": _of_pass(results, 0, 1),
        "second_ms": _of_pass(results, 1),
        "later_ms": round(statistics.median(later), 4) if later else None,
        "later_iqr_ms": None,
        "steady_ms": round(statistics.median(statistics.mean(r["steady"].values()) for r in results), 4),
        "steady_shapes": len(results[0]["steady"]),
        "distinct": _distinct(results),
        "runs": [{"passes": result["passes"], "steady": result["steady"]} for result in results],
    }
    if len(later) > 1:
        lower, _, upper = statistics.quantiles(later, n=4)
        figures["later_iqr_ms"] = round(upper - lower, 4)
    if "book" in results[0]:
        figures["verdict"] = results[0]["verdict"]
        # The largest number of each: one query in one process is what must not go unseen.
        figures["book"] = {field: max(result["book"][field] for result in results) for field in results[0]["book"]}
    return figures


def _of_pass(results: list[dict[str, Any]], number: int, skipped: int = 0) -> float | None:
    """Return the mean run of one pass, the median over the repetitions; None where that pass was not made.

    ``skipped`` runs at its beginning are left out: a process's very first run also loads kernels and libraries.
    """
    passes = [result["passes"][number][skipped:] for result in results if number < len(result["passes"])]
    means = [statistics.mean(durations) for durations in passes if durations]
    return round(statistics.median(means), 4) if means else None


def _distinct(results: list[dict[str, Any]]) -> int:
    """Return how many different outputs the worst shape gave."""
    outputs = zip(*(seen for result in results for seen in result["digests"]), strict=True)
    return max(len(set(values)) for values in outputs)


def queries(figures: dict[str, Any]) -> object:
    """Return how many heuristics queries the first pass of a side made, for a table."""
    return figures["book"]["queries"] if "book" in figures else ""


def number(value: float | None) -> str:
    """Return milliseconds for a table; nothing where they were not measured."""
    return "" if value is None else f"{value:.2f}"


def faults(nets: dict[str, Any]) -> list[str]:
    """Return what ortlock's sides did not keep: one output for each shape, and no query with a lockfile."""
    found = []
    for name, figures in nets.items():
        if figures.get("ortlock_distinct", 1) != 1:
            found.append(f"{name}: {figures['ortlock_distinct']} different outputs of one shape with ortlock")
        locked = figures["sides"].get(ORTLOCK[1])
        if locked is not None and locked["book"]["queries"] != 0:
            found.append(f"{name}: {locked['book']['queries']} heuristics queries in spite of the lockfile")
    return found


def publish(title: str, nets: dict[str, Any], output: Path, *, cuda: bool) -> None:
    """Write the figures of nets as JSON and as a chart beside it.

    Raises:
        SystemExit: after that, where ortlock's sides did not keep what they promise.
    """
    from chart import draw  # which needs the sides of this module

    for name, figures in nets.items():
        if "ortlock_distinct" in figures:
            distinct = figures["ortlock_distinct"]
            note(f"{name}: {distinct} distinct over all passes of ortlock, with and without lockfile")
    if cuda:
        from ortlock import native

        native.load_cuda_provider()
    result = {"title": title, "nets": nets, "order": list(nets), **stamp(cuda=cuda)}
    write(output, result)
    draw(result, output.with_suffix(".svg"))
    if found := faults(nets):
        raise SystemExit("\n".join(found))


def main() -> None:
    """Measure the job on standard input."""
    job = json.load(sys.stdin)
    net, effort = Net(**job.pop("net")), Effort(**job.pop("effort"))
    print(json.dumps(measure(Job(net, effort=effort, **job))))


if __name__ == "__main__":
    main()
