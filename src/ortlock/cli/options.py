"""What commands share: exit statuses, the choice of provider, progress and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ortlock.cli.errors import CommandError

HOLDS, DOES_NOT_HOLD, BAD_INPUT = 0, 1, 2

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


provider_option = click.option(
    "--provider",
    type=click.Choice(("auto", "cuda", "cpu")),
    default="auto",
    show_default=True,
    help="auto: CUDA if it is there, else the CPU.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def preload_cuda_libraries() -> None:
    """Let ONNX Runtime find CUDA libraries that pip installed, where it offers that (1.21 and later)."""
    import contextlib
    import io

    import onnxruntime

    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None or CUDA not in onnxruntime.get_available_providers():
        return
    # It prints what it does not find; whether CUDA works is looked at afterwards.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        preload()


def choose_providers(choice: str) -> list[str]:
    """Return the providers of a session, the CUDA provider loaded and intercepted if it is among them.

    Raises:
        CommandError: CUDA was asked for and cannot be had.
    """
    import onnxruntime

    from ortlock import native

    if choice == "cpu":
        return [CPU]
    available = CUDA in onnxruntime.get_available_providers()
    if available:
        preload_cuda_libraries()
        available = native.load_cuda_provider().loaded
    if available:
        return [CUDA, CPU]
    if choice == "cuda":
        raise CommandError(
            f"{CUDA}: asked for, and ONNX Runtime {onnxruntime.__version__} cannot use it here. "
            "`ortlock doctor` says what is missing; --provider cpu runs on the CPU."
        )
    return [CPU]


def progress(quiet: bool) -> Progress:
    """Return a progress bar on standard error that goes away when done; none where nobody watches."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def show_json(value: Mapping[str, Any]) -> None:
    """Print a value for machines; nothing else may go to standard output then."""
    print(json.dumps(value, indent=1))


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people."""
    shown = Table(title=title, title_justify="left")
    for name in header:
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*("" if value is None else str(value) for value in row))
    console = Console()
    # In a file or a pipe there is no screen to fit.
    Console(width=None if console.is_terminal else 140, highlight=False).print(shown)
