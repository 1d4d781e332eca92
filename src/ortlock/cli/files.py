"""The files that a command reads and writes: their options, and the check that none is used for two things."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from ortlock.cli.errors import CommandError
from ortlock.lockfile.files import lock_of


class FilePath(click.Path):
    """The path of a file."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path.

        Raises:
            CommandError: it is empty, which pathlib takes for the working directory.
        """
        if not os.fspath(value):
            raise CommandError(f"{_name(param)}: the path is empty. Give the path of a file.")
        return super().convert(value, param, ctx)


class OutputPath(FilePath):
    """The path of a file that is written."""

    def __init__(self, what: str, example: str) -> None:
        super().__init__()
        self.what = what
        """What goes to it, e.g. ``a page``."""
        self.example = example

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path.

        Raises:
            CommandError: it is empty or ``-``, by which standard output is meant.
        """
        if value == "-":
            name = _name(param)
            raise CommandError(f"{name} -: {self.what} goes to a file. Give a path, e.g. {name} {self.example}.")
        return super().convert(value, param, ctx)


def _name(param: click.Parameter | None) -> str:
    """Return what the caller knows a parameter by: the option's first name, or an argument's in capitals."""
    if param is None:
        return "path"
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


@dataclass(frozen=True, slots=True)
class Used:
    """One file that a command uses."""

    name: str
    """The option or argument that names it."""
    path: Path
    written: bool = False
    locked: bool = False
    """It is written under a lock, which is a file beside it."""

    def places(self) -> Iterator[Path]:
        """Yield the files that are opened for it."""
        yield self.path
        if self.locked:
            yield lock_of(self.path)


def check_files(*groups: Used | Iterable[Used]) -> None:
    """Check that a command writes to no file that it uses for something else, before anything is made.

    Args:
        groups: all files that it reads and writes.

    Raises:
        CommandError: one is written, and is another one too: by its path, through a link, or as its lock.
    """
    files = [one for group in groups for one in ([group] if isinstance(group, Used) else group)]
    # The one that is written is told first; of two that are, the later one.
    for position, one in enumerate(files):
        others = [*files[:position], *(other for other in files[position + 1 :] if not other.written)]
        for other in others if one.written else ():
            for own, its in ((own, its) for own in one.places() for its in other.places()):
                if _same(own, its):
                    raise CommandError(_told(one, other, own, its))


def _told(one: Used, other: Used, own: Path, its: Path) -> str:
    remedy = "Give another path."
    if own == one.path and its == other.path:
        return f"{one.name} {one.path}: the command uses this file itself, as {other.name}. {remedy}"
    if own == one.path:
        return f"{one.name} {one.path}: the command locks {other.name} {other.path} with this file. {remedy}"
    return f"{one.name} {one.path}: the command locks it with {own}, which is {other.name}. {remedy}"


def _same(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve() or one.samefile(other)
    except (OSError, RuntimeError):
        # One of the two is not there yet, or links go round in a circle.
        return False


model_argument = click.argument("model", type=FilePath())
