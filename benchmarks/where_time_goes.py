"""Where the time goes when input shapes change at every run: by library, beside the time of shapes that stay.

    python benchmarks/where_time_goes.py [--provider cuda|cpu] [--net NAME] [--passes N] [--hertz N] [--output FILE]

All shapes are known before anything is measured. ``changing`` runs the shapes in turn; ``steady`` runs each shape as
often, one after the other, so that the difference is what a change costs. Both are timed without sampling, then again
with it: the running thread is sampled by wall-clock time (sampler.c, built with ``cc``), so that waiting for the GPU
shows too. A sample stands for one period of the timer; work on other threads does not show.

The C and C++ libraries work for whoever called them. ``called from`` is the first of the 32 words at the top of the
stack that points behind a call in the code of another library. That is a heuristic: a word that an earlier call left
there can be taken for it, and a caller further up the stack is not found. What belongs to malloc is taken from the
symbols around it, because its inner functions have none. Without symbols a place is the library's offset, rounded
down to 256 bytes.

Exit status 1: cuDNN was asked for something in spite of known shapes, or samples were lost.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from changing_shapes import NETS
from common import RESULTS, note, stamp, table, write
from passes import pass_order

PROVIDER, ONNXRUNTIME, ORTLOCK, CUDNN = "CUDA provider", "onnxruntime", "ortlock", "cuDNN"
DRIVER, CUDA_LIBRARIES, PYTHON, OTHER = "CUDA driver", "CUDA runtime, cuBLAS", "Python, NumPy", "other"
MALLOC, LIBC, RUNTIME = "libc: malloc", "libc: the rest", "C++ runtime, loader, vdso"
NOBODY = "caller unknown"

# By file name. The provider comes before ONNX Runtime's other libraries, whose names begin like its own.
_LIBRARIES = (
    (PROVIDER, r"libonnxruntime_providers_cuda\b"),
    (ONNXRUNTIME, r"libonnxruntime|onnxruntime_pybind11_state"),
    (CUDNN, r"libcudnn"),
    (CUDA_LIBRARIES, r"libcudart|libcublas|libnvrtc|libnvJitLink|libcufft|libcurand"),
    (DRIVER, r"libcuda\.so|libcuda\b|libnvidia"),
    (LIBC, r"libc[.-]"),
    (RUNTIME, r"libstdc\+\+|libgcc_s|libm[.-]|libpthread|libdl[.-]|librt[.-]|ld-|ld\.|linux-vdso|linux-gate"),
    (PYTHON, r"python|libpython|.*\.cpython-"),
)
# These work for the library that called them.
_FOR_OTHERS = (MALLOC, LIBC, RUNTIME)
_PARTS = (
    ("CUDA provider, with cudnn-frontend", (PROVIDER,)),
    ("ortlock", (ORTLOCK,)),
    ("cuDNN", (CUDNN,)),
    ("CUDA driver, runtime, cuBLAS", (DRIVER, CUDA_LIBRARIES)),
    ("onnxruntime", (ONNXRUNTIME,)),
    ("Python, NumPy, other", (PYTHON, OTHER)),
    (NOBODY, (NOBODY,)),
)
_OF_MALLOC = re.compile(r"(?!obstack|_obstack).*(alloc|free|mallopt|mallinfo|memalign|morecore)")
_BUCKET = 256
_TOP = 15
_KEPT = 100


class Place(NamedTuple):
    """What stands at an address."""

    library: str
    file: str
    spot: str
    """The exported symbol, or the offset in the file."""
    after_call: bool


class Sample(NamedTuple):
    """Samples that fell into one spot."""

    library: str
    file: str
    spot: str
    caller: str | None
    """The library that called, of samples in libraries that work for others."""
    caller_spot: str | None


class _CPlace(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("symbol", ctypes.c_char_p),
        ("base", ctypes.c_uint64),
        ("symbol_address", ctypes.c_uint64),
        ("after_call", ctypes.c_uint64),
    )


class Sampler:
    """The C part, built into ``folder`` and loaded."""

    def __init__(self, folder: Path) -> None:
        library = folder / "sampler.so"
        source = Path(__file__).with_name("sampler.c")
        flags = ["-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
        libraries = ["-lrt", "-ldl", "-lpthread"]
        command = ["cc", *flags, "-o", str(library), str(source), *libraries]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise SystemExit("the sampler needs a C compiler, cc") from None
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"the sampler could not be built\n{error.stderr}") from None
        self._c = ctypes.CDLL(str(library))
        self._c.sampler_start.argtypes = [ctypes.c_long, ctypes.c_size_t]
        self._c.sampler_samples.restype = ctypes.POINTER(ctypes.c_uint64)
        for name in ("sampler_count", "sampler_lost", "sampler_words"):
            getattr(self._c, name).restype = ctypes.c_size_t
        self._c.sampler_resolve.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self.lost = 0
        """Of the last stop(): periods for which there was no room."""

    def start(self, hertz: int, most: int) -> None:
        """Make room for ``most`` samples of this thread; none is taken before resume()."""
        if self._c.sampler_start(hertz, most) != 0:
            raise SystemExit("the sampling timer could not be started")

    def resume(self) -> None:
        """Take samples from now on."""
        self._c.sampler_resume()

    def pause(self) -> None:
        """Take none until the next resume()."""
        self._c.sampler_pause()

    def stop(self) -> Counter[Sample]:
        """End sampling; return how many periods fell into each spot."""
        self._c.sampler_stop()
        self.lost = self._c.sampler_lost()
        count, width = self._c.sampler_count(), 2 + self._c.sampler_words()
        rows = np.empty((0, width), np.uint64)
        if count:
            rows = np.ctypeslib.as_array(self._c.sampler_samples(), (count, width)).copy()
        self._c.sampler_free()
        places = self._resolve(np.unique(np.delete(rows, 1, axis=1)))
        found: Counter[Sample] = Counter()
        nowhere = Place(OTHER, "", "outside any library", False)
        for row in rows.tolist():
            place = places.get(row[0], nowhere)
            caller = None
            if place.library in _FOR_OTHERS:
                words = (places[word] for word in row[2:] if word in places)
                caller = next((p for p in words if p.after_call and p.library not in _FOR_OTHERS), None)
            found[
                Sample(
                    place.library,
                    place.file,
                    place.spot,
                    caller.library if caller else None,
                    f"{caller.file} {caller.spot}" if caller else None,
                )
            ] += row[1]
        return found

    def _resolve(self, addresses: npt.NDArray[np.uint64]) -> dict[int, Place]:
        """Return what stands at those of ``addresses`` that are in code."""
        low, high = _code()
        # Eight bytes into it: the resolver looks at the instruction before.
        inside = np.searchsorted(low, addresses, side="right") - 1
        addresses = np.ascontiguousarray(addresses[(inside >= 0) & (addresses < high[inside])])
        raw = self._raw(addresses)
        malloc_low, malloc_high = self._malloc()
        places = {}
        for address, c in zip(addresses.tolist(), raw, strict=True):
            library, file = _library(c.file.decode() if c.file else "")
            if library == LIBC and malloc_low <= address < malloc_high:
                library = MALLOC
            spot = f"+{(address - c.base) // _BUCKET * _BUCKET:#x}"
            if c.symbol:
                spot = c.symbol.decode()
            places[address] = Place(library, file, spot, bool(c.after_call))
        return places

    def _raw(self, addresses: npt.NDArray[np.uint64]) -> Any:
        raw = (_CPlace * len(addresses))()
        self._c.sampler_resolve(addresses.ctypes.data, len(addresses), ctypes.byref(raw))
        return raw

    def _malloc(self) -> tuple[int, int]:
        """Return the part of libc between the nearest exported functions that have nothing to do with malloc."""
        libc = ctypes.CDLL("libc.so.6")
        names = ("malloc", "free", "calloc", "realloc")
        known = [ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0 for name in names]
        reach, step = 0x8000, 16
        low, high = min(known), max(known)
        below, above = (np.arange(low, low - reach, -step), np.arange(high, high + reach, step))

        def end(walk: npt.NDArray[np.int64]) -> int:
            for address, c in zip(walk.tolist(), self._raw(walk.astype(np.uint64)), strict=True):
                if c.symbol and not _OF_MALLOC.match(c.symbol.decode()):
                    return int(address)
            return int(walk[0])

        return end(below) + step, end(above)


def _code() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return beginnings (and 8 bytes) and ends of the readable code in this process, in order."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, rights, *_ = line.split()
        if rights[0] == "r" and rights[2] == "x":
            start, end = (int(value, 16) for value in where.split("-"))
            found.append((start + 8, end))
    low, high = zip(*sorted(found), strict=True)
    return np.array(low, np.uint64), np.array(high, np.uint64)


def _library(path: str) -> tuple[str, str]:
    """Return the library's row and its file name."""
    from ortlock import _native

    file = Path(path).name
    # Other packages have a _native of their own.
    if path and Path(path) == Path(_native.__file__):
        return ORTLOCK, file
    return next((library for library, names in _LIBRARIES if re.match(names, file)), OTHER), file


def measure(net_name: str, provider: str, passes: int, hertz: int) -> dict[str, Any]:
    """Measure both kinds of runs in this process."""
    from ortlock import ReproducibleSession, models, native

    net = NETS[net_name]
    name = "CPUExecutionProvider" if provider == "cpu" else "CUDAExecutionProvider"
    options = {} if provider == "cpu" else {"cudnn_conv_algo_search": "EXHAUSTIVE"}
    model = getattr(models, net.model)(**(net.arguments or {}))
    session = ReproducibleSession(model, providers=[(name, options)], mode="pin")
    # ONNX Runtime goes on with the CPU where CUDA cannot be used; its times would be taken for those of the GPU.
    if session.get_providers()[0] != name:
        raise SystemExit(f"{name} cannot be used here; the session has {session.get_providers()}")
    entry = session.get_inputs()[0].name
    feeds = [{entry: models.seeded_input(shape)} for shape in net.shapes]
    order = [index for number in range(passes) for index in pass_order(len(feeds), number)]
    runs = len(order)
    run = session.run

    def changing(resume: Callable[[], None], pause: Callable[[], None]) -> float:
        run(None, feeds[order[-1]] if order[-1] != order[0] else feeds[order[0] - 1])
        resume()
        started = time.perf_counter()
        for index in order:
            run(None, feeds[index])
        spent = time.perf_counter() - started
        pause()
        return spent / runs * 1e3

    def steady(resume: Callable[[], None], pause: Callable[[], None]) -> float:
        spent = 0.0
        for feed in feeds:
            # The change to this shape belongs to neither part.
            run(None, feed)
            resume()
            started = time.perf_counter()
            for _ in range(passes):
                run(None, feed)
            spent += time.perf_counter() - started
            pause()
        return spent / runs * 1e3

    def nothing() -> None:
        pass

    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(Path(folder))
        for feed in feeds * 2:
            run(None, feed)
        note("steady, then changing, without sampling")
        book, calls = dataclasses.asdict(native.book()), native.state().calls
        result: dict[str, Any] = {"runs": runs, "hertz": hertz, "steady_ms": steady(nothing, nothing)}
        steady_calls = _added(native.state().calls, calls, runs)
        calls = native.state().calls
        result["changing_ms"] = changing(nothing, nothing)
        result["calls_a_run"] = {"changing": _added(native.state().calls, calls, runs), "steady": steady_calls}

        samples: dict[str, Counter[Sample]] = {}
        for part, work in (("changing", changing), ("steady", steady)):
            note(f"{part}, {hertz} samples a second")
            # Twice what it took without sampling, and some for a start that stutters.
            sampler.start(hertz, int(2 * result[f"{part}_ms"] / 1e3 * runs * hertz) + 2000)
            result[f"{part}_sampled_ms"] = work(sampler.resume, sampler.pause)
            samples[part] = sampler.stop()
            result[f"{part}_samples"] = samples[part].total()
            result[f"{part}_lost"] = sampler.lost
        result["book"] = {field: value - book[field] for field, value in dataclasses.asdict(native.book()).items()}
    result.update(_tables(samples, 1e3 / hertz / runs))
    return result


def _added(now: dict[str, int], before: dict[str, int], runs: int) -> dict[str, float]:
    """Return calls a run by function, most first."""
    added = {name: (count - before.get(name, 0)) / runs for name, count in now.items()}
    return {name: round(added[name], 3) for name in sorted(added, key=lambda name: -added[name]) if added[name]}


def _tables(samples: dict[str, Counter[Sample]], weight: float) -> dict[str, Any]:
    """Return milliseconds a run by library, by whom it was done for, by spot and by caller."""

    def by(key: Callable[[Sample], str | None]) -> list[dict[str, Any]]:
        sums: dict[str, dict[str, float]] = {}
        for part, counts in samples.items():
            for sample, count in counts.items():
                if (name := key(sample)) is not None:
                    row = sums.setdefault(name, dict.fromkeys(samples, 0.0))
                    row[part] += count * weight
        rows = [{"name": name, **row, "difference": row["changing"] - row["steady"]} for name, row in sums.items()]
        return sorted(rows, key=lambda row: (-row["difference"], -row["changing"]))

    def part(sample: Sample) -> str:
        library = sample.library
        if library in _FOR_OTHERS:
            library = sample.caller or NOBODY
        return next(name for name, libraries in _PARTS if library in libraries)

    def called(sample: Sample) -> str | None:
        if sample.library not in _FOR_OTHERS:
            return None
        return f"{sample.library}, called from {sample.caller or 'unknown'}"

    def spots(*libraries: str) -> list[dict[str, Any]]:
        return by(lambda s: f"{s.file} {s.spot}" if s.library in libraries else None)[:_KEPT]

    return {
        "libraries": by(lambda sample: sample.library),
        "parts": by(part),
        "called_from": by(called),
        "callers": by(lambda s: f"{s.library}, called from {s.caller_spot}" if s.caller_spot else None)[:_KEPT],
        "spots": {
            "CUDA provider": spots(PROVIDER),
            "onnxruntime": spots(ONNXRUNTIME),
            "ortlock": spots(ORTLOCK),
            "C and C++ libraries": spots(*_FOR_OTHERS),
            "cuDNN": spots(CUDNN),
        },
    }


def _show(title: str, first: str, rows: list[dict[str, Any]], whole: dict[str, float] | None = None) -> None:
    """Print rows of milliseconds a run; with ``whole`` also the sum and each row's share of the difference."""
    header = [first, "ms a run changing", "ms a run steady", "difference"]
    fields = ("changing", "steady", "difference")
    lines = [[row["name"], *(f"{row[field]:.4f}" for field in fields)] for row in rows]
    if whole is not None:
        header.append("share of the difference")
        sums = {field: sum(row[field] for row in rows) for field in fields}
        for line, row in zip(lines, rows, strict=True):
            line.append(f"{row['difference'] / sums['difference']:.1%}" if sums["difference"] else "")
        lines.append(["all samples", *(f"{sums[field]:.4f}" for field in fields), ""])
        lines.append(["wall time, sampled", *(f"{whole[field]:.4f}" for field in fields), ""])
    table(title, header, lines)


def _faults(result: dict[str, Any]) -> list[str]:
    """Return what makes the result one of something else."""
    found = []
    for field in ("queries", "finalized"):
        if result["book"][field] != 0:
            found.append(f"{result['book'][field]} {field} though all shapes were known")
    for part in ("changing", "steady"):
        if result[f"{part}_lost"]:
            found.append(f"{part}: {result[f'{part}_lost']} samples lost for want of room")
    return found


def main() -> None:
    """Measure, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--net", choices=sorted(NETS), default="10 convolutions")
    parser.add_argument("--passes", type=int, help="runs of each shape a part; 300, with cpu 20")
    parser.add_argument("--hertz", type=int, default=4000, help="samples a second")
    parser.add_argument("--output", type=Path, default=RESULTS / "where_time_goes.json")
    args = parser.parse_args()
    passes = args.passes or (20 if args.provider == "cpu" else 300)

    result = measure(args.net, args.provider, passes, args.hertz)
    sampled = {part: result[f"{part}_sampled_ms"] for part in ("changing", "steady")}
    sampled["difference"] = sampled["changing"] - sampled["steady"]
    _show(f"{args.net}: time by library, milliseconds a run", "library", result["libraries"], sampled)
    _show("The same by whom it was done for (callers by a heuristic)", "part", result["parts"], sampled)
    _show("C and C++ libraries by caller (a heuristic)", "library", result["called_from"])
    for name, rows in result["spots"].items():
        if rows:
            _show(f"Within {name}, the {_TOP} largest differences", "place", rows[:_TOP])
    calls = result["calls_a_run"]
    rows = [(name, value, calls["steady"].get(name, 0.0)) for name, value in calls["changing"].items()]
    if rows:
        rows.insert(0, ("all", *(round(sum(calls[part].values()), 3) for part in ("changing", "steady"))))
        table("Calls through ortlock's hooks, a run", ("function", "changing", "steady"), rows)
    note(
        f"without sampling {result['changing_ms']:.4f} ms a run changing, {result['steady_ms']:.4f} steady; "
        f"with sampling {sampled['changing']:.4f} and {sampled['steady']:.4f}"
    )
    write(
        args.output,
        {"net": args.net, "shapes": NETS[args.net].shapes, **result, **stamp(cuda=args.provider == "cuda")},
    )
    if found := _faults(result):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
