"""Device memory and work of one's own beside ONNX Runtime's, through CuPy where it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_CHUNK = 1 << 28


def available() -> bool:
    """Return whether CuPy is there and finds a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        return False


def _cupy() -> Any:
    import cupy

    return cupy


@contextmanager
def occupied(device: int, leave_bytes: int) -> Iterator[int]:
    """Hold device memory but for ``leave_bytes`` inside the block; gives how many bytes are held."""
    library = _cupy()
    with library.cuda.Device(device):
        held: list[int] = []
        while library.cuda.runtime.memGetInfo()[0] > leave_bytes + _CHUNK:
            try:
                held.append(library.cuda.runtime.malloc(_CHUNK))
            except Exception:
                break
        try:
            yield len(held) * _CHUNK
        finally:
            for pointer in held:
                library.cuda.runtime.free(pointer)


def poison(device: int, byte: int, share: float = 0.5) -> int:
    """Fill a share of the free device memory with a byte and give it back; return how many bytes that were."""
    library = _cupy()
    with library.cuda.Device(device):
        runtime = library.cuda.runtime
        wanted = int(runtime.memGetInfo()[0] * share)
        held: list[int] = []
        while len(held) * _CHUNK + _CHUNK <= wanted:
            try:
                held.append(runtime.malloc(_CHUNK))
            except Exception:
                break
            runtime.memset(held[-1], byte, _CHUNK)
        runtime.deviceSynchronize()
        for pointer in held:
            runtime.free(pointer)
        return len(held) * _CHUNK


@contextmanager
def busy(device: int | None) -> Iterator[None]:
    """Keep the device, or with None the processor, at work inside the block."""
    stop = threading.Event()
    work = _processor if device is None else _gpu(device)
    threads = [threading.Thread(target=_repeat, args=(work, stop), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _repeat(work: Callable[[], None], stop: threading.Event) -> None:
    while not stop.is_set():
        work()


def _processor() -> None:
    # NumPy lets other threads run meanwhile.
    values = np.ones((256, 256), np.float32)
    values @ values


def _gpu(device: int) -> Callable[[], None]:
    library = _cupy()

    def work() -> None:
        with library.cuda.Device(device), library.cuda.Stream(non_blocking=True) as stream:
            values = library.ones((2048, 2048), np.float32)
            for _ in range(8):
                values = values @ values * 0
            stream.synchronize()

    return work
