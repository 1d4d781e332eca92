"""Which operators give other bits from run to run on stock ONNX Runtime: one small model an operator, type and shape.

    python benchmarks/operator_sweep.py [--provider cuda|cpu] [--case REGEX ...] [--runs 12] [--sessions 2]
                                        [--no-deterministic] [--no-busy] [--optimized] [--nhwc] [--workers N]
                                        [--seconds N] [--registered FILE.json] [--output FILE] [--list]

Each case runs under ONNX Runtime's default and with ``use_deterministic_compute``, half of its runs while another
process keeps the GPU at work. Outputs are compared byte by byte. Cases run in worker processes: one that kills its
process is reported as ``crashed``, and the next process goes on after it. Several workers share the GPU, so that
kernels of other cases run beside a case's in the idle phase too; ``--workers 1`` keeps it to one. The cases are in
operator_cases/; the first of every operator come first, so that a short ``--seconds`` still reaches each operator.
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import RESULTS, busy_gpu, note, stamp, table, write
from operator_cases import Case, all_cases
from operator_cases.measuring import larger

PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
# Seconds for one case and setting, and for what a worker does until its first is through, which loads the provider.
UNIT_LIMIT = 40
START_LIMIT = 150
_RAN = "ran"
_LIST = """
import json, sys
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
print(json.dumps([(one.domain, one.op_name) for one in get_all_opkernel_def() if one.provider == sys.argv[1]]))
"""

Unit = tuple[str, str]


@dataclass
class Outcome:
    """What a case gave under a setting, over all phases."""

    status: str = "not reached"
    reason: str | None = None
    digests: list[str] = field(default_factory=list)
    max_abs: float | str | None = None
    max_ulp: int | None = None
    sessions: int = 0
    phases: list[str] = field(default_factory=list)
    provider: str | None = None
    nodes: dict[str, list[str]] | None = None
    as_function: bool = False

    def add(self, result: dict[str, Any], phase: str) -> None:
        """Add a worker's result."""
        self.status, self.reason = result["status"], result.get("reason")
        self.digests += result["digests"]
        self.max_abs = larger(self.max_abs, result["max_abs"])
        self.max_ulp = larger(self.max_ulp, result["max_ulp"])
        self.sessions += result["sessions"]
        self.phases.append(phase)
        self.provider = result.get("provider", self.provider)
        self.nodes = result.get("nodes", self.nodes)
        self.as_function = result.get("as_function", self.as_function)

    def to_dict(self, wanted: str) -> dict[str, Any]:
        """Return the result file's entry."""
        distinct = len(set(self.digests))
        counts = {"runs": len(self.digests), "sessions": self.sessions, "distinct": distinct}
        if distinct > 1 and self.sessions > 1:
            # Alike: every session gives the same outputs in the same order, as a seeded generator does.
            each = len(self.digests) // self.sessions
            lists = {tuple(self.digests[i : i + each]) for i in range(0, len(self.digests), each)}
            counts["distinct_sessions"] = len(lists)
        differences = {"max_abs": self.max_abs, "max_ulp": self.max_ulp}
        more = {"reason": self.reason} if self.reason else {}
        return {"status": self.verdict(wanted), "phases": self.phases, **counts, **differences, **more}

    def verdict(self, wanted: str) -> str:
        """Return the status in words: of a case that ran, whether its outputs differ."""
        if self.status != _RAN:
            return self.status
        if self.provider != wanted:
            return "on CPU"
        return "differs" if len(set(self.digests)) > 1 else "same"


class Worker:
    """A process that measures units until it is through, dies or is stuck."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._complaints: list[str] = []
        threading.Thread(target=self._read_errors, daemon=True).start()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            json.dump(asked, stdin)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._complaints = [*self._complaints[-9:], line.strip()]

    def messages(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Yield the worker's messages, and one with ``ended`` where it stops early, with the reason."""
        limit = START_LIMIT
        while True:
            now = time.monotonic()
            if now >= deadline:
                self.stop()
                yield {"ended": "out of time"}
                return
            try:
                line = self._lines.get(timeout=min(limit, deadline - now))
            except queue.Empty:
                late = time.monotonic() >= deadline
                self.stop()
                yield {"ended": "out of time" if late else f"no answer in {limit} s"}
                return
            if line is None:
                code = self.process.wait()
                if code:
                    yield {"ended": ": ".join([f"the process ended with {code}", *self._complaints[-1:]])[:300]}
                return
            message: dict[str, Any] = json.loads(line)
            if "unit" in message:
                # What was said until now is of a case that is through.
                limit, self._complaints = UNIT_LIMIT, []
            yield message

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def sweep(asked: dict[str, Any], phase: str, outcomes: dict[Unit, Outcome], deadline: float, workers: int) -> None:
    """Measure all units that did not fail so far, with several workers at once."""
    open_ = [unit for unit, outcome in outcomes.items() if outcome.status in (_RAN, "not reached")]
    # A case's settings go to one worker, which makes its inputs once.
    names = list(dict.fromkeys(name for name, _ in open_))
    shares: list[list[Unit]] = [[] for _ in range(workers)]
    place = {name: position % workers for position, name in enumerate(names)}
    for unit in open_:
        shares[place[unit[0]]].append(unit)
    with ThreadPoolExecutor(workers) as pool:
        ends = [pool.submit(_share, asked, phase, outcomes, deadline, share) for share in shares if share]
    for end in ends:
        end.result()


def _share(asked: dict[str, Any], phase: str, outcomes: dict[Unit, Outcome], deadline: float, left: list[Unit]) -> None:
    """Measure units one after the other, with as many workers in turn as it takes."""
    told = time.monotonic()
    while left and time.monotonic() < deadline:
        worker = Worker(asked | {"units": left})
        begun: Unit | None = None
        done = 0
        try:
            for message in worker.messages(deadline):
                if "begins" in message:
                    begun = (message["begins"][0], message["begins"][1])
                elif "unit" in message:
                    name, setting = message["unit"]
                    outcomes[name, setting].add(message["result"], phase)
                    begun, done = None, done + 1
                elif message["ended"] == "out of time":
                    return
                elif begun is not None:
                    outcomes[begun].status, outcomes[begun].reason = "crashed", message["ended"]
                    note(f"{begun[0]} ({begun[1]}): {message['ended']}")
                    done += 1
                elif not done:
                    note(f"a worker did not start, {len(left)} units are left out: {message['ended']}")
                    return
                if time.monotonic() - told > 20:
                    told = time.monotonic()
                    note(f"{phase}: {len(left) - done} to go")
        finally:
            worker.stop()
        left = left[done:]


def entry(case: Case, outcomes: dict[Unit, Outcome], settings: Sequence[str], wanted: str) -> dict[str, Any]:
    """Return a case's entry of the result file."""
    first = outcomes[case.name, settings[0]]
    facts = {"case": case.name, "operator": case.operator, "domain": case.domain, "opset": case.opset}
    inputs = {"types": case.types(), "own_type": case.dtype, "shapes": case.shapes()}
    ran = {"provider": first.provider, "nodes": first.nodes, "as_function": first.as_function}
    found = {setting: outcomes[case.name, setting].to_dict(wanted) for setting in settings}
    return {**facts, **inputs, **ran, "settings": found}


def by_operator(entries: Sequence[dict[str, Any]], settings: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each operator and setting whether any case differs, and in how many runs none did."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in entries:
        groups.setdefault((one["domain"], one["operator"]), []).append(one)
    rows = []
    for (domain, operator), members in sorted(groups.items()):
        row: dict[str, Any] = {"operator": operator, "domain": domain, "cases": len(members)}
        for setting in settings:
            row[setting] = _in_words([member["settings"][setting] for member in members])
        rows.append(row)
    return rows


def _in_words(found: Sequence[dict[str, Any]]) -> str:
    statuses = Counter(one["status"] for one in found)
    others = [f"{number} {status}" for status, number in sorted(statuses.items()) if status not in ("same", "differs")]
    measured = statuses["same"] + statuses["differs"]
    if statuses["differs"]:
        first = f"differs in {statuses['differs']} of {measured} cases"
    elif measured:
        first = f"deterministic in {sum(one['runs'] for one in found if one['status'] == 'same')} runs"
    else:
        return ", ".join(others)
    return ", ".join([first, *others])


def registered_operators(path: Path | None, provider: str) -> set[tuple[str, str]]:
    """Return domain and name of the provider's operators: from a file, else from ONNX Runtime's own list.

    ONNX Runtime makes that list in a process of its own: it loads every provider that it was built for, and ends the
    process where the library of one is missing. Then the list is empty.
    """
    if path is not None:
        found = [(one["domain"], one["op"]) for one in json.loads(path.read_text())]
    else:
        done = subprocess.run([sys.executable, "-c", _LIST, provider], capture_output=True, text=True, check=False)
        if done.returncode:
            note("ONNX Runtime could not list the registered operators; give --registered")
            return set()
        found = [tuple(one) for one in json.loads(done.stdout.splitlines()[-1])]
    return {("" if domain == "ai.onnx" else domain, name) for domain, name in found}


def uncovered(
    registered: set[tuple[str, str]], entries: Sequence[dict[str, Any]], settings: Sequence[str]
) -> dict[str, list[str]]:
    """Return the registered operators of which there is no case, and those of which none was measured there."""
    there = {(one["domain"], one["operator"]) for one in entries}
    measured = {
        (one["domain"], one["operator"])
        for one in entries
        if any(one["settings"][setting]["status"] in ("same", "differs") for setting in settings)
    }

    def names(operators: set[tuple[str, str]]) -> list[str]:
        return sorted(f"{domain}:{name}".lstrip(":") for domain, name in operators)

    return {"without_case": names(registered - there), "not_measured": names((registered & there) - measured)}


def show(entries: Sequence[dict[str, Any]], settings: Sequence[str]) -> None:
    """Print what differs and how many cases came to what."""
    rows = []
    for one in entries:
        found = [one["settings"][setting] for setting in settings]
        if any(each["status"] not in ("same", "not run", "on CPU", "not reached") for each in found):
            words = [
                f"{each['distinct']} of {each['runs']}" if each["status"] in ("same", "differs") else each["status"]
                for each in found
            ]
            worst = next((each for each in found if each["status"] == "differs"), found[0])
            rows.append((one["case"], one["shapes"], *words, worst["max_abs"], worst["max_ulp"]))
    header = ("case", "inputs", *settings, "largest difference", "in ULP")
    table("Cases whose outputs differ or that failed (distinct of runs)", header, rows)
    counts = [Counter(one["settings"][setting]["status"] for one in entries) for setting in settings]
    statuses = sorted(set().union(*counts))
    lines = [(status, *(count[status] for count in counts)) for status in statuses]
    table(f"{len(entries)} cases", ("status", *settings), lines)


def arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=tuple(PROVIDERS), default="cuda")
    parser.add_argument("--case", action="append", metavar="REGEX", help="cases to run, by name; may be repeated")
    parser.add_argument("--runs", type=int, default=12, help="runs of a case and setting, over all sessions")
    parser.add_argument("--sessions", type=int, default=2, help="sessions of a case and setting")
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--busy",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="half of the sessions with other work on the GPU; default: on for cuda",
    )
    parser.add_argument("--optimized", action="store_true", help="with ONNX Runtime's graph optimizations (cpu only)")
    parser.add_argument("--nhwc", action="store_true", help="with the provider option prefer_nhwc=1 (cuda only)")
    parser.add_argument(
        "--workers", type=int, default=None, help="processes at once; default: 6 for cuda, which they share, 1 for cpu"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="when to stop; what is left is not reached")
    parser.add_argument("--registered", type=Path, help='its operators: a JSON list of {"op", "domain"}')
    parser.add_argument("--output", type=Path)
    parser.add_argument("--list", action="store_true", help="only print the cases' names")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for."""
    args = arguments()
    if args.optimized and args.provider != "cpu":
        raise SystemExit("--optimized needs --provider cpu: a saved model does not tell which provider runs what")
    if args.nhwc and args.provider != "cuda":
        raise SystemExit("--nhwc needs --provider cuda: no other provider has that option")
    if args.worker:
        from operator_cases.measuring import main as measure

        return measure()
    patterns = [re.compile(text) for text in args.case or [""]]
    cases = [case for case in all_cases() if any(pattern.search(case.name) for pattern in patterns)]
    if args.list:
        print("\n".join(case.name for case in cases))
        return 0
    import onnxruntime

    cuda, wanted = args.provider == "cuda", PROVIDERS[args.provider]
    busy = cuda if args.busy is None else args.busy
    settings = ["stock", "deterministic"] if args.deterministic else ["stock"]
    outcomes = {(case.name, setting): Outcome() for case in cases for setting in settings}
    phases = ("idle", "busy") if busy else ("idle",)
    workers = args.workers or (6 if cuda else 1)
    each = max(1, args.sessions // len(phases))
    runs = max(1, args.runs // (each * len(phases)))
    version = onnxruntime.__version__
    output = args.output or RESULTS / f"operator_sweep_{args.provider}_ort{version}.json"
    started = time.monotonic()
    facts = {"onnxruntime": version, "provider": wanted, "runs": args.runs, "sessions": args.sessions}
    facts |= {
        "workers": workers,
        "settings": settings,
        "phases": phases,
        "optimized": args.optimized,
        "nhwc": args.nhwc,
    }
    entries: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="operator_sweep_") as folder:
        asked = {"provider": wanted, "sessions": each, "runs": runs, "folder": folder}
        asked |= {"optimized": args.optimized, "provider_options": {"prefer_nhwc": "1"} if args.nhwc else {}}
        for number, phase in enumerate(phases, 1):
            note(f"{phase}: {len(cases)} cases, {len(settings)} settings, {workers} workers")
            with ExitStack() as stack:
                if phase == "busy":
                    try:
                        stack.enter_context(busy_gpu())
                    except RuntimeError as error:
                        note(f"no runs on a busy GPU: {error}")
                        break
                # The second phase has what the first leaves, and half of the time at least.
                sweep(asked, phase, outcomes, started + args.seconds * number / len(phases), workers)
            entries = [entry(case, outcomes, settings, wanted) for case in cases]
            missing = uncovered(registered_operators(args.registered, wanted), entries, settings)
            found = {"cases": entries, "operators": by_operator(entries, settings), "registered": missing}
            result = facts | found | {"seconds": round(time.monotonic() - started, 1), "complete": False}
            write(output, result)
    show(entries, settings)
    if cuda:
        from ortlock import native

        native.load_cuda_provider()
    write(output, result | {"complete": True} | stamp(cuda=cuda))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
