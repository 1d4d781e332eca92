"""CUDA streams of ortlock's own, made by the native extension through the CUDA runtime that ONNX Runtime loaded."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from ortlock import _native
from ortlock.errors import DeviceLostError
from ortlock.native import CUDA_PROVIDER_LIBRARY

NO_RUNTIME = -1
"""Code of ours: no CUDA runtime is loaded in this process."""

_NO_DEVICE = frozenset({NO_RUNTIME, 3, 34, 35, 36, 100, 101})
"""Codes that say that the device cannot be had at all (no driver, none there, no such number): ONNX Runtime will say
so in its own words."""

_OUT_OF_MEMORY = 2


@dataclass(frozen=True, slots=True)
class CudaStatus:
    """What CUDA said."""

    code: int
    text: str
    """CUDA's name and description of the error; empty where there is none."""

    @property
    def ok(self) -> bool:
        return self.code == 0


class CudaCallError(RuntimeError):
    """A call to CUDA failed, and the device is as it was."""


lost: dict[int, CudaStatus] = {}
"""Devices whose context is lost, with what they were lost by."""


def check_device(device: int) -> None:
    """Raise where the context of ``device`` is known to be lost.

    Raises:
        DeviceLostError: a sticky error was seen on it before.
    """
    if lost and (status := lost.get(device)) is not None:
        raise DeviceLostError(device, status.code, status.text)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Stream:
    """A CUDA stream by its address."""

    device: int
    address: int
    own: bool
    """Made here; False: the caller's."""
    priority: str | None = None
    """``normal`` or ``high``; None where it is not known."""

    def drain(self) -> CudaStatus:
        """Wait until all work of the stream is done; return what it had run into.

        Raises:
            DeviceLostError: every later call would run into it as well.
        """
        told, sticky = _native.stream_drain(CUDA_PROVIDER_LIBRARY, self.device, self.address)
        status = CudaStatus(*told)
        if sticky:
            lost.setdefault(self.device, status)
            check_device(self.device)
        return status

    def after(self, earlier: int) -> None:
        """Let later work of this stream wait for what is in the stream at the address ``earlier`` now.

        Raises:
            CudaCallError: CUDA refuses it.
        """
        status = CudaStatus(*_native.stream_order(CUDA_PROVIDER_LIBRARY, self.device, self.address, earlier))
        if not status.ok:
            raise CudaCallError(f"The lane's stream cannot be ordered after the caller's: CUDA says {status.text}.")

    def keep_for(self, session: Any) -> None:
        """Keep the stream as long as anything refers to ``session``, ONNX Runtime's own object.

        What a session hands out (metadata, bindings) can keep it alive longer than its lane.
        """
        weakref.finalize(session, _let_go, self).atexit = False


def _let_go(stream: Stream) -> None:
    """Hold a stream as an argument until this is called."""


def all_streams(device: int) -> Stream:
    """Return what stands for all streams of a device; good for drain() alone."""
    return Stream(device, 0, own=False)


def make(device: int, priority: str) -> Stream | None:
    """Return a new non-blocking stream; None where there is no such device.

    Args:
        device: number of the device.
        priority: ``normal`` or ``high``.

    Raises:
        DeviceLostError: the device's context is lost.
        MemoryError: there is no memory for it.
    """
    check_device(device)
    address, told = _native.stream_make(CUDA_PROVIDER_LIBRARY, device, priority == "high")
    status = CudaStatus(*told)
    if status.ok:
        stream = Stream(device, address, own=True, priority=priority)
        # At the end of the process it is left to the operating system: sessions may go after it.
        weakref.finalize(stream, _native.stream_destroy, address).atexit = False
        return stream
    if status.code in _NO_DEVICE:
        return None
    if status.code == _OUT_OF_MEMORY:
        raise MemoryError(f"No CUDA stream can be made on device {device}: {status.text}.")
    # Making a stream fails in no other way on a device whose context is whole.
    lost.setdefault(device, status)
    raise DeviceLostError(device, status.code, status.text)


def device_memory(device: int) -> tuple[int, int] | None:
    """Return the free bytes of a device and all that it has; None where they cannot be asked for."""
    told, free, total = _native.device_memory(CUDA_PROVIDER_LIBRARY, device)
    return (free, total) if told[0] == 0 else None


def free_memory(device: int) -> int | None:
    """Return the free bytes of a device, None where they cannot be asked for."""
    memory = device_memory(device)
    return None if memory is None else memory[0]
