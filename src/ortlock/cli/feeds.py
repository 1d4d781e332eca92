"""The options that say which inputs a command runs a model with, and the inputs that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ortlock.cli.files import FilePath, Used
from ortlock.cli.inputs import Feed, InputError, InputSpec, load_npz, parse_dims, parse_shapes
from ortlock.cli.seeded import is_name, seeded_feeds

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--inputs",
        type=FilePath(),
        multiple=True,
        help="FILE.npz, one array an input; may be repeated.",
    ),
    click.option("--seed", type=click.IntRange(0), help="Seed of made-up inputs.  [default: 0]"),
    click.option("--dim", multiple=True, metavar="NAME=N", help="Size of a symbolic dimension; may be repeated."),
    click.option("--shapes", default="", metavar="SHAPES", help="Several shapes: x:1x3x224x224,x:1x3x256x256."),
)

widths_option = click.option(
    "--widths",
    default="",
    metavar="WIDTHS",
    help="Sizes of the last axis of the model's one input of that many axes: 64,96,128 or 64:1280:32.",
)


def input_options(command: _Command) -> _Command:
    """Give a command the options ``--inputs``, ``--seed``, ``--dim`` and ``--shapes``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def input_files(inputs: Sequence[Path]) -> list[Used]:
    """Return the files that ``--inputs`` names."""
    return [Used("--inputs", path) for path in inputs]


def chosen_feeds(
    specs: Sequence[InputSpec],
    inputs: Sequence[Path],
    seed: int | None,
    dim: Sequence[str],
    shapes: str,
    widths: str | None = None,
) -> list[Feed]:
    """Return one feed for each file or shape that was asked for.

    Args:
        specs: the model's inputs.
        inputs: values of ``--inputs``; so are ``seed`` (None where not given), ``dim`` and ``shapes`` those of theirs.
        widths: value of ``--widths``; None for commands without it.

    Raises:
        InputError: they do not go together, or do not fit the model.
    """
    if inputs:
        if seed is not None:
            raise InputError("--inputs gives the values itself; leave out --seed.")
        if dim or shapes or widths:
            names = "--dim and --shapes" if widths is None else "--dim, --shapes and --widths"
            raise InputError(f"--inputs gives the shapes itself; leave out {names}.")
        return [load_npz(path, specs) for path in inputs]
    dims = parse_dims(dim)
    seed = seed or 0
    if widths:
        if shapes:
            raise InputError("--widths and --shapes both give shapes; leave one out.")
        return seeded_feeds(specs, seed, dims, _with_widths(specs, dims, parse_widths(widths)))
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
) -> dict[str, list[tuple[int, ...]]]:
    """Return shapes for which the widest input takes every width; so do its axes of the same name as the width's."""
    deepest = max((len(spec.shape) for spec in specs), default=0)
    images = [spec for spec in specs if len(spec.shape) == deepest]
    if len(images) != 1 or deepest == 0:
        names = ", ".join(spec.name for spec in specs)
        raise InputError(f"--widths: which of the inputs {names} has the width cannot be told; give --shapes.")
    image = images[0]
    if isinstance(image.shape[-1], str) and image.shape[-1] in dims:
        raise InputError(f"--widths varies {image.shape[-1]}; leave it out of --dim.")
    if isinstance(image.shape[-1], int) and image.shape[-1] >= 0:
        raise InputError(f"--widths: the last axis of {image.name} is {image.shape[-1]} in the model; leave it out.")
    width_name = image.shape[-1]
    leading: list[int | None] = []
    for axis, size in enumerate(image.shape[:-1]):
        if is_name(size) and size == width_name:
            leading.append(None)
            continue
        known = size if isinstance(size, int) and size >= 0 else dims.get(size) if isinstance(size, str) else None
        if known is None and axis > 0:
            name = size if isinstance(size, str) and size else f"axis {axis}"
            raise InputError(f"--widths: {name} of {image.name} has no size; set it with --dim NAME=N or --shapes.")
        leading.append(known if known is not None else 1)
    return {image.name: [(*(width if size is None else size for size in leading), width) for width in widths]}
