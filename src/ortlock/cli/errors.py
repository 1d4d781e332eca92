"""Errors as one clear line."""

from __future__ import annotations

from pathlib import Path

from ortlock.errors import OrtlockError


class CommandError(OrtlockError):
    """A command cannot do what it was asked; the text names what, why and the remedy."""


def explain(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime":
        return "onnxruntime is not installed. Install ortlock[cpu], ortlock[cuda12] or ortlock[cuda13]."
    if isinstance(error, OrtlockError | ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def cause_of(error: BaseException) -> str:
    """Return what an error says in one line without a full stop at its end, to go on from."""
    return " ".join(str(error).split()).rstrip(". ") or type(error).__name__


_REMEDIES = (
    (("Failed to allocate memory", "Unable to allocate", "bad_alloc"), "Give smaller --shapes or --dim."),
    (("can't start new thread",), "Give a smaller --threads."),
    (("No corresponding Numpy type",), "NumPy lacks an output's type; add a Cast to float behind it in the model."),
    (("invalid dimensions", "Invalid rank", "Non-zero status code"), "See --shapes and --dim."),
)


def remedy_for(error: BaseException) -> str:
    """Return what can be done about a run that failed, after a space; empty where nothing is known to help."""
    text = str(error)
    return next((f" {remedy}" for words, remedy in _REMEDIES if any(word in text for word in words)), "")


def does_not_run(model: Path, how: str, error: Exception) -> CommandError:
    """Return the error for a model that fails, with a remedy that goes with the cause.

    Args:
        model: the model's file.
        how: what it does not do, e.g. ``does not run with these inputs``.
        error: what was raised.
    """
    return CommandError(f"{model}: {how}: {cause_of(error)}.{remedy_for(error)}")


def readable_model(path: Path) -> bytes | str:
    """Return ``path`` as text once it is known to be a model file that can be opened.

    Raises:
        CommandError: there is no such file, or it cannot be read.
    """
    if not path.exists():
        raise CommandError(f"{path}: no such file. Give the path of an ONNX model.")
    if path.is_dir():
        raise CommandError(f"{path}: a folder, not a model. Give the path of an ONNX model.")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise CommandError(f"{path}: the file is empty. Export the model again.")
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror}.") from error
    return str(path)


def cannot_load(path: Path, error: Exception) -> CommandError:
    """Return the error for a model that ONNX Runtime does not load."""
    return CommandError(
        f"{path}: ONNX Runtime cannot load it: {cause_of(error)}. Check it with onnx.checker.check_model, or "
        "export it again."
    )
