"""``ortlock verify MODEL``: run it under stress and compare all outputs bit by bit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortlock.cli.errors import CommandError, cannot_load, cause_of, does_not_run, readable_model
from ortlock.cli.feeds import chosen_feeds, input_files, input_options
from ortlock.cli.files import OutputPath, Used, check_files, model_argument
from ortlock.cli.inputs import Feed, input_specs
from ortlock.cli.options import (
    BAD_INPUT,
    DOES_NOT_HOLD,
    HOLDS,
    MOST_THREADS,
    Seconds,
    choose_providers,
    json_option,
    nothing_but_json,
    progress,
    provider_option,
    provider_settings,
    same_provider,
    show_json,
    show_table,
    with_settings,
)
from ortlock.cli.page import check_page, html_option, write_page
from ortlock.errors import OrtlockError
from ortlock.words import counted

if TYPE_CHECKING:
    from rich.progress import Progress

    from ortlock.verify import BatchClaim, Evidence
    from ortlock.verify.golden import GoldenResult


@click.command("verify")
@model_argument
@provider_option
@provider_settings
@input_options
@click.option("--mode", type=click.Choice(("observe", "pin", "strict")), help="Default: ORTLOCK_MODE, else pin.")
@click.option(
    "--lock",
    type=OutputPath("a lockfile", "model.lock.json"),
    help="Replay this lockfile, and check its golden digests.",
)
@click.option("--golden", is_flag=True, help="Write golden digests to the lockfile instead of checking them.")
@click.option(
    "--golden-outputs",
    type=OutputPath("an .npz archive", "golden.npz"),
    help="FILE.npz: with --golden, also write the outputs; else say how far off they are where digests differ.",
)
@click.option("--runs", type=click.IntRange(1), help="Runs under each stress.  [default: 20 without --seconds]")
@click.option("--seconds", type=Seconds(), help="Seconds for all stresses together.")
@click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    default=4,
    show_default=True,
    help="Threads that share a session.",
)
@click.option("--stress", multiple=True, metavar="NAME", help="Only this kind of stress; may be repeated.")
@click.option("--batch", is_flag=True, help="Also measure batch invariance: rows alone and in batches.")
@click.option("--keep-going", is_flag=True, help="Do not end at the first difference.")
@html_option
@json_option
def command(
    model: Path,
    provider: str,
    settings: tuple[str, ...],
    inputs: tuple[Path, ...],
    seed: int | None,
    dim: tuple[str, ...],
    shapes: str,
    mode: str | None,
    lock: Path | None,
    golden: bool,
    golden_outputs: Path | None,
    runs: int | None,
    seconds: float | None,
    threads: int,
    stress: tuple[str, ...],
    batch: bool,
    keep_going: bool,
    html: Path | None,
    as_json: bool,
) -> int:
    """Run MODEL again and again, in new sessions and processes, on threads, in short and poisoned memory and beside
    other work, compare all outputs bit by bit, and name the node where they differ.

    Exit status 0: no output differed, all are the golden ones if --lock asks for them, and rows are independent of
    their batch if --batch asks for that; 1: one is not so; 2: it cannot be told.
    """
    from ortlock.report.model import Status
    from ortlock.verify.golden import check_golden, write_golden
    from ortlock.verify.golden_outputs import GoldenOutputs

    path = str(readable_model(model))
    if golden and lock is None:
        raise CommandError("--golden writes to a lockfile; give --lock FILE too.")
    if golden_outputs is not None and lock is None:
        raise CommandError("--golden-outputs goes with the golden digests of a lockfile; give --lock FILE too.")
    _check_files(model, inputs, lock, golden_outputs, html, golden)
    check_page(html)
    # Before all runs and before anything is written: a file that cannot be read is told at once.
    arrays = None
    if golden_outputs is not None and (not golden or golden_outputs.exists()):
        arrays = GoldenOutputs(golden_outputs)
    with nothing_but_json(as_json), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = _session(path, with_settings(choose_providers(provider), settings), mode, lock, golden)
        feeds = chosen_feeds(input_specs(session), inputs, seed, dim, shapes)
        first = session.get_providers()[0]
        with progress(as_json) as bar:
            task = bar.add_task("verifying", total=None)

            def advance(name: str, done: int, total: int) -> None:
                bar.update(task, description=name, completed=done, total=total or None)

            evidence = _verified(
                session,
                model,
                feeds,
                runs=runs,
                seconds=seconds,
                threads=threads,
                stresses=stress or None,
                early_stop=not keep_going,
                progress=advance,
            )
            claim = _batch(session, feeds[0], bar) if batch else None
        same_provider(session, first, "verify")
        checked: list[GoldenResult] = []
        written = 0
        if golden and evidence.status is Status.HOLDS:
            written = write_golden(session, feeds, evidence.outputs, golden_outputs)
        elif lock is not None and not golden:
            checked = check_golden(session, feeds, evidence.outputs, arrays)
        report = session.report()
    if as_json:
        show_json(
            {
                "model": str(model),
                "provider": first,
                "evidence": evidence.to_dict(),
                "batch": None if claim is None else claim.to_dict(),
                "golden": [result.to_dict() for result in checked],
                "golden_written": written,
                "report": report.to_dict(),
            }
        )
    else:
        _show(model, first, evidence)
        if claim is not None:
            print(claim)
        _tell_golden(lock, checked, written, golden)
    written_page = html is None or write_page(html, report.to_html)
    statuses = {evidence.status, *(result.status for result in checked)}
    if claim is not None:
        statuses.add(claim.status)
    if Status.VIOLATED in statuses:
        return DOES_NOT_HOLD
    return BAD_INPUT if Status.UNKNOWN in statuses or not written_page else HOLDS


def _check_files(
    model: Path, inputs: Sequence[Path], lock: Path | None, outputs: Path | None, html: Path | None, golden: bool
) -> None:
    """Check that no file is used for two things; with ``golden`` the lockfile and the golden outputs are written."""
    locked = (("--lock", lock), ("--golden-outputs", outputs))
    given = [Used(name, path, written=golden, locked=golden) for name, path in locked if path is not None]
    given += [Used("--html", html, written=True)] if html is not None else []
    check_files(Used("MODEL", model), input_files(inputs), given)


def _session(path: str, providers: Sequence[Any], mode: str | None, lock: Path | None, golden: bool) -> Any:
    from ortlock import ReproducibleSession

    lock_mode = None if lock is None else "record" if golden else "replay"
    try:
        return ReproducibleSession(path, providers=list(providers), mode=mode, lockfile=lock, lock_mode=lock_mode)
    except (OrtlockError, ValueError):
        raise
    except Exception as error:
        raise cannot_load(Path(path), error) from error


def _verified(session: Any, model: Path, feeds: Sequence[Feed], **how: Any) -> Evidence:
    try:
        found: Evidence = session.verify(feeds, **how)
        return found
    except (OrtlockError, ValueError):
        raise
    except Exception as error:
        raise does_not_run(model, "does not run with these inputs", error) from error


def _batch(session: Any, feed: Feed, bar: Progress) -> BatchClaim:
    """Measure batch invariance; unknown where it cannot be, as what was verified before is to be shown in any case."""
    from ortlock.report.model import Status
    from ortlock.verify import BatchClaim

    task = bar.add_task("batch invariance", total=None)
    try:
        found: BatchClaim = session.batch_invariance(
            feed, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
        return found
    except Exception as error:
        text = f"it cannot be measured with these inputs: {cause_of(error)}."
        return BatchClaim(Status.UNKNOWN, text, 0, (), (), ())


def _show(model: Path, provider: str, evidence: Evidence) -> None:
    rows = [
        (
            stress.name,
            stress.scope,
            stress.runs or "not run",
            stress.failed or "",
            stress.distinct or "",
            stress.status,
            stress.note,
        )
        for stress in evidence.stresses
    ]
    title = f"{model.name} on {provider}: {counted(len(evidence.inputs), 'input')}, {evidence.seconds:.1f} s"
    show_table(title, ("stress", "scope", "runs", "failed", "distinct", "status", "note"), rows)
    print(f"{evidence.status}: {evidence.summary()}")
    if evidence.localised is not None:
        print(evidence.localised)
    if evidence.note:
        print(evidence.note)


def _tell_golden(lock: Path | None, checked: Sequence[GoldenResult], written: int, golden: bool) -> None:
    from ortlock.compare.text import MEASURES, cells

    if golden:
        print(
            f"{lock}: {counted(written, 'golden digest')} written" if written else f"{lock}: no golden digest written"
        )
    for result in checked:
        print(f"golden {result.inputs[:15]}: {result.status}: {result.text}")
        if result.differences:
            rows = [(one.name, *cells(one.difference)) for one in result.differences]
            show_table(f"golden outputs against these, inputs {result.inputs[:15]}", ("output", *MEASURES), rows)
