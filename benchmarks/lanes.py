"""Threads that share one session: runs a second, latency and memory, with lanes and without.

    python benchmarks/lanes.py [--provider cuda|cpu] [--quick] [--output FILE]

Sides: stock with all threads on one session, stock behind one lock, ortlock as it is and with 1 to 8 lanes. Nets: a
small one, whose time is mostly launches, and a large one. Shapes that stay, and shapes that change with every run. Each
side of a net is measured in a process of its own; a thread makes its next run as soon as it has the results of the last
one. Memory is that of the device: of a further lane once it has run every shape, and of a second stock session that has
done the same; beside it stands what the weights take, which each has for itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lanes_chart
from common import RESULTS, note, require_provider, stamp, table, write

PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
NETS: dict[str, dict[str, Any]] = {
    "small": {"model": "conv_net", "arguments": {"depth": 4}, "sizes": [32, 40, 48, 56, 64, 72, 80, 96]},
    "large": {
        "model": "residual_net",
        "arguments": {"size": "size"},
        "sizes": [160, 176, 192, 208, 224, 240, 256, 288],
    },
}
FREE, LOCKED, DEFAULT = "stock", "stock, one lock", "ortlock, default"
SHAPES = ("fixed", "changing")


def lanes_of(side: str) -> int | None:
    """Return the number of lanes that a side asks for, None where it asks for none."""
    return int(side.split()[1]) if side.startswith("ortlock ") else None


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Measure one side of one net in this process."""
    from ortlock import models

    net = NETS[job["net"]]
    model = getattr(models, net["model"])(**net["arguments"])
    feeds = [{"x": models.seeded_input((1, 3, size, size))} for size in net["sizes"]]
    session, run = make(job["side"], model, job["provider"])
    for feed in feeds:
        run(feed)
    result: dict[str, Any] = {"runs": {}, "memory": memory(job, model, session, run, feeds)}
    for shapes, count in itertools.product(SHAPES, job["threads"]):
        used = feeds if shapes == "changing" else feeds[len(feeds) // 2 :][:1]
        result["runs"][f"{shapes} {count}"] = hammer(run, used, count, job["seconds"])
    if job["side"].startswith("ortlock"):
        result["report"] = session.report().to_dict()["lanes"]
    return result


def weights(net: str) -> int:
    """Return the bytes of a net's weights."""
    import onnx

    from ortlock import models

    model = onnx.load_model_from_string(getattr(models, NETS[net]["model"])(**NETS[net]["arguments"]))
    return sum(onnx.numpy_helper.to_array(value).nbytes for value in model.graph.initializer)


def make(side: str, model: bytes, provider: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return a session and what runs it."""
    import onnxruntime

    from ortlock import ReproducibleSession

    if side.startswith("ortlock"):
        ours = ReproducibleSession(model, providers=[provider], lanes=lanes_of(side))
        return ours, lambda feed: ours.run(None, feed)
    stock = onnxruntime.InferenceSession(model, providers=[provider])
    require_provider(stock, provider)
    if side == FREE:
        return stock, lambda feed: stock.run(None, feed)
    lock = threading.Lock()

    def locked(feed: Any) -> Any:
        with lock:
            return stock.run(None, feed)

    return stock, locked


def memory(
    job: dict[str, Any], model: bytes, session: Any, run: Callable[[Any], Any], feeds: Sequence[Any]
) -> int | None:
    """Return the bytes on the device of one more lane, or of one more stock session, that has run every shape."""
    from ortlock.lanes.streams import free_memory

    lanes = lanes_of(job["side"])
    before = free_memory(0)
    if before is None or lanes == 1 or job["side"] in (LOCKED, DEFAULT):
        return None
    if lanes is None:
        _, another = make(job["side"], model, job["provider"])
        for feed in feeds:
            another(feed)
        after = free_memory(0)
        return None if after is None else before - after
    held = [session._ortlock.lanes._take() for _ in range(lanes)]
    for lane in held:
        for feed in feeds:
            lane.session.run(None, feed)
    after = free_memory(0)
    for lane in held:
        session._ortlock.lanes.pool.give(lane)
    return None if after is None else (before - after) // (lanes - 1)


def hammer(run: Callable[[Any], Any], feeds: Sequence[Any], count: int, seconds: float) -> dict[str, Any]:
    """Return runs a second and latencies of ``count`` threads that run as fast as they can.

    Runs that fail count as none, and are told: stock sessions fail now and then where threads share them.
    """
    times: list[list[float]] = [[] for _ in range(count)]
    failures: list[str] = []
    start, stop = threading.Barrier(count + 1), threading.Event()

    def attempt(feed: Any) -> float | None:
        began = time.perf_counter()
        try:
            run(feed)
        except Exception as error:
            failures.append(" ".join(str(error).split())[:300])
            return None
        return time.perf_counter() - began

    def work(number: int) -> None:
        # Each thread goes through the shapes from another one on.
        order = itertools.cycle([*feeds[number % len(feeds) :], *feeds[: number % len(feeds)]])
        own = times[number]
        attempt(next(order))
        start.wait()
        while not stop.is_set():
            if (took := attempt(next(order))) is not None:
                own.append(took)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    # Runs under way at the stop are counted, with the time that they took.
    took = time.perf_counter() - began
    all_times = sorted(itertools.chain.from_iterable(times))
    if not all_times:
        raise RuntimeError(f"no run of {len(failures)} came to its end: {failures[0]}")
    result: dict[str, Any] = {
        "runs_per_second": len(all_times) / took,
        "p50_ms": statistics.median(all_times) * 1e3,
        "p99_ms": all_times[min(len(all_times) - 1, int(0.99 * len(all_times)))] * 1e3,
        "failed": len(failures),
    }
    return result | ({"first_failure": failures[0]} if failures else {})


def in_a_process(job: dict[str, Any]) -> dict[str, Any]:
    """Run measure() in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--worker"], input=json.dumps(job), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{job['side']} on {job['net']} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def show(result: dict[str, Any]) -> None:
    """Print the tables of a result."""
    for net, shapes in itertools.product(result["order"], SHAPES):
        rows = []
        for side, measured in result["nets"][net].items():
            cells = []
            for count in result["threads"]:
                cell = measured["runs"][f"{shapes} {count}"]
                failed = f", {cell['failed']} failed" if cell["failed"] else ""
                cells.append(f"{cell['runs_per_second']:.0f} ({cell['p50_ms']:.2f}, {cell['p99_ms']:.2f}{failed})")
            size = measured["memory"]
            rows.append((side, *cells, "" if size is None else f"{size / 2**20:.0f} MiB"))
        header = ("side", *(f"{count} threads" for count in result["threads"]), "one more")
        table(f"{net} net, {shapes} shapes: runs a second (median ms, 99th percentile ms)", header, rows)


def main() -> None:
    """Measure, print tables, write JSON and a chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=tuple(PROVIDERS), default="cuda")
    parser.add_argument("--nets", nargs="+", choices=tuple(NETS), default=list(NETS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--lanes", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="the small net, few threads and lanes, moments only")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/lanes_<provider>.json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(json.load(sys.stdin))))
        return
    if args.quick:
        args.nets, args.threads, args.lanes, args.seconds = ["small"], [1, 4], [1, 2], 0.3
    provider = PROVIDERS[args.provider]
    sides = [FREE, LOCKED, DEFAULT, *(f"ortlock {count} {'lane' if count == 1 else 'lanes'}" for count in args.lanes)]
    nets: dict[str, Any] = {net: {} for net in args.nets}
    result = {
        "provider": provider,
        "order": args.nets,
        "sides": sides,
        "threads": args.threads,
        "seconds": args.seconds,
        "nets": nets,
        "weights": {net: weights(net) for net in args.nets},
        **stamp(cuda=args.provider == "cuda"),
    }
    path = args.output or RESULTS / f"lanes_{args.provider}.json"
    for net, side in itertools.product(args.nets, sides):
        job = {"net": net, "side": side, "provider": provider, "threads": args.threads, "seconds": args.seconds}
        nets[net][side] = in_a_process(job)
        note(f"{net}: {side}")
        # Whoever stops it keeps what there is.
        write(path, result)
    show(result)
    lanes_chart.draw(result, path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
