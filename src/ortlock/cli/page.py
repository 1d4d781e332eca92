"""``--html FILE``: looked at before anything is measured, written after the result has been told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from ortlock.cli.errors import CommandError, cause_of
from ortlock.cli.files import OutputPath
from ortlock.lockfile.atomic import replacing

MARKER = b'<meta name="generator" content="ortlock">'
"""In the first kilobytes of every page that ortlock writes."""

_LOOKED_AT = 4096

html_option = click.option(
    "--html", type=OutputPath("a page", "page.html"), help="Also write a page for a browser to FILE."
)


def check_page(path: Path | None) -> None:
    """Check that a page can be written to ``path`` and takes the place of nothing but an older page.

    Args:
        path: value of ``--html``; None where it was not given.

    Raises:
        CommandError: it cannot be written, or is a file that ortlock has not written as a page.
    """
    if path is None:
        return
    try:
        problem = _problem(path)
    except OSError as error:
        problem = error.strerror or cause_of(error)
    if problem:
        raise CommandError(f"--html {path}: cannot be written: {problem}. Give another path.")


def write_page(path: Path, make: Callable[[], str]) -> bool:
    """Write a page; return whether it was written, and say on standard error why it was not.

    The result has been told by then, so nothing is raised that would hide it.
    """
    try:
        text = make().encode()
        with replacing(path) as file:
            file.write(text)
    except Exception as error:
        if os.environ.get("ORTLOCK_DEBUG") == "1":
            raise
        cause = error.strerror if isinstance(error, OSError) and error.strerror else cause_of(error)
        print(f"ortlock: --html {path}: cannot be written: {cause}. The result is told in full.", file=sys.stderr)
        return False
    return True


def _problem(path: Path) -> str | None:
    target = path.resolve()
    if target.is_dir():
        return "it is a folder"
    if not target.parent.is_dir():
        return f"there is no folder {path.parent}"
    # The page is written beside its place and then moved there.
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return f"the folder {path.parent} is not writable"
    if not target.exists():
        return None
    if not target.is_file():
        return "it is no regular file"
    if not os.access(target, os.W_OK):
        return "it is not writable"
    with target.open("rb") as file:
        start = file.read(_LOOKED_AT)
    # Nothing is lost with an empty file.
    return "there is a file that is no page of ortlock's" if start and MARKER not in start else None
