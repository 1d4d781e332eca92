"""ortlock: bit-for-bit reproducible ONNX Runtime inference, as a drop-in for ``onnxruntime.InferenceSession``."""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from ortlock.audit import Audit, audit
from ortlock.digest import digest
from ortlock.errors import (
    DeviceLostError,
    GoldenOutputsError,
    LockfileError,
    ModelFileError,
    NotReproducibleError,
    OrtlockError,
    ReproducibilityWarning,
    SessionClosedError,
)
from ortlock.policy import Mode
from ortlock.report import ReproducibilityReport

if TYPE_CHECKING:
    from ortlock.session import ReproducibleSession

__version__ = _version("ortlock")

__all__ = [
    "Audit",
    "DeviceLostError",
    "GoldenOutputsError",
    "LockfileError",
    "Mode",
    "ModelFileError",
    "NotReproducibleError",
    "OrtlockError",
    "ReproducibilityReport",
    "ReproducibilityWarning",
    "ReproducibleSession",
    "SessionClosedError",
    "__version__",
    "audit",
    "digest",
]


def __getattr__(name: str) -> Any:
    # Only the session needs ONNX Runtime, which comes with an extra; without it the rest still works.
    if name != "ReproducibleSession":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from ortlock.session import ReproducibleSession
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("onnxruntime"):
            raise
        raise ModuleNotFoundError(
            "ortlock needs ONNX Runtime: install ortlock[cpu], ortlock[cuda12] or ortlock[cuda13].", name=error.name
        ) from error
    return ReproducibleSession
