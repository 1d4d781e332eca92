"""``ortlock demo``: a built-in model, stock and reproducible side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import click

from ortlock.cli.options import (
    CPU,
    DOES_NOT_HOLD,
    HOLDS,
    choose_providers,
    json_option,
    nothing_but_json,
    progress,
    provider_option,
    same_provider,
    show_json,
    show_table,
)
from ortlock.words import counted

_SHAPE = (1, 3, 112, 112)


@click.command("demo")
@provider_option
@click.option("--sessions", type=click.IntRange(1), default=6, show_default=True, help="Sessions a side.")
@click.option("--runs", type=click.IntRange(1), default=4, show_default=True, help="Runs of each thread.")
@click.option("--threads", type=click.IntRange(1), default=4, show_default=True, help="Threads that share a session.")
@json_option
def command(provider: str, sessions: int, runs: int, threads: int, as_json: bool) -> int:
    """Run a built-in model with Conv, FusedConv, ConvTranspose and a reduction, stock and ortlock side by side.

    Counts the distinct outputs of both sides and prints the report of the reproducible one.
    """
    import onnxruntime

    from ortlock import ReproducibleSession, models
    from ortlock.report import Verdict

    with nothing_but_json(as_json):
        providers = choose_providers(provider)
    model = models.demo_model()
    feed = {"x": models.seeded_input(_SHAPE)}

    with nothing_but_json(as_json), progress(as_json) as bar:

        def side(name: str, make: Callable[[], Any]) -> tuple[Any, dict[str, set[str]]]:
            task = bar.add_task(name, total=sessions)
            seen: dict[str, set[str]] = {output: set() for output in models.DEMO_OUTPUTS}
            session = None
            for _ in range(sessions):
                session = make()
                _run(session, feed, runs, threads, seen)
                same_provider(session, providers[0], name)
                bar.advance(task)
            return session, seen

        # The reproducible side first: a stock session that ran before would have resolved cuDNN's functions.
        session, ours = side("ortlock", lambda: ReproducibleSession(model, providers=providers, mode="strict"))
        _, stock = side("stock", lambda: onnxruntime.InferenceSession(model, providers=providers))

    count = sessions * runs * threads
    report = session.report()
    holds = report.verdict is Verdict.BITWISE and all(len(digests) == 1 for digests in ours.values())
    if as_json:
        show_json(
            {
                "provider": providers[0],
                "runs": count,
                "distinct": {
                    name: {"stock": len(stock[name]), "ortlock": len(ours[name])} for name in models.DEMO_OUTPUTS
                },
                "holds": holds,
                "report": report.to_dict(),
            }
        )
    else:
        effort = f"{counted(sessions, 'session')}, {counted(threads, 'thread')} each"
        title = f"Distinct outputs of {counted(count, 'run')}: {effort}, {providers[0]}"
        rows = [(name, len(stock[name]), len(ours[name])) for name in models.DEMO_OUTPUTS]
        show_table(title, ("output", "stock", "ortlock (strict)"), rows)
        print(report)
        if providers == [CPU]:
            print(
                "\nThis ran on the CPU provider, where stock repeats by itself too; --provider cuda runs it on a GPU."
            )
    return HOLDS if holds else DOES_NOT_HOLD


def _run(session: Any, feed: dict[str, Any], runs: int, threads: int, seen: dict[str, set[str]]) -> None:
    """Run from several threads at once and add the digests of each output."""
    from ortlock import digest

    errors: list[BaseException] = []
    lock = threading.Lock()
    names = [output.name for output in session.get_outputs()]

    def work() -> None:
        try:
            for _ in range(runs):
                outputs = session.run(None, feed)
                with lock:
                    for name, value in zip(names, outputs, strict=True):
                        seen[name].add(digest([value], [name]))
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
