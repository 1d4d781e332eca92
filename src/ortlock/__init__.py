"""ortlock: bit-for-bit reproducible ONNX Runtime inference, as a drop-in for ``onnxruntime.InferenceSession``."""

from importlib.metadata import version as _version

from ortlock.digest import digest
from ortlock.errors import NotReproducibleError, OrtlockError, ReproducibilityWarning
from ortlock.policy import Mode
from ortlock.report import ReproducibilityReport
from ortlock.session import ReproducibleSession

__version__ = _version("ortlock")

__all__ = [
    "Mode",
    "NotReproducibleError",
    "OrtlockError",
    "ReproducibilityReport",
    "ReproducibilityWarning",
    "ReproducibleSession",
    "__version__",
    "digest",
]
