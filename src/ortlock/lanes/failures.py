"""What a failed run leaves behind in a session."""

from __future__ import annotations

import re

from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock.lanes import memory

_NODE = re.compile(r"while running (\w+) node")

_KEEPS_SHAPE = ("Conv", "ConvTranspose", "FusedConv", "NhwcConv", "NhwcFusedConv")
"""Kernels that note the shape of their input before they have a plan and an output for it."""

_DURING_RUN = (C.EPFail, C.Fail, C.RuntimeException, C.EngineError)

_ENDED_BY_CALLER = "terminate flag"


def leaves_stale_plan(error: BaseException) -> bool:
    """Return whether a session may go on with a wrong plan after a run that raised ``error``.

    ONNX Runtime's CUDA convolutions remember the shape of their input at the start of a run, and the plan and output
    for it later. Where a run fails between the two (typically no memory is left for the output), the next run of that
    shape finds the shape unchanged and executes the plan of an earlier shape: it returns wrong values without an error,
    or reads and writes memory that is not its own (conv.cc, ``UpdateState``; measured on 1.31.1).
    """
    if not isinstance(error, Exception) or memory.is_short(error) or isinstance(error, C.EPFail):
        return True
    text = str(error)
    if nodes := _NODE.findall(text):
        return any(node in _KEEPS_SHAPE for node in nodes)
    return isinstance(error, _DURING_RUN) and _ENDED_BY_CALLER not in text
