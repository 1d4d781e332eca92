"""One lane: a session of ONNX Runtime's with a stream, an arena and library handles that no other lane uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from onnxruntime import InferenceSession

from ortlock.lanes.streams import CudaStatus, Stream, all_streams
from ortlock.model_files import ModelFiles, unchanged

_CLEAN = CudaStatus(0, "")

Stock = Callable[[Any, Any], None]
"""ONNX Runtime's own creation: providers and provider options in; a session bound to the object, or an error, out."""

Make = Callable[[Any, Stock, dict[str, str]], None]
"""Makes the underlying session of an object through its stock creation, with further options for CUDA."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a lane's session is made from."""

    model: str | bytes
    keywords: dict[str, Any]
    """Keyword arguments of ``InferenceSession``."""
    make: Make
    files: ModelFiles | None = None
    """What the model's files were when the first lane's session was made; no other session is made of others."""


class LaneSession(InferenceSession):  # type: ignore[misc]  # ONNX Runtime has no type information.
    """The session of a lane. It never falls back to another provider: failures are its caller's."""

    def __init__(self, source: Source, more: dict[str, str]) -> None:
        self._lane_source, self._lane_more = source, more
        with unchanged(source.files):
            super().__init__(source.model, **source.keywords, enable_fallback=0)

    def _create_inference_session(self, providers: Any, provider_options: Any, disabled_optimizers: Any = None) -> None:
        def stock(names: Any, options: Any) -> None:
            super(LaneSession, self)._create_inference_session(names, options, disabled_optimizers)

        self._lane_source.make(self, stock, self._lane_more)


class Lane:
    """A place for one run at a time."""

    # Few places in memory: these are read at every run.
    __slots__ = ("device", "memory", "number", "ready", "served", "session", "stream")

    def __init__(self, number: int, device: int | None, session: Any = None, stream: Stream | None = None) -> None:
        self.number = number
        self.device = device
        """Number of the CUDA device; None: no device."""
        self.session = session
        """The ``InferenceSession``; None as long as it has not been made, or where it was dropped."""
        self.stream = stream
        self.memory: int | None = None
        """Bytes of the device that went when the session was made; None where that was not seen."""
        self.ready = session is not None
        """It can serve: it has a session, in which no run failed so that it may go on with a wrong plan."""
        self.served = False
        """A run has come to its end since the session was made."""

    def drain(self) -> CudaStatus:
        """Wait until nothing of a failed run is under way; return what it had run into.

        Raises:
            DeviceLostError: the device's context is lost.
        """
        if self.stream is not None:
            return self.stream.drain()
        return _CLEAN if self.device is None else all_streams(self.device).drain()

    def drop(self) -> None:
        """Let go of the session and its stream."""
        self.session = self.stream = self.memory = None
        self.ready = self.served = False


def quiet_view(session: Any) -> Any:
    """Return an ``InferenceSession`` that runs what ``session`` runs, without its fallback to the CPU."""
    view = InferenceSession.__new__(InferenceSession)
    view.__dict__.update(bound_attributes(session))
    view._enable_fallback = False
    return view


_UNBOUND = ("_enable_fallback", "_model_path", "_model_bytes", "_sess_options_initial", "_fallback_providers")


_META = {
    "_inputs_meta": ("name", "shape", "type"),
    "_outputs_meta": ("name", "shape", "type"),
    "_overridable_initializers": ("name", "shape", "type"),
}
_MODEL = ("custom_metadata_map", "description", "domain", "graph_description", "graph_name", "producer_name", "version")


def let_go(session: Any, instead: Any) -> None:
    """Let the underlying session of an ``InferenceSession`` go, and put ``instead`` in its place.

    Copies take the place of what describes the model, its inputs and outputs: that would keep it alive.
    """
    for name, fields in _META.items():
        metas = getattr(session, name, None) or ()
        setattr(session, name, [SimpleNamespace(**{key: getattr(meta, key) for key in fields}) for meta in metas])
    if (meta := getattr(session, "_model_meta", None)) is not None:
        session._model_meta = SimpleNamespace(**{key: getattr(meta, key) for key in _MODEL})
    for name in ("_input_meminfos", "_output_meminfos", "_input_epdevices"):
        if hasattr(session, name):
            setattr(session, name, [])
    session._sess = instead


def bound_attributes(session: Any) -> dict[str, Any]:
    """Return the attributes of an ``InferenceSession`` that come from the underlying session."""
    return {
        name: value
        for name, value in vars(session).items()
        if name not in _UNBOUND and not name.startswith(("_lane_", "_ortlock"))
    }
