"""The same bits under concurrency: many threads, shapes and entry points on one session, beside a busy GPU.

    python benchmarks/concurrency.py [--provider cuda|cpu] [--runs N] [--seconds N] [--threads N] [--lanes N]

Threads share one session and take turns through run(), OrtValues, IO bindings, run_async() and asyncio, and through
eight shapes. Every output is compared, bit by bit, with what one thread got before from the same session. On CUDA a
second process keeps the GPU busy meanwhile. It ends after ``--runs``, or after ``--seconds`` with fewer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from common import RESULTS, busy_gpu, note, require_provider, stamp, table, write

PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
SIZES = (32, 40, 48, 56, 64, 72, 80, 96)

_of_thread = threading.local()


def by_run(session: Any, device: str, x: Any) -> Any:
    return session.run(None, {"x": x})[0]


def by_ort_values(session: Any, device: str, x: Any) -> Any:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x, device, 0)
    return session.run_with_ort_values(None, {"x": value})[0].numpy()


def by_binding(session: Any, device: str, x: Any) -> Any:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", device)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]


def by_callback(session: Any, device: str, x: Any) -> Any:
    done, received = threading.Event(), []

    def callback(results: Any, user_data: Any, error: str) -> None:
        received.append((results, error))
        done.set()

    session.run_async(None, {"x": x}, callback, None)
    if not done.wait(300) or received[0][1]:
        raise RuntimeError(received[0][1] if received else "the callback did not come")
    return received[0][0][0]


def by_asyncio(session: Any, device: str, x: Any) -> Any:
    if not hasattr(_of_thread, "runner"):
        _of_thread.runner = asyncio.Runner()
    return _of_thread.runner.run(session.arun(None, {"x": x}))[0]


ENTRIES: tuple[Callable[[Any, str, Any], Any], ...] = (by_run, by_ort_values, by_binding, by_callback, by_asyncio)


def hammer(session: Any, device: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run on all threads and count what came of it, by entry point and shape."""
    from ortlock import models

    inputs = [models.seeded_input((1, 3, size, size), seed=size) for size in SIZES]
    expected = [by_run(session, device, x).view(np.uint32) for x in inputs]
    numbers = itertools.count()
    found: list[Counter[str]] = [Counter() for _ in range(args.threads)]
    end = time.monotonic() + args.seconds

    def work(counts: Counter[str]) -> None:
        for number in numbers:
            if number >= args.runs or time.monotonic() > end:
                break
            entry, shape = ENTRIES[number % len(ENTRIES)], number // 3 % len(SIZES)
            try:
                output = entry(session, device, inputs[shape])
            except Exception as error:
                counts[f"failed: {type(error).__name__}"] += 1
                continue
            same = np.array_equal(output.view(np.uint32), expected[shape])
            counts["right" if same else "differs"] += 1
            counts[entry.__name__] += 1
        if hasattr(_of_thread, "runner"):
            _of_thread.runner.close()

    threads = [threading.Thread(target=work, args=(counts,)) for counts in found]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    counts = sum(found, Counter[str]())
    entries = {entry.__name__: counts.pop(entry.__name__, 0) for entry in ENTRIES}
    return {"found": dict(counts), "by_entry": entries, "runs": sum(counts.values()), "seconds": seconds}


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=tuple(PROVIDERS), default="cuda")
    parser.add_argument("--runs", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/concurrency_<provider>.json")
    args = parser.parse_args()
    from ortlock import ReproducibleSession, models

    cuda, provider = args.provider == "cuda", PROVIDERS[args.provider]
    session = ReproducibleSession(models.conv_net(6), providers=[provider], lanes=args.lanes, mode="strict")
    require_provider(session, provider)
    with busy_gpu() if cuda else contextlib.nullcontext():
        result = hammer(session, args.provider, args)
    note(f"{result['runs']} runs")
    result |= {"threads": args.threads, "shapes": len(SIZES), "report": session.report().to_dict()["lanes"]}
    result |= {"provider": provider, "busy": cuda, **stamp(cuda=cuda)}
    rows = [(kind, count) for part in ("found", "by_entry") for kind, count in result[part].items()]
    table(f"{args.threads} threads, {args.lanes} lanes, {result['seconds']:.0f} s", ("outcome, entry", "runs"), rows)
    write(args.output or RESULTS / f"concurrency_{args.provider}.json", result)


if __name__ == "__main__":
    main()
