"""Order between a lane's stream and the streams on which its inputs were written."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnxruntime import IOBinding, OrtValue

from ortlock.lanes.streams import Stream

_LEGACY_DEFAULT = 0
"""The stream of whoever names none. A non-blocking stream does not wait for it by itself."""


def look_at(arguments: tuple[Any, ...]) -> tuple[bool, bool]:
    """Return whether inputs belong to one session's allocator, and whether some may be on the GPU.

    Args:
        arguments: of a run. What is bound or in a vector cannot be asked cheaply, and counts as on the GPU.
    """
    owned = on_device = False
    for argument in arguments:
        if argument is None or type(argument) is list:
            continue
        if isinstance(argument, (dict, Mapping)):
            for value in argument.values():
                if type(value) is np.ndarray:
                    continue
                if isinstance(value, OrtValue):
                    owned = owned or getattr(value, "_session", None) is not None
                    on_device = on_device or value.device_name().lower() != "cpu"
        elif isinstance(argument, IOBinding) or type(argument).__name__ == "OrtValueVector":
            on_device = True
    return owned, on_device


def order_after_caller(stream: Stream) -> None:
    """Let what is launched on a lane's stream wait for what the calling thread has launched.

    The caller's streams are CUDA's default stream and the current streams of PyTorch and CuPy, where they are used.
    Arrays of NumPy need no order: they are copied on the lane's own stream.

    Raises:
        CudaCallError: CUDA refuses it.
    """
    for earlier in {_LEGACY_DEFAULT, *_current_streams(stream.device)}:
        if earlier != stream.address:
            stream.after(earlier)


def _current_streams(device: int) -> Iterator[int]:
    """Yield the addresses of the calling thread's current streams in libraries that are loaded and use CUDA."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        yield int(torch.cuda.current_stream(device).cuda_stream)
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "cuda"):
        yield int(cupy.cuda.get_current_stream().ptr)
