"""Where the time of a changing shape goes: by library, beside the time of a shape that stays.

    python benchmarks/where_time_goes.py [--provider cuda|cpu] [--depth N] [--passes N] [--output FILE]

One net of convolutions, four input sizes in turn, all of them seen before. The running thread is sampled by wall-clock
time (sampler.c, built with the machine's C compiler). A sample in the C or C++ library counts for the library that
called it: the first word at the top of the stack that points into another library's code, which is a good guess and
no more. Samples stand for time; the wall time without sampling is measured beside them.
"""

from __future__ import annotations

import argparse
import bisect
import ctypes
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import RESULTS, note, stamp, table, write

HERTZ = 5000
SIZES = (224, 192, 160, 256)
_RUNTIME = ("libc.so", "libstdc++.so", "libm.so", "libpthread.so")


class Sampler:
    """The C part, built and loaded."""

    def __init__(self, folder: Path) -> None:
        library = folder / "sampler.so"
        source = Path(__file__).with_name("sampler.c")
        flags = ["-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *flags, "-o", str(library), str(source), "-lrt"], check=True)
        self._c = ctypes.CDLL(str(library))
        self._c.sampler_start.argtypes = [ctypes.c_long]
        self._c.sampler_counters.restype = ctypes.POINTER(ctypes.c_uint64)
        self._c.sampler_stacks.restype = ctypes.POINTER(ctypes.c_uint64)

    def libraries(self, work: Callable[[], object]) -> Counter[str]:
        """Run ``work`` on this thread; return samples by library."""
        if self._c.sampler_start(HERTZ) != 0:
            raise RuntimeError("the sampling timer could not be started")
        work()
        count = self._c.sampler_stop()
        counters, stacks, words = self._c.sampler_counters(), self._c.sampler_stacks(), self._c.sampler_words()
        find = _code_finder()
        found: Counter[str] = Counter()
        for index in range(count):
            name = find(counters[index]) or "unknown"
            if name.startswith(_RUNTIME):
                callers = (find(stacks[index * words + word]) for word in range(words))
                name = next((caller for caller in callers if caller and not caller.startswith(_RUNTIME)), name)
            found[name] += 1
        return found


def _code_finder() -> Callable[[int], str | None]:
    """Return what tells the file name of the library whose code an address points into."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if "x" in fields[1]:
            start, end = (int(value, 16) for value in fields[0].split("-"))
            ranges.append((start, end, Path(fields[5]).name if len(fields) > 5 else "unknown"))
    ranges.sort()
    starts = [start for start, _, _ in ranges]

    def find(address: int) -> str | None:
        place = bisect.bisect_right(starts, address) - 1
        return ranges[place][2] if place >= 0 and address < ranges[place][1] else None

    return find


def share(name: str) -> str:
    """Return whose part of the work a library is."""
    groups = {
        "libonnxruntime_providers_cuda": "ONNX Runtime's CUDA provider and its cuDNN frontend",
        "_native": "ortlock's hooks",
        "libcudnn": "cuDNN",
        "libcuda": "CUDA driver and runtime",
        "libcublas": "cuBLAS",
        "onnxruntime": "ONNX Runtime",
        "libonnxruntime": "ONNX Runtime",
        "python": "Python",
        "libpython": "Python",
    }
    return next((group for prefix, group in groups.items() if name.startswith(prefix)), "other")


def per_run(samples: Counter[str], milliseconds: float) -> dict[str, float]:
    """Return milliseconds a run by group."""
    total = samples.total()
    groups: Counter[str] = Counter()
    for name, count in samples.items():
        groups[share(name)] += count
    return {group: count / total * milliseconds for group, count in groups.most_common()}


def timed(work: Callable[[], object], runs: int) -> float:
    """Return milliseconds a run."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) / runs * 1e3


def measure(provider: str, depth: int, passes: int) -> dict[str, Any]:
    """Measure both kinds of run in this process."""
    from ortlock import ReproducibleSession, models, native

    session = ReproducibleSession(models.conv_net(depth), providers=[provider], mode="pin")
    feeds = [{"x": models.seeded_input((1, 3, size, size))} for size in SIZES]

    def changing() -> None:
        for _ in range(passes):
            for feed in feeds:
                session.run(None, feed)

    def staying() -> None:
        for feed in feeds:
            for _ in range(passes):
                session.run(None, feed)

    runs = passes * len(feeds)
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(Path(folder))
        for feed in feeds * 2:
            session.run(None, feed)
        before, calls = native.book(), native.state().calls
        result: dict[str, Any] = {"changing_ms": timed(changing, runs)}
        seen = native.state().calls
        result["calls_a_run"] = {name: (count - calls.get(name, 0)) / runs for name, count in seen.items()}
        after = native.book()
        result["book"] = {name: value - asdict(before)[name] for name, value in asdict(after).items()}
        result["staying_ms"] = timed(staying, runs)
        note("sampling")
        result["changing"] = per_run(sampler.libraries(changing), result["changing_ms"])
        result["staying"] = per_run(sampler.libraries(staying), result["staying_ms"])
    return result


def main() -> int:
    """Measure, print a table, write JSON; 1 if cuDNN was asked for anything that was known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--depth", type=int, default=10, help="convolutions")
    parser.add_argument("--passes", type=int, default=200)
    parser.add_argument("--output", type=Path, default=RESULTS / "where_time_goes.json")
    args = parser.parse_args()
    cuda = args.provider == "cuda"
    result = measure("CUDAExecutionProvider" if cuda else "CPUExecutionProvider", args.depth, args.passes)
    changing, staying = result["changing"], result["staying"]
    extra = result["changing_ms"] - result["staying_ms"]
    result["microseconds_a_convolution"] = {
        group: (changing.get(group, 0.0) - staying.get(group, 0.0)) / args.depth * 1e3
        for group in sorted({*changing, *staying})
    }
    rows = [
        (
            group,
            f"{changing.get(group, 0.0):.3f}",
            f"{staying.get(group, 0.0):.3f}",
            f"{result['microseconds_a_convolution'][group]:+.1f}",
        )
        for group in sorted({*changing, *staying}, key=lambda group: -result["microseconds_a_convolution"][group])
    ]
    rows.append(
        ("all", f"{result['changing_ms']:.3f}", f"{result['staying_ms']:.3f}", f"{extra / args.depth * 1e3:+.1f}")
    )
    header = ("part", "changing sizes ms", "one size ms", "difference, microseconds a convolution")
    table(f"{args.depth} convolutions, {len(SIZES)} known sizes in turn, milliseconds a run", header, rows)
    write(args.output, {"depth": args.depth, "sizes": SIZES, **result, **stamp(cuda=cuda)})
    return int(result["book"]["queries"] > 0 or result["book"]["finalized"] > 0)


if __name__ == "__main__":
    sys.exit(main())
