"""``ortlock compare MODEL --a SIDE --b SIDE``: how two configurations differ, and whether that is expected."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortlock.cli.errors import CommandError, cannot_load, cause_of, does_not_run, readable_model
from ortlock.cli.feeds import chosen_feeds, input_files, input_options
from ortlock.cli.files import Used, check_files, model_argument
from ortlock.cli.inputs import Feed, InputSpec, input_specs
from ortlock.cli.options import (
    BAD_INPUT,
    CUDA,
    DOES_NOT_HOLD,
    HOLDS,
    choose_providers,
    json_option,
    nothing_but_json,
    printable,
    progress,
    same_provider,
    show_json,
    show_table,
)
from ortlock.cli.page import check_page, html_option, write_page
from ortlock.errors import OrtlockError

if TYPE_CHECKING:
    from ortlock.compare.result import Comparison
    from ortlock.compare.sides import Side

_LISTED = 30


@click.command("compare")
@model_argument
@click.option("--a", "side_a", required=True, metavar="SIDE", help="cpu, cuda, precision=tf32, lockfile=FILE, ...")
@click.option("--b", "side_b", required=True, metavar="SIDE", help="The other side, in the same way.")
@input_options
@click.option("--nodes/--no-nodes", default=True, show_default=True, help="Compare and judge every node.")
@html_option
@json_option
def command(
    model: Path,
    side_a: str,
    side_b: str,
    inputs: tuple[Path, ...],
    seed: int | None,
    dim: tuple[str, ...],
    shapes: str,
    nodes: bool,
    html: Path | None,
    as_json: bool,
) -> int:
    """Compare two ways to run MODEL: per output and per node, both against float64.

    A side is parts with commas: cpu or cuda (CUDA if it is there), precision=fp32|tf32, mode=observe|pin|strict,
    lockfile=FILE, model=FILE, threads=N, optimization=off|basic|extended|all, a session configuration entry
    (session.NAME=VALUE) or an option of the provider (NAME=VALUE).

    Exit status 0: the same bits, or what rounding does; 1: more than that; 2: it cannot be told.
    """
    from ortlock.compare.result import Expected
    from ortlock.compare.run import Compared, SideFailedError, compare
    from ortlock.compare.sides import parse_side
    from ortlock.compare.text import lines
    from ortlock.html import comparison_page

    readable_model(model)
    with nothing_but_json(as_json):
        default = "cuda" if _wants_cuda(side_a, side_b) and choose_providers("auto")[0] == CUDA else "cpu"
        sides = [parse_side(text, model, default) for text in (side_a, side_b)]
        for side in sides:
            readable_model(side.path)
        if html is not None:
            check_files(Used("MODEL", model), input_files(inputs), _files_of(sides), Used("--html", html, written=True))
            check_page(html)
        for side in sides:
            if side.cuda:
                choose_providers("cuda")
        specs = [_specs(side) for side in sides]
        _same_inputs(sides, specs)
        feeds = chosen_feeds(specs[0], inputs, seed, dim, shapes)
        if html is not None and len(feeds) != 1:
            raise CommandError(f"--html shows one comparison, and there are {len(feeds)}; give one shape.")
        compared = [
            Compared(
                side.text,
                side.maker,
                side.maker.source.read(),
                tf32=side.tf32,
                exact=side.without_tf32().maker if side.tf32 else None,
                folder=Path(side.maker.source.folder or "."),
            )
            for side in sides
        ]
        found = []
        with progress(as_json) as bar:
            for feed in feeds:
                task = bar.add_task("comparing nodes", total=None)

                def advance(done: int, total: int, task: Any = task, bar: Any = bar) -> None:
                    bar.update(task, completed=done, total=total)

                try:
                    found.append(
                        compare(
                            compared[0],
                            compared[1],
                            feed,
                            per_node=nodes,
                            progress=advance,
                        )
                    )
                except SideFailedError as error:
                    path = sides["AB".index(error.side)].path
                    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
                    raise does_not_run(path, str(error), cause) from error
                except (OrtlockError, OSError):
                    raise
                except Exception as error:
                    raise does_not_run(model, "cannot be compared with these inputs", error) from error
    notes = _unchecked(sides)
    found = [replace(one, notes=(*one.notes, *notes)) for one in found]
    if as_json:
        show_json({"model": str(model), "comparisons": [one.to_dict() for one in found]})
    else:
        for feed, one in zip(feeds, found, strict=True):
            _show(one, feed)
            for line in lines(one):
                print(printable(line))
    written = html is None or write_page(html, lambda: comparison_page(found[0], compared[0].data))
    verdicts = {one.expected for one in found}
    if Expected.NO in verdicts:
        return DOES_NOT_HOLD
    return BAD_INPUT if Expected.UNKNOWN in verdicts or not written else HOLDS


def _files_of(sides: Sequence[Side]) -> list[Used]:
    """Return the files that the sides name."""
    models = [Used(f"the model of side {side.text!r}", side.path) for side in sides]
    lockfiles = [(side.text, side.maker.configuration.lockfile) for side in sides]
    return models + [Used(f"the lockfile of side {text!r}", Path(file)) for text, file in lockfiles if file is not None]


def _wants_cuda(*texts: str) -> bool:
    """Return whether a side names no provider: it then runs on CUDA where that is there."""
    return any(not {"cpu", "cuda"} & {part.strip() for part in text.split(",")} for text in texts)


def _specs(side: Side) -> tuple[InputSpec, ...]:
    """Open a side once, before anything is measured; return what inputs it takes."""
    printed = io.StringIO()
    try:
        # ONNX Runtime prints why it leaves a provider.
        with contextlib.redirect_stdout(printed):
            session = side.maker.configuration.open(side.maker.source)
    except OrtlockError:
        raise
    except Exception as error:
        if "provider option" in str(error).lower():
            raise CommandError(f"side {side.text!r}: ONNX Runtime refuses an option: {cause_of(error)}.") from error
        raise cannot_load(side.path, error) from error
    same_provider(session, side.maker.provider, f"side {side.text!r}", printed.getvalue())
    return input_specs(session)


def _same_inputs(sides: Sequence[Side], specs: Sequence[Sequence[InputSpec]]) -> None:
    a, b = ({spec.name: spec.type for spec in own} for own in specs)
    if a != b:
        a_text, b_text = (
            ", ".join(f"{name} {kind}" for name, kind in sorted(own.items())) or "no inputs" for own in (a, b)
        )
        raise CommandError(
            f"{sides[1].path}: side B ({sides[1].text}) takes {b_text}, and side A ({sides[0].path}) takes {a_text}. "
            "Give two models with inputs of the same names and types."
        )


def _unchecked(sides: Sequence[Side]) -> list[str]:
    names = list(dict.fromkeys(name for side in sides for name in side.unchecked))
    text = "ONNX Runtime ignores session configuration entries that it does not know, and whether it knows"
    return [f"{text} {', '.join(names)} was not checked."] if names else []


def _show(found: Comparison, feed: Feed) -> None:
    from ortlock.compare.text import MEASURES, cells
    from ortlock.localise.graph import shapes_of

    shapes = "".join(f", {name} {list(shape)}" for name, shape in shapes_of(feed).items())
    rows = [[output.name, *cells(output.difference, same=output.same)] for output in found.outputs]
    show_table(f"Outputs, A ({found.a}) against B ({found.b}){shapes}", ("output", *MEASURES), rows)
    differing = found.differing
    if differing:
        node_rows = [
            [
                node.label,
                *cells(node.difference),
                "yes" if node.inputs_differ else "no",
                "" if node.length is None else str(node.length),
                node.a.explained_by,
                node.b.explained_by,
            ]
            for node in differing[:_LISTED]
        ]
        header = ("node", *MEASURES, "inputs differ", "terms", "A explained by", "B explained by")
        show_table(
            f"Nodes that differ: {len(differing)} of {len(found.nodes)}, without graph optimisation", header, node_rows
        )
        if len(differing) > _LISTED:
            print(f"and {len(differing) - _LISTED} more; --json lists them all")
