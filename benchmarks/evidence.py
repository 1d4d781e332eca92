"""Stock and ortlock side by side: what changes from run to run, session to session and process to process.

    python benchmarks/evidence.py [--only SECTION ...] [--quick] [--output FILE] [--provider cpu]
                                  [--ppocr-det FILE.onnx]

Every figure counts distinct outputs, compared byte by byte. Sessions run in processes of their own; ``busy`` means
that another process keeps the GPU at work. The result file is written after every section, so that a run that is cut
short keeps what it measured. ``--quick`` runs every section with few sessions and runs, to check the script itself.
``python benchmarks/evidence.py --summary`` joins the results of several ONNX Runtime versions into one table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import RESULTS, busy_gpu, note, stamp, table, write

CUDA = "CUDAExecutionProvider"
WORKER = Path(__file__).with_name("evidence_worker.py")


@dataclass
class Row:
    """One line of the table."""

    section: str
    case: str
    stock: str
    ours: str
    holds: bool
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    provider: str
    ppocr_det: Path | None
    quick: bool = False

    def number(self, full: int, quick: int) -> int:
        """Return how many sessions, runs or processes to take."""
        return quick if self.quick else full


# Seconds for one worker: a stuck one must not stop the rest. Kernels compiled at first use need most of a minute.
WORKER_LIMIT = 240


def work(jobs: Sequence[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    """Run jobs in one new process."""
    asked = json.dumps({"jobs": list(jobs), **extra})
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=asked,
        capture_output=True,
        text=True,
        check=False,
        timeout=WORKER_LIMIT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"worker failed: {done.stderr.strip().splitlines()[-1:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def job(
    settings: Settings, name: str, side: str, model: dict[str, Any], x: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Return a job with the provider options that every comparison uses."""
    options = {"cudnn_conv_algo_search": "EXHAUSTIVE"} if settings.provider == CUDA else {}
    options |= more.pop("options", {})
    provider = settings.provider
    return {
        "name": name,
        "side": side,
        "model": model,
        "input": x,
        "provider": provider,
        "provider_options": options,
        **more,
    }


def flat(result: dict[str, Any]) -> list[str]:
    """Return every digest of a result."""
    return [digest for session in result["digests"] for digest in session]


def failure(settings: Settings, *results: dict[str, Any]) -> str | None:
    """Return why results do not count: an error, or sessions that ONNX Runtime moved to another provider."""
    for result in results:
        if result["error"]:
            return str(result["error"])
        if result["providers"][0] != settings.provider:
            return f"ran on {result['providers'][0]}, not on {settings.provider}"
    return None


def count(digests: Sequence[str], error: str | None = None) -> str:
    """Return ``distinct of runs`` in words."""
    return f"error: {error}" if error else f"{len(set(digests))} of {len(digests)}"


def compare(settings: Settings, section: str, cases: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> list[Row]:
    """Stock: 12 runs of a session. Ours: 12 runs in each of two sessions, and a third session in another process."""
    runs = settings.number(12, 3)

    def jobs(side: str, sessions: int) -> list[dict[str, Any]]:
        return [job(settings, name, side, *case, sessions=sessions, runs=runs) for name, case in cases.items()]

    # Each in a process of its own: after a stock session ran, ortlock would come too late.
    sides = [work(jobs("stock", 1)), work(jobs("strict", 2)), work(jobs("strict", 1))]
    rows = []
    for stock, ours, other in zip(*(side["results"] for side in sides), strict=True):
        digests = flat(ours) + flat(other)
        error = failure(settings, ours, other)
        holds = not error and len(set(digests)) == 1 and ours["verdict"] == other["verdict"] == "bitwise"
        detail = {"plans": ours.get("plans"), "verdict": ours.get("verdict"), "reasons": ours.get("reasons")}
        before = count(flat(stock), failure(settings, stock))
        rows.append(Row(section, stock["name"], before, count(digests, error), holds, detail))
    return rows


def convtranspose(settings: Settings) -> list[Row]:
    """ConvTranspose, whose first choice in cuDNN is nondeterministic."""
    shapes = {(1, 128, 28, 28): 64, (1, 512, 7, 7): 256, (1, 64, 112, 112): 3}
    cases = {
        f"ConvTranspose {shape} k4 s2 to {channels}": (
            {"build": "conv_transpose", "args": {"shape": shape, "channels": channels}},
            {"shape": shape, "dtype": "float32"},
        )
        for shape, channels in shapes.items()
    }
    return compare(settings, "convtranspose", cases)


def reduce(settings: Settings) -> list[Row]:
    """Reductions to one value."""
    shape = [64, 1000, 100]
    cases = {
        f"{op} {shape} to one value": (
            {"build": "reduction", "args": {"op_type": op, "shape": shape}},
            {"shape": shape, "dtype": "float32"},
        )
        for op in ("ReduceSum", "ReduceMean")
    }
    return compare(settings, "reduce", cases)


NETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "20-conv residual net fp32": (
        {"build": "residual_net", "args": {"dtype": "float32"}},
        {"shape": [1, 3, 112, 112], "dtype": "float32"},
    ),
    "20-conv residual net fp16": (
        {"build": "residual_net", "args": {"dtype": "float16"}},
        {"shape": [1, 3, 112, 112], "dtype": "float16"},
    ),
    "10 FusedConv nodes": (
        {"build": "fused_conv_net", "args": {}},
        {"shape": [1, 64, 56, 56], "dtype": "float32"},
    ),
}


def nets(settings: Settings) -> list[Row]:
    """Nets under EXHAUSTIVE: 8 sessions in a process, then 4 processes at once of 3 sessions, GPU idle and busy."""
    rows = []
    sessions, processes, each = settings.number(8, 2), settings.number(4, 2), settings.number(3, 1)
    for load in ("idle", "busy") if settings.provider == CUDA else ("idle",):
        with busy_gpu() if load == "busy" else nullcontext():
            sides = {}
            for side in ("stock", "strict"):
                many = [job(settings, name, side, *case, sessions=sessions) for name, case in NETS.items()]
                few = [job(settings, name, side, *case, sessions=each) for name, case in NETS.items()]
                note(f"nets, {load}, {side}")
                one = work(many)["results"]
                with ThreadPoolExecutor(processes) as pool:
                    others = [answer["results"] for answer in pool.map(work, [few] * processes)]
                sides[side] = (one, others)
        for i, name in enumerate(NETS):
            words, everything, errors, verdicts = {}, {}, {}, {}
            for side, (one, others) in sides.items():
                results = [one[i], *(answers[i] for answers in others)]
                elsewhere = [digest for result in results[1:] for digest in flat(result)]
                error = errors[side] = failure(settings, *results)
                words[side] = f"error: {error}" if error else f"{count(flat(one[i]))}; {count(elsewhere)}"
                everything[side] = set(flat(one[i])) | set(elsewhere)
                verdicts[side] = {result.get("verdict") for result in results}
            holds = not errors["strict"] and len(everything["strict"]) == 1 and verdicts["strict"] == {"bitwise"}
            detail = {"plans": sides["strict"][0][i].get("plans"), "errors": [e for e in errors.values() if e]}
            case_ = f"{name}, {load}: {sessions} sessions; {processes} processes x {each}"
            rows.append(Row("nets", case_, words["stock"], words["strict"], holds, detail))
    return rows


def bias(settings: Settings) -> list[Row]:
    """A Conv with bias under the caller's fuse_conv_bias=1; every output value should be 7."""
    import onnxruntime

    if onnxruntime.__version__.startswith("1.19."):
        note("this ONNX Runtime has no fuse_conv_bias")
        return []
    rows = []
    for dtype in ("float32", "float16"):
        case = ({"build": "biased_conv", "args": {"dtype": dtype}}, {"shape": [1, 64, 28, 28], "dtype": dtype})
        jobs = [
            job(settings, "bias", side, *case, runs=4, constant=7.0, options={"fuse_conv_bias": "1"})
            for side in ("stock", "pin", "strict")
        ]
        # fp16 makes stock fall back inside the process: each side gets one of its own.
        stock, pin, strict = (work([one])["results"][0] for one in jobs)

        def words(result: dict[str, Any]) -> str:
            if result["error"]:
                return f"error: {result['error'][:160]}"
            off = ", ".join(f"{value:g}" for value in result["deviations"])
            return f"off by {off} on {result['providers'][0].removesuffix('ExecutionProvider')}"

        told = [text for text in pin["warnings"] if text.startswith("ReproducibilityWarning")]
        right = not pin["error"] and max(pin["deviations"]) == 0 and pin["providers"][0] == settings.provider
        refused = (strict["error"] or "").startswith("NotReproducibleError")
        ours = f"pin: {words(pin)}, {len(told)} warning; strict: {'refuses' if refused else words(strict)}"
        detail = {"warnings": told, "strict": strict["error"], "stock_warnings": stock["warnings"]}
        rows.append(
            Row("bias", f"fuse_conv_bias=1, {dtype}", words(stock), ours, right and refused and len(told) == 1, detail)
        )
    return rows


def late(settings: Settings) -> list[Row]:
    """A CUDA session that ran a Conv before ortlock was imported."""
    case = ({"build": "conv_net", "args": {"depth": 2, "size": 32}}, {"shape": [1, 3, 32, 32], "dtype": "float32"})
    answer = work(
        [job(settings, "late", "pin", *case), job(settings, "late", "strict", *case)],
        stock_first=job(settings, "first", "stock", *case),
        state=True,
    )
    pin, strict = answer["results"]
    resolved = answer["notes"]["state"]["resolved_before"]
    style = answer["notes"]["state"]["style"]
    refused = (strict["error"] or "").startswith("NotReproducibleError")
    expected = refused == bool(resolved) and (pin["verdict"] == "bitwise") == (not resolved)
    said = f"strict refuses, pin: {pin['verdict']}" if refused else f"in time all the same, {strict.get('verdict')}"
    detail = {"resolved_before": resolved, "strict": strict["error"]}
    return [Row("late", f"Conv before import ({style})", "-", said, expected, detail)]


def pytorch(settings: Settings) -> list[Row]:
    """PyTorch imported and used before or after, in the same process."""
    rows = []
    shape = [1, 128, 28, 28]
    case = ({"build": "conv_transpose", "args": {"shape": shape, "channels": 64}}, {"shape": shape, "dtype": "float32"})
    digests = set()
    for order in ("before", "after"):
        answer = work([job(settings, "torch", "strict", *case, runs=3)], torch=order, state=True)
        result, notes = answer["results"][0], answer["notes"]
        digests |= set(flat(result))
        right = notes["torch"] == notes["torch_again"] and notes["calls_of_torch"] == 0
        holds = not result["error"] and result["verdict"] == "bitwise" and right and len(digests) == 1
        said = (
            result["error"]
            or f"{count(flat(result))}, {result['verdict']}; PyTorch's calls seen: {notes['calls_of_torch']}"
        )
        rows.append(Row("torch", f"PyTorch used {order}", "-", said, holds, {"torch": notes["torch"]}))
    return rows


def ppocr(settings: Settings) -> list[Row]:
    """PP-OCRv4 text detection on a photo, in three processes."""
    if settings.ppocr_det is None:
        raise FileNotFoundError("--ppocr-det: the model ch_PP-OCRv4_det_infer.onnx of the package rapidocr-onnxruntime")
    case = ({"path": str(settings.ppocr_det.resolve())}, {"photo": [416, 640]})
    runs = settings.number(3, 1)
    stock = [work([job(settings, "det", "stock", *case, runs=runs)])["results"][0] for _ in range(3)]
    ours = [work([job(settings, "det", "strict", *case, runs=runs)])["results"][0] for _ in range(3)]
    error = failure(settings, *ours)
    digests = [digest for result in ours for digest in flat(result)]
    verdicts = sorted({str(result.get("verdict")) for result in ours})
    said = count(digests, error) + ("" if error else f", {' and '.join(verdicts)}")
    holds = not error and len(set(digests)) == 1 and verdicts == ["bitwise"]
    before = count([digest for result in stock for digest in flat(result)], failure(settings, *stock))
    detail = {"reasons": ours[0].get("reasons"), "plans": ours[0].get("plans")}
    return [Row("ppocr", f"PP-OCRv4 detection, photo 416x640, 3 processes x {runs} runs", before, said, holds, detail)]


def threads(settings: Settings) -> list[Row]:
    """Eight threads on one session."""
    runs = settings.number(20, 3)
    cases = {
        name: job(settings, name, "strict", *NETS[name], runs=runs, threads=8)
        for name in ("20-conv residual net fp32", "10 FusedConv nodes")
    }
    serial = [{**one, "threads": 1, "runs": 2} for one in cases.values()]
    results = work([*cases.values(), *serial])["results"]
    rows = []
    for i, name in enumerate(cases):
        parallel, single = results[i], results[i + len(cases)]
        digests = flat(parallel) + flat(single)
        error = failure(settings, parallel, single)
        holds = not error and len(set(digests)) == 1 and parallel["verdict"] == single["verdict"] == "bitwise"
        rows.append(Row("threads", f"{name}, 8 threads x {runs} runs", "-", count(digests, error), holds))
    return rows


SECTIONS: dict[str, Callable[[Settings], list[Row]]] = {
    "convtranspose": convtranspose,
    "reduce": reduce,
    "nets": nets,
    "bias": bias,
    "late": late,
    "torch": pytorch,
    "ppocr": ppocr,
    "threads": threads,
}
_GPU_ONLY = ("bias", "late", "torch")


def summary(folder: Path) -> None:
    """Join the results in ``folder`` into one Markdown table, a column for each ONNX Runtime version."""
    results = []
    for path in sorted(folder.glob("evidence_ort*.json"), reverse=True):
        result = json.loads(path.read_text())
        if not result.get("complete", True) or result.get("quick"):
            note(f"{path} was cut short or made with --quick and is left out")
        elif not result["environment"]["gpu"]:
            note(f"{path} was not measured on a GPU and is left out")
        else:
            results.append(result)
    if not results:
        raise SystemExit(f"no results in {folder}: run benchmarks/evidence.py on a GPU first")
    lines: dict[str, dict[str, str]] = {}
    for result in results:
        for row in result["rows"]:
            key = f"{row['section']}: {row['case'].split(' (')[0] if row['section'] == 'late' else row['case']}"
            mark = "holds" if row["holds"] else "DOES NOT HOLD"
            cell = f"{row['stock']} -> **{row['ours']}**" if row["stock"] != "-" else f"**{row['ours']}**"
            lines.setdefault(key, {})[result["onnxruntime"]] = f"{cell} ({mark})".replace("|", "\\|")
    versions = [result["onnxruntime"] for result in results]
    gpu = results[0]["environment"]["gpu"]
    # The process that collects the results has cuDNN loaded only where the provider imports it.
    cudnn = next((r["environment"]["gpu"]["cudnn"] for r in results if r["environment"]["gpu"]["cudnn"]), "?")
    text = [
        f"# Stock and ortlock, distinct outputs by line of ONNX Runtime ({gpu['name']}, cuDNN {cudnn})",
        "",
        "Each cell: stock -> **ortlock** (`strict` unless it says otherwise); `1 of 12` means one distinct output in "
        "12 runs. Made by `benchmarks/evidence.py --summary` from the JSON files beside it.",
        "",
        f"| case | {' | '.join(versions)} |",
        f"|---|{'---|' * len(versions)}",
        *(
            f"| {case} | {' | '.join(cells.get(version, '') for version in versions)} |"
            for case, cells in lines.items()
        ),
    ]
    (folder / "evidence.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


def main() -> int:
    """Run the sections and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(SECTIONS), help="section to run; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few sessions and runs, to check the script itself")
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ppocr-det", type=Path, help="PP-OCRv4 detection model")
    parser.add_argument(
        "--output",
        type=Path,
        help="result file; default: benchmarks/results/evidence_ort<version>.json, and another name, which --summary "
        "does not read, on the CPU, with --quick and with --only",
    )
    parser.add_argument("--summary", action="store_true", help="only join the results into one table")
    args = parser.parse_args()
    if args.summary:
        summary(args.output or RESULTS)
        return 0
    import onnxruntime

    cuda = args.provider == "cuda"
    settings = Settings(CUDA if cuda else "CPUExecutionProvider", args.ppocr_det, args.quick)
    chosen = args.only or [name for name in SECTIONS if cuda or name not in _GPU_ONLY]
    skipped: list[str] = []
    if not args.only and args.ppocr_det is None:
        note("ppocr is left out: it needs --ppocr-det FILE.onnx")
        chosen.remove("ppocr")
        skipped.append("ppocr")
    kind = [word for word, there in (("cpu", not cuda), ("quick", args.quick), ("part", args.only)) if there]
    version = onnxruntime.__version__
    output = args.output or RESULTS / f"{'_'.join(['evidence', *kind])}_ort{version}.json"
    rows: list[Row] = []

    def result(complete: bool) -> dict[str, Any]:
        facts = {"provider": settings.provider, "quick": args.quick, "sections": chosen, "skipped": skipped}
        return {"onnxruntime": version, "complete": complete, **facts, "rows": [vars(row) for row in rows]}

    for name in chosen:
        note(name)
        try:
            rows += SECTIONS[name](settings)
        except Exception as error:
            note(traceback.format_exc())
            rows.append(Row(name, name, "-", f"{type(error).__name__}: {error}", False))
        write(output, result(complete=False))
    table(
        f"ONNX Runtime {version}, {settings.provider}: distinct outputs",
        ("section", "case", "stock", "ortlock", "holds"),
        [(row.section, row.case, row.stock, row.ours, "yes" if row.holds else "NO") for row in rows],
    )
    if cuda:
        from ortlock import native

        native.load_cuda_provider()
    write(output, result(complete=True) | stamp(cuda=cuda))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
