"""Runs on threads of ortlock's own: ``run_async`` of sessions with lanes, and ``arun`` of every session."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

# ONNX Runtime's own callbacks get the message alone.
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


Start = Callable[[Callable[[], Any]], "Future[Any] | None"]
"""Does some work on a thread; None where there is none for it."""


async def run(start: Start, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``call`` returns on a thread that ``start`` has, or else on one of the event loop's own."""
    inside = functools.partial(contextvars.copy_context().run, call, *arguments)
    if (started := start(inside)) is not None:
        return await asyncio.wrap_future(started)
    return await asyncio.get_running_loop().run_in_executor(None, inside)


def submit(
    session: Any,
    start: Start,
    output_names: Any,
    input_feed: Any,
    callback: Callable[..., Any] | None,
    user_data: Any,
    run_options: Any,
) -> bool:
    """Run on another thread, then call back as ONNX Runtime does: results, ``user_data``, error text.

    Returns:
        False where ``start`` has no thread for it, and nothing is run.

    Raises:
        TypeError: ``callback`` cannot be called.
        ValueError: an input is missing.
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function or None, not {type(callback).__name__}")
    # While a session is made anew nothing is known of its inputs; the run itself looks at them again.
    with contextlib.suppress(TypeError):
        session._validate_input(list(input_feed.keys()))
    feed = dict(input_feed)

    def work() -> None:
        results: Any = []
        error = ""
        try:
            results = session.run(output_names, feed, run_options)
        except Exception as raised:
            error = _CODE.sub("", str(raised)) or type(raised).__name__
        feed.clear()
        if callback is None:
            return
        try:
            callback(results, user_data, error)
        except BaseException:
            # As for any other thread: nobody waits for what a callback raises.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    return start(work) is not None
