"""Making the underlying ONNX Runtime session: what is pinned for it, and what is checked once it is there."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import onnxruntime
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)
from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args

from ortlock import native, session_options
from ortlock.errors import NotReproducibleError
from ortlock.guard import FALLBACK_OFF, Guard, check_interposer, missing_cuda
from ortlock.policy import Mode
from ortlock.report.model import Status
from ortlock.settings import CUDA, Kind, Origin, Resolution, SettingState, normalise, resolve

Stock = Callable[[Any, Any], None]
"""ONNX Runtime's own creation: providers and provider options in, a session bound to the object or an error out."""

_RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"

# What ONNX Runtime raises for an operator that it does not know: the copied options lack the custom-op libraries.
_UNKNOWN_OPERATOR = (C.Fail, C.InvalidGraph, C.NotImplemented)

_ENVIRONMENT = threading.RLock()


class _Everything:
    """Names of providers, all of them: ONNX Runtime warns about those that are not there, once, by itself."""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())


def create(session: Any, guard: Guard, stock: Stock, providers: Any, provider_options: Any) -> None:
    """Make the underlying session as ``guard.mode`` wants it.

    Raises:
        NotReproducibleError: in strict. The session is then as ONNX Runtime leaves one that could not be made.
        Exception: whatever ONNX Runtime raises.
    """
    guard.attempts += 1
    if guard.mode is Mode.STRICT:
        session._enable_fallback = False
    previous = native.enter(guard.number)
    try:
        _create(session, guard, stock, providers, provider_options)
    finally:
        native.leave(previous)
    fallback = _fallback_cause(guard, during_run=previous == guard.number)
    try:
        _check(session, guard, fallback)
    except BaseException:
        _discard(session)
        raise
