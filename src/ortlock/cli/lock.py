"""``ortlock lock MODEL -o FILE``: write down which engine each operation runs, for every shape that will come."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ortlock.cli.errors import CommandError, cannot_load, readable_model
from ortlock.cli.inputs import (
    Feed,
    InputError,
    InputSpec,
    input_specs,
    load_npz,
    parse_dims,
    parse_shapes,
    seeded_feeds,
)
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


@dataclass
class _Check:
    """What came of replaying the file in a new session."""

    replayed: int = 0
    others: int = 0
    same: int = 0
    """Inputs whose outputs had the same bits."""


@click.command("lock")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The lockfile; added to if there.")
@provider_option
@click.option(
    "--inputs", type=click.Path(path_type=Path), multiple=True, help="FILE.npz, one array an input; may be repeated."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of made-up inputs.")
@click.option("--dim", multiple=True, metavar="NAME=N", help="Size of a symbolic dimension; may be repeated.")
@click.option("--shapes", default="", metavar="SHAPES", help="Several shapes: x:1x3x224x224,x:1x3x256x256.")
@click.option(
    "--widths",
    default="",
    metavar="WIDTHS",
    help="Sizes of the last axis of the model's one input of that many axes: 64,96,128 or 64:1280:32.",
)
@click.option("--update", is_flag=True, help="Choose everything anew in place of what the file says.")
@click.option("--check/--no-check", default=True, show_default=True, help="Replay it in a new session and compare.")
@json_option
def command(
    model: Path,
    output: Path,
    provider: str,
    inputs: tuple[Path, ...],
    seed: int,
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
        try:
            feeds = _feeds(input_specs(recording), inputs, seed, dim, shapes, widths)
        except InputError:
            recording._ortlock.lock.abandon()  # nothing has run
            raise
        digests = []
        with progress(as_json) as bar:
            for feed in bar.track(feeds, description="recording"):
                try:
                    digests.append(digest(_run(recording, model, feed)))
                except CommandError:
                    if not digests:
                        recording._ortlock.lock.abandon()  # nothing has run
                    raise
            try:
                recording.save_lockfile()
            except LockfileError:
                recording._ortlock.lock.abandon()  # not once more when the session ends
                raise
            same_provider(recording, providers[0], "recording")
            facts = recording.report().lockfile
            found = _Check()
            if check:
                replaying = session("replay")
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
        cause = " ".join(str(error).split())
        raise CommandError(f"{model}: does not run with {sizes}: {cause}. See --shapes and --dim.") from error


def _has_shape(value: Any) -> bool:
    return isinstance(getattr(value, "shape", None), tuple)


def _feeds(
    specs: Sequence[InputSpec], inputs: Sequence[Path], seed: int, dim: Sequence[str], shapes: str, widths: str
) -> list[Feed]:
    if inputs:
        if dim or shapes or widths:
            raise InputError("--inputs gives the shapes itself; leave out --dim, --shapes and --widths.")
        return [load_npz(path, specs) for path in inputs]
    dims = parse_dims(dim)
    if widths:
        if shapes:
            raise InputError("--widths and --shapes both give shapes; leave one out.")
        return seeded_feeds(specs, seed, *_with_widths(specs, dims, parse_widths(widths)))
    return seeded_feeds(specs, seed, dims, parse_shapes(shapes) if shapes else {})


def parse_widths(text: str) -> list[int]:
    """Return the sizes of ``64,96,128`` or ``64:1280:32`` (first, last, step; the last may be met or not).

    Raises:
        InputError: the text has another form.
    """
    sizes: list[int] = []
    for part in text.split(","):
        numbers = part.strip().split(":")
        if not all(number.isascii() and number.isdigit() and int(number) > 0 for number in numbers):
            numbers = []
        match [int(number) for number in numbers]:
            case [size]:
                sizes.append(size)
            case [first, last] if first <= last:
                sizes.extend(range(first, last + 1))
            case [first, last, step] if first <= last:
                sizes.extend(range(first, last + 1, step))
            case _:
                raise InputError(f"--widths {text!r}: give sizes, 64,96,128, or FIRST:LAST:STEP, e.g. 64:1280:32.")
    return list(dict.fromkeys(sizes))


def _with_widths(
    specs: Sequence[InputSpec], dims: dict[str, int], widths: Sequence[int]
) -> tuple[dict[str, int], dict[str, list[tuple[int, ...]]]]:
    """Return dimensions and shapes for which the widest input takes every width."""
    deepest = max((len(spec.shape) for spec in specs), default=0)
    images = [spec for spec in specs if len(spec.shape) == deepest]
    if len(images) != 1 or deepest == 0:
        names = ", ".join(spec.name for spec in specs)
        raise InputError(f"--widths: which of the inputs {names} has the width cannot be told; give --shapes.")
    image = images[0]
    if isinstance(image.shape[-1], str) and image.shape[-1] in dims:
        raise InputError(f"--widths varies {image.shape[-1]}; leave it out of --dim.")
    if isinstance(image.shape[-1], int) and image.shape[-1] > 0:
        raise InputError(f"--widths: the last axis of {image.name} is {image.shape[-1]} in the model; leave it out.")
    leading: list[int] = []
    for axis, size in enumerate(image.shape[:-1]):
        known = size if isinstance(size, int) and size > 0 else dims.get(size) if isinstance(size, str) else None
        if known is None and axis > 0:
            name = size if isinstance(size, str) and size else f"axis {axis}"
            raise InputError(f"--widths: {name} of {image.name} has no size; set it with --dim NAME=N or --shapes.")
        leading.append(known if known is not None else 1)
    return dims, {image.name: [(*leading, width) for width in widths]}


def _tell(result: dict[str, Any], check: _Check | None) -> None:
    shapes = f"{result['shapes']} shape{'s' if result['shapes'] != 1 else ''}"
    print(
        f"{result['lockfile']}: {result['choices']} choices for {shapes} on {result['provider']}, "
        f"{result['written']} of them new (environment {result['environment']}, {result['seconds']:.1f} s)"
    )
    if check is not None:
        print(
            f"replayed in a new session: {check.replayed} choices from the file, {check.others} others, "
            f"same bits for {check.same} of {shapes}"
        )
