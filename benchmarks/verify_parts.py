"""The parts of verify_evidence.py."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import verify_models
from common import note
from ortlock import NotReproducibleError, ReproducibleSession, models
from ortlock.cli.inputs import input_specs
from ortlock.cli.seeded import seeded_feeds
from ortlock.digest import digest
from ortlock.verify import Evidence

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
Row = dict[str, Any]
Feed = dict[str, Any]

UNTIL_FOUND = ("again", "fresh session", "threads")
CHEAP = ("again", "shuffled shapes", "threads", "lanes")
"""Stresses that fill up to the wanted number of runs."""

THREADS = 12
MEMORY_RUNS = 3600
BRANCH_SIZE = 112
OCR_SHAPES = {
    "rec": [(1, 3, 48, 320), (1, 3, 48, 240)],
    "det": [(1, 3, 416, 640), (1, 3, 320, 480)],
}


class SkippedError(Exception):
    """A part or a case cannot be run here; the text says why."""


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    provider: str
    quick: bool = False
    html: Path | None = None
    models: tuple[Path, ...] = ()
    memory_seconds: float = 45

    def session(self, model: bytes | Path, mode: str) -> ReproducibleSession:
        session = ReproducibleSession(model, providers=[self.provider], mode=mode)
        if session.get_providers()[0] != self.provider:
            raise RuntimeError(f"{self.provider} cannot be used here; the session has {session.get_providers()}")
        return session

    def need_cuda(self, why: str) -> None:
        """Raise SkippedError where the provider is not CUDA."""
        if self.provider != CUDA:
            raise SkippedError(f"needs --provider cuda: {why}")

    def page(self, part: str, case: str, session: ReproducibleSession) -> None:
        """Write a session's report as a page, where pages are asked for."""
        if self.html is not None:
            self.page_path(part, case).write_text(session.report().to_html(), encoding="utf-8")

    def page_path(self, part: str, case: str) -> Path:
        assert self.html is not None
        words = "".join(letter if letter.isalnum() else " " for letter in case.lower()).split()
        return self.html / f"{'_'.join([part, *words])}.html"


@dataclass(frozen=True)
class Case:
    """A model with two sets of inputs, so that their order can be shuffled."""

    model: bytes
    shapes: tuple[tuple[int, ...], ...]
    varies_on: tuple[str, ...] = ()
    """Providers on which its bits vary in stock."""

    def feeds(self) -> list[Feed]:
        return [{"x": models.seeded_input(shape, seed=seed)} for seed, shape in enumerate(self.shapes)]


def _cases() -> dict[str, Case]:
    conv, image = (1, 128, 28, 28), (1, 64, 256, 256)
    return {
        "ConvTranspose": Case(models.conv_transpose(conv, 64), (conv, conv), (CUDA,)),
        "ReduceSum": Case(models.reduction("ReduceSum", image), (image, image), (CUDA,)),
        "ScatterND": Case(verify_models.scatter(), ((50_000,), (50_000,)), (CUDA,)),
        "RandomNormalLike": Case(verify_models.draws(), ((64,), (64,)), (CUDA, CPU)),
        "residual net": Case(models.residual_net(size="size"), ((1, 3, 112, 112), (1, 3, 96, 96))),
        "demo model": Case(models.demo_model(), ((1, 3, 112, 112), (1, 3, 112, 112))),
    }


def _each(part: str, names: Iterable[str], measure: Callable[[str], Row]) -> list[Row]:
    """Measure one case after another; what fails leaves the others."""
    rows: list[Row] = []
    for name in names:
        note(f"{part}: {name}")
        try:
            rows.append({"case": name, **measure(name)})
        except SkippedError as skipped:
            rows.append({"case": name, "skipped": str(skipped)})
        except NotReproducibleError as refused:
            rows.append({"case": name, "status": "refused", "note": str(refused)})
        except Exception as error:
            note(traceback.format_exc())
            rows.append({"case": name, "note": f"{type(error).__name__}: {error}", "ok": False})
    return rows


def observe(settings: Settings) -> list[Row]:
    """Find what varies in stock, name the node, and count distinct outputs of 12 runs."""
    cases = {name: case for name, case in _cases().items() if case.varies_on}

    def measure(name: str) -> Row:
        case = cases[name]
        if settings.provider not in case.varies_on:
            raise SkippedError(f"looked for on {' and '.join(case.varies_on)}")
        session, feed = settings.session(case.model, "observe"), case.feeds()[0]
        found = session.verify(feed, runs=30, stresses=UNTIL_FOUND)
        outputs = [digest(session.run(None, feed)) for _ in range(12)]
        settings.page("observe", name, session)
        under = [stress.name for stress in found.stresses if stress.distinct > 1]
        row = {"status": str(found.status), "runs_until_found": found.runs, "under": under}
        return {**row, "distinct_of_12": len(set(outputs)), **_node(found, name), "seconds": found.seconds}

    return _each("observe", cases, measure)


def _node(found: Evidence, op_type: str) -> Row:
    """Return what a search found, and whether it named an operator of the right type."""
    node = found.localised.node if found.localised is not None else None
    named = {"node": node.label, "op_type": node.op_type} if node is not None else {"node": None, "op_type": None}
    seconds = found.localised.seconds if found.localised is not None else None
    return {**named, "note": found.note, "localise_seconds": seconds, "ok": named["op_type"] == op_type}


def strict(settings: Settings) -> list[Row]:
    """Run models in strict under every stress."""
    # A sequence of random numbers goes on: strict refuses it.
    cases = {name: case for name, case in _cases().items() if name != "RandomNormalLike"}

    def measure(name: str) -> Row:
        session = settings.session(cases[name].model, "strict")
        return _under_every_stress(settings, "strict", name, session, cases[name].feeds(), 1000)

    return _each("strict", cases, measure)


def _under_every_stress(
    settings: Settings, part: str, name: str, session: ReproducibleSession, feeds: Sequence[Feed], total: int
) -> Row:
    """Verify under every stress, twice for each set of inputs at least, then under the cheap ones up to ``total``."""
    each, total = (1, 40) if settings.quick else (2, total)
    found = [session.verify(feeds, runs=each * len(feeds))]
    note(f"{part}: {name}: {found[0].runs} runs under every stress")
    cheap = [stress.name for stress in found[0].stresses if stress.runs and stress.name in CHEAP]
    if (missing := total - found[0].runs) > 0 and str(found[0].status) == "holds":
        found.append(session.verify(feeds, runs=-(-missing // len(cheap)), stresses=cheap))
    settings.page(part, name, session)
    runs, failed, distinct = Counter[str](), Counter[str](), Counter[str]()
    seconds = dict[str, float]()
    for stress in (stress for evidence in found for stress in evidence.stresses):
        runs[stress.name] += stress.runs
        seconds[stress.name] = round(seconds.get(stress.name, 0) + stress.seconds, 2)
        failed[stress.name] += stress.failed
        distinct[stress.name] = max(distinct[stress.name], stress.distinct)
    statuses = {str(evidence.status) for evidence in found}
    return {
        "runs": sum(runs.values()),
        "by_stress": {key: runs[key] for key in runs if runs[key]},
        "failed": {key: count for key, count in failed.items() if count},
        "not_run": {stress.name: stress.note for stress in found[0].stresses if not stress.runs},
        "notes": {stress.name: stress.note for stress in found[0].stresses if stress.runs and stress.note},
        "seconds_by_stress": {name: taken for name, taken in seconds.items() if taken},
        "distinct": max(distinct.values()),
        "status": statuses.pop() if len(statuses) == 1 else "violated",
        "verdict": str(session.report().verdict),
        "seconds": sum(evidence.seconds for evidence in found),
        "ok": all(str(evidence.status) == "holds" for evidence in found),
    }


def settings_that_must_not_matter(settings: Settings) -> list[Row]:
    """Find that ``fuse_conv_bias`` matters: a Conv with bias whose every output should be 7."""
    settings.need_cuda("fuse_conv_bias is an option of the CUDA provider")
    name, shape = "Conv with bias", (1, 64, 28, 28)
    session = settings.session(models.biased_conv(shape=shape), "observe")
    found = session.verify({"x": models.seeded_input(shape)}, runs=6, stresses=("again", "settings"), early_stop=False)
    settings.page("settings", name, session)
    wrong = [stress.name for stress in found.stresses if stress.distinct > 1]
    not_run = {stress.name: stress.note for stress in found.stresses if not stress.runs}
    row = {"case": name, "wrong": wrong, "not_run": not_run, **_node(found, "Conv")}
    return [{**row, "status": str(found.status), "seconds": found.seconds, "ok": wrong == ["fuse_conv_bias=1"]}]


def memory(settings: Settings) -> list[Row]:
    """Run a session with little memory from twelve threads, in stock and in strict, with the command line."""
    settings.need_cuda("the stress limits the CUDA provider's memory")
    shares = {"observe": 1.0, "strict": 0.5}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "branches.onnx"
        model.write_bytes(models.branches(size=BRANCH_SIZE))

        def measure(mode: str) -> Row:
            return _memory_in(settings, model, mode, settings.memory_seconds * shares[mode])

        return _each("memory", shares, measure)


def _memory_in(settings: Settings, model: Path, mode: str, seconds: float) -> Row:
    # A run may leave the CUDA context lost, and the process with it: the command's own.
    shapes = ",".join(f"x:{'x'.join(map(str, (batch, 8, BRANCH_SIZE, BRANCH_SIZE)))}" for batch in (1, 2, 3))
    runs = 100 if settings.quick else MEMORY_RUNS
    given = ["--mode", mode, "--threads", str(THREADS), "--stress", "memory limit", "--runs", str(runs)]
    given += ["--shapes", shapes, "--seconds", str(seconds), "--keep-going", "--provider", "cuda", "--json"]
    if mode == "observe":
        # Stock's default times every engine for every new shape: hours of it, for this number of runs.
        given += ["--option", "cudnn_conv_algo_search=HEURISTIC"]
    command = f"ortlock verify {model.name} {shlex.join(given)}"
    if settings.html is not None:
        given += ["--html", str(settings.page_path("memory", mode))]
    started = time.perf_counter()
    done = command_line(["verify", str(model), *given], limit=seconds + 60)
    row: Row = {"command": command, "exit_status": done.returncode}
    row["seconds"] = time.perf_counter() - started
    if not done.stdout.lstrip().startswith("{"):
        words = done.stderr.strip().splitlines()
        crashed = done.returncode not in (0, 1, 2)
        status = "crashed" if crashed else "refused"
        return {**row, "status": status, "note": words[-1] if words else "", "ok": crashed and mode == "observe"}
    evidence = json.loads(done.stdout)["evidence"]
    (stress,) = evidence["stresses"]
    row |= {name: stress[name] for name in ("runs", "failed", "distinct")}
    row |= {"status": evidence["status"], "note": stress["note"], "evidence_note": evidence["note"]}
    # In stock it is rare, and not seen each time.
    return {**row, "ok": mode == "observe" or evidence["status"] == "holds"}


def command_line(arguments: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Run ``ortlock`` in a process of its own, with the packages that are found here."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "ortlock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit, env=environment)


def localise(settings: Settings) -> list[Row]:
    """Find the one node of 300 whose bits vary."""
    names = verify_models.PLANTS if settings.provider == CUDA else ["RandomNormalLike"]

    def measure(name: str) -> Row:
        model = verify_models.planted(name, 60 if settings.quick else 300)
        session = settings.session(model, "observe")
        x = models.seeded_input((1, verify_models.CHANNELS, verify_models.SIZE, verify_models.SIZE))
        found = session.localise({"x": x})
        node = found.node
        right = node is not None and node.name == verify_models.PLANTED
        return {
            "model_nodes": len(onnx.load_model_from_string(model).graph.node),
            "nodes": found.nodes,
            "looked_at": found.exposed,
            "graph": found.graph,
            "node": None if node is None else node.label,
            "right": right,
            "confirmed": found.confirmed,
            "distinct": 0 if node is None else max(output.distinct for output in node.outputs),
            "note": " ".join(found.notes),
            "seconds": found.seconds,
            "ok": right and found.seconds < 60,
        }

    return _each("localise", names, measure)


def ocr(settings: Settings) -> list[Row]:
    """Run models from files in strict under every stress."""
    if not settings.models:
        raise SkippedError("needs --models FILE.onnx ...: PP-OCRv4 recognition and detection")
    paths = {path.stem: path for path in settings.models}

    def measure(name: str) -> Row:
        session = settings.session(paths[name], "strict")
        (spec,) = input_specs(session)
        shapes = OCR_SHAPES["rec" if "rec" in name else "det"]
        feeds = seeded_feeds([spec], 0, {}, {spec.name: shapes})
        row = _under_every_stress(settings, "ocr", name, session, feeds, 200)
        return {**row, "shapes": [list(shape) for shape in shapes]}

    return _each("ocr", paths, measure)
