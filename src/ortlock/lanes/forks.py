"""Processes made by fork: CUDA does not live on in the child, so what the parent made with it is refused there."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from ortlock import native
from ortlock.errors import SessionClosedError

_TEXT = (
    "CUDA was in use before this process was forked, and its context does not live on in the child. "
    "Remedy: multiprocessing.get_context('spawn') (or 'forkserver', set up before any session), or make the first "
    "session after the fork."
)

_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
_cuda_in_use = False
_forked = False


def watch(session: Any) -> None:
    """Let ``session``, which runs on CUDA, refuse to run in processes that are forked from this one."""
    _sessions.add(session)


def check() -> None:
    """Refuse to make a session on CUDA where it cannot work; ONNX Runtime would silently take the CPU.

    Raises:
        SessionClosedError: this process was forked from one in which CUDA was in use.
    """
    if _forked:
        raise SessionClosedError(_TEXT)


def keep_forever(value: Any) -> None:
    """Never destroy an object: its destructor would wait for threads and streams that are not in this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _before() -> None:
    global _cuda_in_use
    _cuda_in_use = bool(_sessions) or native.state().loaded


def _in_child() -> None:
    global _forked
    if not _cuda_in_use:
        return
    _forked = True
    for session in list(_sessions):
        session._ortlock_retire(_TEXT)


os.register_at_fork(before=_before, after_in_child=_in_child)
