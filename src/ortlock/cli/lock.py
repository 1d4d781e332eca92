"""``ortlock lock MODEL -o FILE``: write down which engine each operation runs, for every shape that will come."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ortlock.cli.errors import CommandError, cannot_load, does_not_run, readable_model
from ortlock.cli.feeds import chosen_feeds, input_files, input_options, widths_option
from ortlock.cli.files import OutputPath, Used, check_files, model_argument
from ortlock.cli.inputs import Feed, InputError, input_specs
from ortlock.cli.options import (
    DOES_NOT_HOLD,
    HOLDS,
    choose_providers,
    json_option,
    nothing_but_json,
    progress,
    provider_option,
    same_provider,
    show_json,
)
from ortlock.errors import LockfileError, OrtlockError
from ortlock.lockfile import read
from ortlock.policy import Mode, resolve_mode
from ortlock.words import counted


@dataclass
class _Check:
    """What came of replaying the file in a new session."""

    replayed: int = 0
    others: int = 0
    same: int = 0
    """Inputs whose outputs had the same bits."""


@click.command("lock")
@model_argument
@click.option(
    "-o",
    "--output",
    type=OutputPath("a lockfile", "model.lock.json"),
    required=True,
    help="The lockfile; added to if there.",
)
@provider_option
@input_options
@widths_option
@click.option("--update", is_flag=True, help="Choose everything anew in place of what the file says.")
@click.option("--check/--no-check", default=True, show_default=True, help="Replay it in a new session and compare.")
@json_option
def command(
    model: Path,
    output: Path,
    provider: str,
    inputs: tuple[Path, ...],
    seed: int | None,
    dim: tuple[str, ...],
    shapes: str,
    widths: str,
    update: bool,
    check: bool,
    as_json: bool,
) -> int:
    """Run MODEL once with every shape and write the choices for this environment to a lockfile.

    Choices that the file holds already are kept, and so are other environments. Exit status 1 if replaying the file
    did not give the same bits.
    """
    from ortlock import ReproducibleSession, digest

    path = str(readable_model(model))
    check_files(Used("MODEL", model), input_files(inputs), Used("-o", output, written=True, locked=True))
    started = time.perf_counter()
    with nothing_but_json(as_json), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        providers = choose_providers(provider)

        def session(lock_mode: str) -> Any:
            mode = "pin" if resolve_mode(None) is Mode.OBSERVE else None
            try:
                return ReproducibleSession(path, providers=providers, mode=mode, lockfile=output, lock_mode=lock_mode)
            except OrtlockError:
                raise
            except Exception as error:
                raise cannot_load(model, error) from error

        recording = session("update" if update else "record")
        digests: list[str] = []
        try:
            feeds = chosen_feeds(input_specs(recording), inputs, seed, dim, shapes, widths)
            with progress(as_json) as bar:
                for feed in bar.track(feeds, description="recording"):
                    digests.append(digest(_run(recording, model, feed)))
            recording.save_lockfile()
        except (CommandError, InputError, LockfileError) as error:
            # Where nothing has run there is nothing to write, and what could not be written is not tried once more.
            if not digests or isinstance(error, LockfileError):
                recording._ortlock.lock.abandon()
            raise
        same_provider(recording, providers[0], "recording")
        facts = recording.report().lockfile
        found = _Check()
        if check:
            replaying = session("replay")
            with progress(as_json) as bar:
                for feed, expected in zip(bar.track(feeds, description="replaying"), digests, strict=True):
                    found.same += digest(_run(replaying, model, feed)) == expected
            same_provider(replaying, providers[0], "replaying")
            again = replaying.report().lockfile
            found.replayed, found.others = again.replayed, again.others
    result = {
        "model": str(model),
        "lockfile": str(output),
        "provider": providers[0],
        "environment": facts.fingerprint,
        "shapes": len(feeds),
        "choices": _choices(output, facts.fingerprint),
        "written": facts.written,
        "seconds": round(time.perf_counter() - started, 3),
        "check": {"replayed": found.replayed, "others": found.others, "same": found.same} if check else None,
    }
    holds = not check or (found.same == len(feeds) and found.others == 0)
    if as_json:
        show_json(result)
    else:
        _tell(result, found if check else None)
    return HOLDS if holds else DOES_NOT_HOLD


def _choices(path: Path, name: str) -> int:
    """Return how many choices the file holds for an environment."""
    held = read(path)
    return len(held.environments[name].choices) if held is not None else 0


def _run(session: Any, model: Path, feed: Feed) -> Any:
    try:
        return session.run(None, feed)
    except OrtlockError:
        raise
    except Exception as error:
        sizes = ", ".join(
            f"{name}:{'x'.join(map(str, value.shape))}" for name, value in feed.items() if _has_shape(value)
        )
        raise does_not_run(model, f"does not run with {sizes}", error) from error


def _has_shape(value: Any) -> bool:
    return isinstance(getattr(value, "shape", None), tuple)


def _tell(result: dict[str, Any], check: _Check | None) -> None:
    shapes = counted(result["shapes"], "shape")
    print(
        f"{result['lockfile']}: {counted(result['choices'], 'choice')} for {shapes} on {result['provider']}, "
        f"{result['written']} of them new (environment {result['environment']}, {result['seconds']:.1f} s)"
    )
    if check is not None:
        print(
            f"replayed in a new session: {counted(check.replayed, 'choice')} from the file, "
            f"{counted(check.others, 'other')}, same bits for {check.same} of {shapes}"
        )
