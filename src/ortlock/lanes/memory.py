"""When memory is short: how that is told, how a limit is divided, where there is plenty."""

from __future__ import annotations

import re

from ortlock.lanes import streams

LIMIT = "gpu_mem_limit"
"""The provider option that bounds an arena, in bytes."""

_SHORT = re.compile(
    r"failed to allocate memory|out of memory|bad allocation|bad_alloc|smaller than requested bytes|ALLOC_FAILED"
    r"|ALLOCATION_FAILED|allocation failed|CUDA failure 2\b|cudaErrorMemoryAllocation"
    # cuBLAS and cuDNN say so of a handle that there is no memory for; whether a device is lost is asked for elsewhere.
    r"|CUBLAS failure [13]\b|NOT_INITIALIZED",
    re.IGNORECASE,
)


def is_short(error: BaseException) -> bool:
    """Return whether a run or the making of a session failed for want of memory."""
    return isinstance(error, MemoryError) or (isinstance(error, Exception) and _SHORT.search(str(error)) is not None)


def limit_of(options: dict[str, str]) -> int | None:
    """Return the limit among a provider's options in bytes; None where there is none that divides."""
    text = options.get(LIMIT, "").strip()
    value = int(text) if text.isdecimal() else 0
    # ONNX Runtime's default is the largest number there is: no limit.
    return value if 0 < value < 2**63 - 1 else None


def has_room(device: int) -> bool:
    """Return whether three quarters of a device's memory are free: one more like all that is there leaves half."""
    memory = streams.device_memory(device)
    return memory is not None and 4 * memory[0] >= 3 * memory[1]
