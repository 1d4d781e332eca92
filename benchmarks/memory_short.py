"""Threads that share a session while memory is short: right, wrong and failed runs, with stock and with ortlock.

    python benchmarks/memory_short.py [--limits MB ...] [--leave MB ...] [--runs N] [--output FILE]

The net has branches of Conv with a node between that only the CPU provider has. 12 threads run three batch sizes on one
session: with ``gpu_mem_limit``, and without on a GPU whose memory another process has filled but for ``--leave``. At
last one thread: a chain of Conv has run a small image; a large one fails while another process holds the memory, and is
run again when that is free.

Each side is measured in a process of its own, as stock can lose the CUDA context, for ``--runs`` or ``--seconds``.
``wrong`` are outputs off by more than a thousandth of the largest value that a session with enough memory gave; ``other
bits`` are nearer. Whether one run alone fits is measured too, in a session of its own. Stock searches algorithms with
HEURISTIC: its default times every engine whenever the shape changes, hours of it for this number of runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import RESULTS, note, stamp, table, write

CUDA = "CUDAExecutionProvider"
SIDES = ("stock", "stock, one lock", "ortlock, default", "ortlock, lanes=3")
THREADS, BATCHES = 12, (1, 2, 3)
MB = 2**20
AFTER = "one thread, after a run that failed"

_FILL = """
import sys
import cupy
held, leave = [], int(sys.argv[1])
while (free := cupy.cuda.runtime.memGetInfo()[0]) > leave + (4 << 20):
    held.append(cupy.cuda.alloc(max(2 << 20, (free - leave) // 2)))
print(free, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def filled_gpu(leave: int) -> Iterator[int]:
    """Let another process take the GPU's memory but for ``leave`` bytes; yields what is free then."""
    command = [sys.executable, "-c", _FILL, str(leave)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as filler:
        try:
            assert filler.stdout is not None
            yield int(filler.stdout.readline())
        finally:
            filler.kill()


def make(side: str, model: bytes, options: dict[str, str]) -> tuple[Any, Callable[[Any], Any]]:
    """Return a session and what runs it."""
    import threading

    import onnxruntime

    from ortlock import ReproducibleSession

    if side.startswith("ortlock"):
        lanes = 3 if side.endswith("3") else None
        ours = ReproducibleSession(model, providers=[(CUDA, options)], lanes=lanes)
        return ours, lambda x: ours.run(None, {"x": x})[0]
    options = {"cudnn_conv_algo_search": "HEURISTIC", **options}
    stock = onnxruntime.InferenceSession(model, providers=[(CUDA, options)])
    if side == "stock":
        return stock, lambda x: stock.run(None, {"x": x})[0]
    lock = threading.Lock()

    def locked(x: Any) -> Any:
        with lock:
            return stock.run(None, {"x": x})[0]

    return stock, locked


def judged(run: Callable[[Any], Any], x: Any, expected: Any) -> str:
    """Run once and say what came of it."""
    import numpy as np

    try:
        found = run(x)
    except Exception as error:
        return f"failed: {type(error).__name__}"
    if np.array_equal(found, expected):
        return "right"
    off = np.abs(found - expected).max()
    # NaN is not near anything.
    return "other bits" if off <= 1e-3 * np.abs(expected).max() else "wrong"


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Measure one side in this process."""
    from ortlock import models

    if job.get("after_failure"):
        return measure_after_failure(job["side"])
    size = job["size"]
    model = models.branches(size=size)
    inputs = [models.seeded_input((n, 8, size, size), seed=n) for n in BATCHES]
    limit = job.get("limit")
    options = {} if limit is None else {"gpu_mem_limit": str(limit * MB)}
    unlimited = make(job["side"], model, {})
    expected = [unlimited[1](x) for x in inputs]
    if limit is not None:
        del unlimited
        alone = make("stock, one lock", model, options)[1]
        fits = all(
            not judged(alone, x, wanted).startswith("failed") for x, wanted in zip(inputs, expected, strict=True)
        )
        session, run = make(job["side"], model, options)
        del alone
    else:
        # Each batch has run: what one run needs is held by the session before the GPU is filled.
        (session, run), fits = unlimited, True
    with contextlib.ExitStack() as stack:
        free = None if limit is not None else stack.enter_context(filled_gpu(job["leave"] * MB))
        with ThreadPoolExecutor(THREADS) as pool:
            end = time.monotonic() + job["seconds"]

            def work(number: int) -> str | None:
                return judged(run, inputs[number % 3], expected[number % 3]) if time.monotonic() < end else None

            found = Counter(filter(None, pool.map(work, range(job["runs"]))))
    providers = session.get_providers()
    lanes = session.report().to_dict()["lanes"] if job["side"].startswith("ortlock") else None
    return {
        "one_alone_fits": fits,
        "free_mb": None if free is None else free // MB,
        "found": dict(found),
        "left_cuda": providers[0] != CUDA,
        "context_alive": alive(model, inputs[0], expected[0]),
        "lanes": lanes,
    }


def measure_after_failure(side: str) -> dict[str, Any]:
    """Run a large image while memory is short, and again when it is not, on one thread."""
    from ortlock import models

    model = models.conv_net(4)
    small, large = (models.seeded_input((1, 3, size, size)) for size in (64, 1024))
    expected = make(side, model, {})[1](large)
    session, run = make(side, model, {})
    run(small)
    with filled_gpu(48 * MB) as free:
        short = judged(run, large, expected)
    found = Counter(judged(run, large, expected) for _ in range(10))
    return {
        "one_alone_fits": True,
        "free_mb": free // MB,
        "while_short": short,
        "found": dict(found),
        "left_cuda": session.get_providers()[0] != CUDA,
        "context_alive": alive(model, large, expected),
    }


def alive(model: bytes, x: Any, expected: Any) -> bool:
    """Return whether a new session of this process runs on CUDA, and gives the values."""
    import numpy as np

    session, run = make("stock", model, {})
    with contextlib.suppress(Exception):
        return session.get_providers()[0] == CUDA and bool(np.allclose(run(x), expected, rtol=1e-3, atol=1e-3))
    return False


def in_a_process(job: dict[str, Any]) -> dict[str, Any]:
    """Run measure() in a process of its own; a process that died is a result as well."""
    done = subprocess.run(
        [sys.executable, __file__, "--worker"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return {"process": f"ended with status {done.returncode}", "told": done.stderr.strip().splitlines()[-1:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def show(result: dict[str, Any]) -> None:
    """Print the table of a result."""
    rows = []
    for case, sides in result["cases"].items():
        for side, measured in sides.items():
            found = measured.get("found", {})
            failed = sum(count for kind, count in found.items() if kind.startswith("failed"))
            numbers = [found.get(kind, 0) for kind in ("right", "other bits", "wrong")]
            after = measured.get("process") or ("alive" if measured["context_alive"] else "lost")
            fits = "yes" if measured.get("one_alone_fits") else "no"
            rows.append((case, side, fits, *numbers, failed, after))
    header = ("memory", "side", "one alone fits", "right", "other bits", "wrong", "failed", "CUDA after")
    table(f"{result['runs']} runs of {THREADS} threads", header, rows)


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", nargs="*", type=int, default=[24, 32, 48, 64], help="gpu_mem_limit in MiB")
    parser.add_argument("--leave", nargs="*", type=int, default=[64], help="MiB that another process leaves free")
    parser.add_argument("--no-failure", action="store_true", help="leave out the one thread after a failed run")
    parser.add_argument("--add", action="store_true", help="keep the cases that the output file has already")
    parser.add_argument("--size", type=int, default=64, help="of the images")
    parser.add_argument("--runs", type=int, default=3600)
    parser.add_argument("--seconds", type=float, default=40, help="most that a side may take for them")
    parser.add_argument("--output", type=Path, default=RESULTS / "memory_short.json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(json.load(sys.stdin))))
        return
    cases: dict[str, Any] = {f"gpu_mem_limit {limit} MiB": {"limit": limit} for limit in args.limits}
    if not args.no_failure:
        cases[AFTER] = {"after_failure": True}
    cases |= {f"{leave} MiB left by another process": {"leave": leave} for leave in args.leave}
    result: dict[str, Any] = {"runs": args.runs, "size": args.size, "cases": {}, **stamp(cuda=True)}
    if args.add:
        result["cases"] = json.loads(args.output.read_text())["cases"]
    given = {"runs": args.runs, "size": args.size, "seconds": args.seconds}
    limited = [case for case, job in cases.items() if "limit" in job]
    # A limit is each process's own. A GPU that is filled is filled for all.
    for at_once, chosen in ((True, limited), (False, [case for case in cases if case not in limited])):
        jobs = [(case, side, {"side": side, **given, **cases[case]}) for case in chosen for side in SIDES]
        with ThreadPoolExecutor(len(jobs) or 1 if at_once else 1) as pool:
            for (case, side, _), measured in zip(jobs, pool.map(in_a_process, [job for *_, job in jobs]), strict=True):
                result["cases"].setdefault(case, {})[side] = measured
                note(f"{case}: {side}: {measured.get('found', measured)}")
                write(args.output, result)
    show(result)


if __name__ == "__main__":
    main()
