"""Runs on threads of ortlock's own: ``run_async`` of sessions with lanes, and ``arun`` of every session."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

# ONNX Runtime's own callbacks get the message alone.
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


async def run(executor: Executor | None, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``call`` returns on a thread of ``executor`` (None: the event loop's own)."""
    inside = functools.partial(contextvars.copy_context().run, call, *arguments)
    return await asyncio.get_running_loop().run_in_executor(executor, inside)


def submit(
    session: Any,
    executor: Executor,
    output_names: Any,
    input_feed: Any,
    callback: Callable[..., Any] | None,
    user_data: Any,
    run_options: Any,
) -> None:
    """Run on a thread of ``executor``, then call back as ONNX Runtime does: results, ``user_data``, error text.

    Raises:
        TypeError: ``callback`` cannot be called.
        ValueError: an input is missing.
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function or None, not {type(callback).__name__}")
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

    executor.submit(work)
