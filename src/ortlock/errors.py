"""What ortlock raises and warns with."""

from __future__ import annotations

import os


class OrtlockError(Exception):
    """Base of every error that ortlock itself raises. ONNX Runtime's own errors pass through unchanged."""


class NotReproducibleError(OrtlockError):
    """Strict mode cannot promise the same bits.

    Attributes:
        subject: the node, operation, setting or provider that the promise fails on.
        reason: why the same bits cannot be promised.
        remedy: what the caller can do about it.
    """

    def __init__(self, subject: str, reason: str, remedy: str) -> None:
        self.subject = subject
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{subject}: {reason} Remedy: {remedy}")

    def __reduce__(self) -> tuple[type[NotReproducibleError], tuple[str, str, str]]:
        return (type(self), (self.subject, self.reason, self.remedy))


class _FileError(OrtlockError):
    """Something is wrong with a file."""

    def __init__(self, path: str | os.PathLike[str], reason: str, remedy: str) -> None:
        self.path = os.fspath(path)
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{self.path}: {reason} Remedy: {remedy}")

    def __reduce__(self) -> tuple[type[_FileError], tuple[str, str, str]]:
        return (type(self), (self.path, self.reason, self.remedy))


class LockfileError(_FileError):
    """A lockfile cannot be used or written; whatever it holds was left as it is.

    Attributes:
        path: the lockfile.
        reason: what is wrong, with the line where there is one.
        remedy: what the caller can do about it.
    """


class GoldenOutputsError(_FileError):
    """A file of golden outputs cannot be used or written; whatever it holds was left as it is.

    Attributes:
        path: the file.
        reason: what is wrong.
        remedy: what the caller can do about it.
    """


class ModelFileError(_FileError):
    """A model file cannot be read as an ONNX model.

    Attributes:
        path: the model's file; ``model`` for bytes.
        reason: what is wrong.
        remedy: what the caller can do about it.
    """


class SessionClosedError(OrtlockError):
    """A session is used that was closed, or that a forked process inherited."""


class DeviceLostError(OrtlockError):
    """A CUDA device has run into an error that stays until the process ends, e.g. an illegal memory access.

    Attributes:
        device: number of the device.
        code: CUDA's number of the error.
        text: CUDA's name and description of it.
    """

    def __init__(self, device: int, code: int, text: str) -> None:
        self.device = device
        self.code = code
        self.text = text
        super().__init__(
            f"CUDA device {device}: error {code}, {text}. The device's context in this process is lost, and nothing "
            "is answered from the CPU in its place. Remedy: end this process and start a new one; "
            "`compute-sanitizer` finds the kernel that caused it."
        )

    def __reduce__(self) -> tuple[type[DeviceLostError], tuple[int, int, str]]:
        return (type(self), (self.device, self.code, self.text))


class ReproducibilityWarning(UserWarning):
    """Pin mode changed a setting of the caller's, or could not promise the same bits."""
