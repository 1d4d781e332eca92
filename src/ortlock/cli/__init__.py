"""The command ``ortlock``. Exit status: 0 holds, 1 does not hold, 2 cannot tell or bad input."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from ortlock.cli import audit, bench, compare, demo, doctor, lock, verify
from ortlock.cli.errors import explain
from ortlock.cli.options import BAD_INPUT
from ortlock.policy import resolve_mode


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ortlock", message="ortlock %(version)s")
def app() -> None:
    """Bit-for-bit reproducible ONNX Runtime inference: see what changes, why, and what it costs to keep it fixed.

    Exit status: 0 it holds, 1 it does not hold, 2 it cannot be told, or bad input.
    """


app.add_command(demo.command)
app.add_command(doctor.command)
app.add_command(audit.command)
app.add_command(bench.command)
app.add_command(lock.command)
app.add_command(compare.command)
app.add_command(verify.command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Whatever goes wrong is told in one line on standard error; with ``ORTLOCK_DEBUG=1`` the traceback comes too.
    """
    try:
        _never_fail_to_print()
        arguments = list(sys.argv[1:] if arguments is None else arguments)
        if not arguments:
            print(app.get_help(click.Context(app, info_name="ortlock")))
            return BAD_INPUT
        resolve_mode(None)
        status = app(args=arguments, prog_name="ortlock", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        print(f"ortlock: {error.format_message()}", file=sys.stderr)
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        print("ortlock: interrupted", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        # The reader of our output has gone, e.g. `ortlock doctor | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    except Exception as error:
        if os.environ.get("ORTLOCK_DEBUG") == "1":
            raise
        print(f"ortlock: {explain(error)}", file=sys.stderr)
        return BAD_INPUT


def _never_fail_to_print() -> None:
    """Escape what the terminal's encoding lacks: a file's name may hold any character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
