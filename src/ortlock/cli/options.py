"""What commands share: exit statuses, the choice of provider, progress and tables."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ortlock.cli.errors import CommandError

HOLDS, DOES_NOT_HOLD, BAD_INPUT = 0, 1, 2

MOST_THREADS = 1024
"""Of one session or on one session: far more than there are cores, far fewer than a process can have."""

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


provider_option = click.option(
    "--provider",
    type=click.Choice(("auto", "cuda", "cpu")),
    default="auto",
    show_default=True,
    help="auto: CUDA if it is there, else the CPU.",
)
provider_settings = click.option(
    "--option",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the CUDA provider, e.g. cudnn_conv_algo_search=HEURISTIC; may be repeated.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


class Seconds(click.FloatRange):
    """A duration above zero that ends."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; infinity and what is no number are refused."""
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} seconds never end.", param, ctx)
        return seconds


def preload_cuda_libraries() -> None:
    """Let ONNX Runtime find CUDA libraries that pip installed, where it offers that (1.21 and later)."""
    import onnxruntime

    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None or CUDA not in onnxruntime.get_available_providers():
        return
    # It prints what it does not find; whether CUDA works is looked at afterwards.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        preload()


def cuda_problem() -> str | None:
    """Load and intercept the CUDA provider; return why CUDA cannot be used, None if it can.

    To be called where this ONNX Runtime has the provider. The provider's library may load without a usable GPU, so
    a value is placed on the device.
    """
    import numpy as np
    import onnxruntime

    from ortlock import native

    preload_cuda_libraries()
    loaded = native.load_cuda_provider().loaded
    try:
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None if loaded else "its library could not be found in the process"


def choose_providers(choice: str) -> list[str]:
    """Return the providers of a session, the CUDA provider loaded and intercepted if it is among them.

    ``auto`` takes the CPU where CUDA is not offered or cannot be used; the latter is said on standard error.

    Raises:
        CommandError: CUDA was asked for and cannot be had.
    """
    import onnxruntime

    if choice == "cpu":
        return [CPU]
    offered = CUDA in onnxruntime.get_available_providers()
    problem = cuda_problem() if offered else "it has no CUDA provider"
    if problem is None:
        return [CUDA, CPU]
    if choice == "cuda":
        raise CommandError(
            f"{CUDA}: asked for, and ONNX Runtime {onnxruntime.__version__} cannot use it here: {problem}. "
            "`ortlock doctor` says what is missing; ask for cpu to run on the CPU."
        )
    if offered:
        print(f"ortlock: {CUDA} cannot be used: {problem}. Running on the CPU.", file=sys.stderr)
    return [CPU]


def with_settings(providers: Sequence[str], settings: Sequence[str]) -> list[Any]:
    """Return providers with the options that ``--option`` gave to the first.

    Raises:
        CommandError: a text is not NAME=VALUE, or the first is not CUDA.
    """
    options: dict[str, str] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"--option {text!r}: give NAME=VALUE, e.g. --option cudnn_conv_algo_search=HEURISTIC.")
        options[name.strip()] = value.strip()
    if options and providers[0] != CUDA:
        raise CommandError(f"--option {', '.join(options)}: {providers[0]} has no options; use --provider cuda.")
    return [(providers[0], options), *providers[1:]] if options else list(providers)


def same_provider(session: Any, wanted: str, side: str, printed: str = "") -> None:
    """Check that a session still runs on ``wanted``; ``printed`` is what ONNX Runtime printed when it was made.

    Raises:
        CommandError: ONNX Runtime moved it to another one; what was measured says nothing of ``wanted``.
    """
    used = session.get_providers()[0]
    if used != wanted:
        told = re.search(r".*EP Error (.+?) when using ", " ".join(printed.split()))
        cause = f": {told[1].rstrip('. ')}" if told else ""
        raise CommandError(
            f"{side}: ONNX Runtime moved the session from {wanted} to {used}{cause}, so nothing can be told of "
            f"{wanted}. `ortlock doctor` says whether it can be used; ask for cpu to run on the CPU."
        )


@contextlib.contextmanager
def nothing_but_json(as_json: bool) -> Iterator[None]:
    """Send what libraries print (ONNX Runtime tells a fall back with print) to standard error, if JSON is asked for."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


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


def printable(text: str) -> str:
    """Return text without characters that would steer a terminal: those of a model's names are anybody's."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class _Pipe(Console):
    """A console that leaves it to the command line to say what a reader that has gone means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a title and a table for people."""
    shown = Table()
    for name in header:
        shown.add_column(name, overflow="fold")
    for row in rows:
        # As text: names of nodes may look like markup.
        shown.add_row(*(Text("" if value is None else printable(str(value))) for value in row))
    console = _Pipe()
    # In a file or a pipe there is no screen to fit.
    console = _Pipe(width=None if console.is_terminal else 140, highlight=False)
    # Not as the table's own title, which would be folded to the table's width.
    console.print(printable(title), markup=False)
    console.print(shown)
