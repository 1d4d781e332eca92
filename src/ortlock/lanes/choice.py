"""How many lanes a session gets, on which streams, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortlock.arguments import LARGEST_THREADS
from ortlock.lanes import memory, streams
from ortlock.policy import Mode
from ortlock.settings import CPU, CUDA, normalise

DEFAULT_LANES = 4
"""On CUDA, where the caller does not say. Threads that never run at once stay on one."""

STREAM = "user_compute_stream"

_PRIORITIES = ("normal", "high")

Providers = Sequence[tuple[str, dict[str, str]]]


@dataclass(frozen=True, slots=True)
class LaneRequest:
    """What the caller asked for."""

    count: int | None = None
    priority: str = "normal"


def lane_request(lanes: int | None, stream_priority: str, mode: Mode) -> LaneRequest:
    """Return what the arguments ``lanes`` and ``stream_priority`` ask for.

    Raises:
        ValueError: they name no number of lanes or no priority, or do not go with the mode.
    """
    if stream_priority not in _PRIORITIES:
        raise ValueError(f"stream_priority={stream_priority!r} is no priority; choose one of 'normal', 'high'.")
    if lanes is None:
        return LaneRequest(None, stream_priority)
    if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= LARGEST_THREADS:
        raise ValueError(
            f"lanes={lanes!r} is no number of lanes; give 1 (serial) to {LARGEST_THREADS}, or None for the default."
        )
    if mode is Mode.OBSERVE:
        raise ValueError(f"lanes={lanes} needs mode 'pin' or 'strict': observe leaves streams and locks as they are.")
    return LaneRequest(lanes, stream_priority)


@dataclass(frozen=True)
class LanePlan:
    """What lanes a session is to have."""

    count: int
    reason: str
    """Why that many."""
    device: int | None = None
    """Number of the CUDA device; None: no device."""
    stream: streams.Stream | None = None
    """Of lane 0; None: ONNX Runtime's own."""
    limit: int | None = None
    """``gpu_mem_limit`` of the session, in bytes."""
    cautious: bool = False
    """Nobody asked for that many: a further lane is made only where the device has plenty of memory left."""

    def options(self, stream: streams.Stream | None, count: int) -> dict[str, str]:
        """Return what a lane's CUDA provider is given beside the caller's options, where ``count`` lanes share."""
        given = {STREAM: str(stream.address)} if stream is not None and stream.own else {}
        if self.limit is not None and count > 1:
            given[memory.LIMIT] = str(self.limit // count)
        return given

    def providers(self, asked: Providers) -> list[tuple[str, dict[str, str]]]:
        """Return the providers of lane 0."""
        return with_options(asked, self.options(self.stream, self.count))


def with_options(providers: Providers, more: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return ``providers`` with ``more`` options for CUDA."""
    return [(name, {**given, **more} if name == CUDA else given) for name, given in providers]


def choose(
    request: LaneRequest, mode: Mode, asked: Providers, *, available: Iterable[str], shared_arena: bool
) -> LanePlan | None:
    """Return the lanes of a session that is about to be made; None: none, the session is run as it is.

    Args:
        request: what the caller asked for.
        mode: the session's mode.
        asked: providers with the caller's options.
        available: the providers that this ONNX Runtime has.
        shared_arena: sessions take their memory from one arena of the process (session.use_env_allocators).

    Raises:
        DeviceLostError: the device's context is lost.
    """
    if mode is Mode.OBSERVE:
        return None
    given = dict(asked).get(CUDA)
    if given is None or CUDA not in available:
        if request.count is None:
            return None
        return LanePlan(request.count, "asked for; without CUDA they need no streams")
    device = int(given.get("device_id", "0"))
    limit = memory.limit_of(given)
    own = given.get(STREAM, "").strip()
    if own not in ("", "0"):
        stream = streams.Stream(device, int(own, 0), own=False)
        return LanePlan(1, "the caller's own user_compute_stream is one stream", device, stream, limit)
    if others := [name for name, _ in asked if name not in (CUDA, CPU)]:
        return LanePlan(1, f"{', '.join(others)} brings a stream of its own", device, None, limit)
    if given.get("gpu_external_alloc", "0").strip() not in ("", "0"):
        # ONNX Runtime refuses a stream of ours together with it.
        return LanePlan(1, "gpu_external_alloc is one allocator for all", device, None, limit)
    count, reason, cautious = request.count or 1, "asked for", False
    if request.count is None and limit is not None:
        reason = "gpu_mem_limit is not divided unless lanes are asked for"
    elif request.count is None:
        count, reason, cautious = DEFAULT_LANES, "the default", True
    if normalise(given.get("enable_cuda_graph", "0")) == "1":
        count, reason = 1, "enable_cuda_graph captures the buffers of one lane"
    elif shared_arena:
        count, reason = 1, "session.use_env_allocators gives all sessions one arena, which lanes must not share"
    own_stream = streams.make(device, request.priority)
    return None if own_stream is None else LanePlan(count, reason, device, own_stream, limit, cautious)


def serial(device: int) -> LanePlan:
    """Return the one lane of a session that came to run on CUDA in a way that gives it no stream of its own."""
    return LanePlan(1, "the CUDA provider was registered with the session options", device)
