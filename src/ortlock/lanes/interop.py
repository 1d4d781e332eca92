"""Order between a lane's stream and the streams on which its inputs were written."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from onnxruntime import IOBinding, OrtValue

from ortlock.lanes.streams import Stream

_LEGACY_DEFAULT = 0
"""The stream of whoever names none. A non-blocking stream does not wait for it by itself."""


def order_after_caller(stream: Stream, arguments: tuple[Any, ...]) -> None:
    """Let a run whose inputs are on the GPU wait for what its caller has launched.

    The caller's streams are CUDA's default stream and the current streams of PyTorch and CuPy, where they are used.

    Args:
        stream: the lane's.
        arguments: of the run. Arrays of NumPy need no order: they are copied on the lane's own stream.

    Raises:
        CudaCallError: CUDA refuses it.
    """
    if not any(_on_device(argument) for argument in arguments):
        return
    for earlier in {_LEGACY_DEFAULT, *_current_streams(stream.device)}:
        if earlier != stream.address:
            stream.after(earlier)


def _on_device(argument: Any) -> bool:
    if isinstance(argument, Mapping):
        return any(isinstance(value, OrtValue) and value.device_name().lower() != "cpu" for value in argument.values())
    # What is bound or in a vector cannot be asked cheaply.
    return isinstance(argument, IOBinding) or type(argument).__name__ == "OrtValueVector"


def _current_streams(device: int) -> Iterator[int]:
    """Yield the addresses of the calling thread's current streams in libraries that are loaded and use CUDA."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        yield int(torch.cuda.current_stream(device).cuda_stream)
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "cuda"):
        yield int(cupy.cuda.get_current_stream().ptr)
