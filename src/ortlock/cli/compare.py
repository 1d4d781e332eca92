"""``ortlock compare MODEL --a SIDE --b SIDE``: how two configurations differ, and whether that is expected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortlock.cli.errors import CommandError, cannot_load, readable_model
from ortlock.cli.feeds import chosen_feeds, input_options
from ortlock.cli.inputs import Feed, input_specs
from ortlock.cli.options import (
    BAD_INPUT,
    CUDA,
    DOES_NOT_HOLD,
    HOLDS,
    choose_providers,
    html_option,
    json_option,
    nothing_but_json,
    progress,
    same_provider,
    show_json,
    show_table,
    write_html,
)
from ortlock.errors import OrtlockError

if TYPE_CHECKING:
    from ortlock.compare.result import Comparison
    from ortlock.compare.sides import Side

_LISTED = 30


@click.command("compare")
@click.argument("model", type=click.Path(path_type=Path))
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
    seed: int,
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
    from ortlock.compare.run import Compared, compare
    from ortlock.compare.sides import parse_side
    from ortlock.compare.text import to_text
    from ortlock.html import comparison_page

    readable_model(model)
    with nothing_but_json(as_json):
        default = "cuda" if _wants_cuda(side_a, side_b) and choose_providers("auto")[0] == CUDA else "cpu"
        sides = [parse_side(text, model, default) for text in (side_a, side_b)]
        for side in sides:
            readable_model(Path(side.maker.source.path or ""))
            if side.cuda:
                choose_providers("cuda")
        session = _session(sides[0])
        feeds = chosen_feeds(input_specs(session), inputs, seed, dim, shapes)
        del session
        compared = [
            Compared(
                side.text,
                side.maker,
                side.maker.source.read(),
                tf32=side.tf32,
                exact=side.without_tf32().maker if side.tf32 else None,
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
                            folder=Path(sides[0].maker.source.folder or "."),
                            per_node=nodes,
                            progress=advance,
                        )
                    )
                except (OrtlockError, OSError):
                    raise
                except Exception as error:
                    raise _does_not_run(model, error) from error
    if html is not None:
        write_html(html, comparison_page(_one(found), compared[0].data))
    if as_json:
        show_json({"model": str(model), "comparisons": [one.to_dict() for one in found]})
    else:
        for feed, one in zip(feeds, found, strict=True):
            _show(one, feed)
            print(to_text(one))
    verdicts = {one.expected for one in found}
    if Expected.NO in verdicts:
        return DOES_NOT_HOLD
    return BAD_INPUT if Expected.UNKNOWN in verdicts else HOLDS


def _wants_cuda(*texts: str) -> bool:
    """Return whether a side names no provider: it then runs on CUDA where that is there."""
    return any(not {"cpu", "cuda"} & {part.strip() for part in text.split(",")} for text in texts)


def _one(found: Sequence[Comparison]) -> Comparison:
    if len(found) != 1:
        raise CommandError(f"--html shows one comparison, and there are {len(found)}; give one shape.")
    return found[0]


def _session(side: Side) -> Any:
    try:
        session = side.maker.configuration.open(side.maker.source)
    except OrtlockError:
        raise
    except Exception as error:
        raise cannot_load(Path(side.maker.source.path or ""), error) from error
    same_provider(session, side.maker.provider, f"side {side.text}")
    return session


def _does_not_run(model: Path, error: Exception) -> CommandError:
    cause = " ".join(str(error).split())
    return CommandError(f"{model}: cannot be compared with these inputs: {cause}. See --shapes and --dim.")


def _show(found: Comparison, feed: Feed) -> None:
    from ortlock.compare.text import MEASURES, cells

    shapes = ", ".join(f"{name} {list(getattr(value, 'shape', ()))}" for name, value in feed.items())
    rows = [[output.name, *cells(output.difference)] for output in found.outputs]
    show_table(f"Outputs, A ({found.a}) against B ({found.b}), {shapes}", ("output", *MEASURES), rows)
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
