"""``ortlock audit MODEL``: what is known of each node, and what ortlock would do, from the model's file alone."""

from __future__ import annotations

from pathlib import Path

import click

from ortlock.audit import Verdict, audit
from ortlock.audit.model import ACTUAL_NODES
from ortlock.audit.text import explanations, headline, load_lines, rows
from ortlock.cli.files import model_argument
from ortlock.cli.options import BAD_INPUT, DOES_NOT_HOLD, HOLDS, json_option, printable, show_json, show_table

_STATUS = {Verdict.HOLDS: HOLDS, Verdict.VIOLATED: DOES_NOT_HOLD, Verdict.UNKNOWN: BAD_INPUT}


@click.command("audit")
@model_argument
@click.option(
    "--provider",
    type=click.Choice(("cuda", "cpu")),
    default="cuda",
    show_default=True,
    help="Where the model is meant to run.",
)
@json_option
def command(model: Path, provider: str, as_json: bool) -> int:
    """Say for each node of MODEL whether its outputs repeat, and what ortlock would do with it.

    Reads the file alone: no GPU is needed, and weights are not loaded. Exit status 0 if strict would run it, 1 if it
    refuses a node that is known to vary, 2 if a node is unknown, or the model cannot be read or loaded.
    """
    found = audit(model, provider)
    if as_json:
        show_json(found.to_dict())
    else:
        show_table(headline(found), ("operator", "nodes", "status", "in strict", "first nodes"), rows(found))
        for line in (*load_lines(found), *explanations(found), ACTUAL_NODES):
            print(printable(line))
    return _STATUS[found.verdict]
