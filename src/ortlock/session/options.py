"""Session options to pin, without touching the caller's object.

ONNX Runtime has no copy of a ``SessionOptions``. What a session gives as its ``session_options`` is one, though, so a
session on a tiny model serves as the copier. The copy loses what only the Python object knows: custom-op libraries and
registered providers. For those the caller's own object is used, changed under a lock and put back as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock.errors import NotReproducibleError
from ortlock.settings import parse_version

EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where external data of a model that is given as bytes lies."""
_SINCE_EXTERNAL_FOLDER = (1, 21)
"""First ONNX Runtime that has it."""

# One Identity node, float32[1], opset 13, IR version 7; written out so that no session needs the onnx package.
TINY_MODEL = bytes.fromhex(
    "08073a370a100a017812017922084964656e746974791201675a0f0a0178120a0a"
    "08080112040a020801620f0a0179120a0a08080112040a02080142040a00100d"
)

_CHANGED = threading.Condition()
_BORROWED: set[int] = set()
"""Identities of the options objects that are changed at the moment."""


def clone(options: Any) -> Any:
    """Return an independent copy of ``options``, without custom-op libraries and registered providers.

    Raises:
        Exception: whatever ONNX Runtime raises where no session can be made with these options.
    """
    scratch = C.InferenceSession(options, TINY_MODEL, False, False)
    copied = scratch.session_options
    if options.enable_profiling:
        # The scratch session has opened a profile of its own: nobody asked for that file.
        with suppress(OSError):
            Path(scratch.end_profiling()).unlink()
    # A session settles its options, e.g. runs one thread sequentially; what is wanted is a copy of the question.
    for name, kind in vars(type(options)).items():
        if isinstance(kind, property) and kind.fset and getattr(copied, name) != getattr(options, name):
            setattr(copied, name, getattr(options, name))
    return copied


def external_data_lost(folder: str | None, subject: str, what: str) -> NotReproducibleError | None:
    """Return why a rewritten model cannot be used, None where it can.

    Args:
        folder: where external data of it is; None where it has none.
        subject: the node that it was rewritten for.
        what: what was to be done, for the text.
    """
    if folder is None or parse_version(onnxruntime.__version__) >= _SINCE_EXTERNAL_FOLDER:
        return None
    return NotReproducibleError(
        subject,
        f"{what}: the rewritten model lies in memory, and ONNX Runtime {onnxruntime.__version__} does not find the "
        "external data of such a model.",
        f"Use ONNX Runtime {'.'.join(map(str, _SINCE_EXTERNAL_FOLDER))} or later, or save the model as one file.",
    )


def has_providers(options: Any) -> bool:
    """Return whether providers were registered with the options themselves, where this ONNX Runtime can do that."""
    ask = getattr(options, "has_providers", None)
    return bool(ask()) if ask is not None else False


def config_entry(options: Any, key: str) -> str | None:
    """Return a session configuration entry, None where it is not set."""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None


def apply(options: Any, attributes: Mapping[str, Any], entries: Mapping[str, str]) -> None:
    """Set attributes and configuration entries of ``options``."""
    for name, value in attributes.items():
        setattr(options, name, value)
    for key, text in entries.items():
        # ONNX Runtime warns of an entry that is set again.
        if config_entry(options, key) != text:
            options.add_session_config_entry(key, text)


def pinned_copy(options: Any, attributes: Mapping[str, Any], entries: Mapping[str, str], *, fresh: bool) -> Any | None:
    """Return a copy of ``options`` with attributes and entries set; None where a copy would lose something or fails.

    With ``fresh`` nobody else holds ``options``: they are changed and returned.
    """
    if has_providers(options):
        return None
    try:
        with reading(options):
            copied = options if fresh else clone(options)
        apply(copied, attributes, entries)
    except Exception:
        # E.g. a process-wide thread pool that does not exist: ONNX Runtime says so of the caller's own options.
        return None
    return copied


@contextmanager
def reading(options: Any) -> Iterator[None]:
    """Keep ``options`` from being borrowed inside the block; waits while they are."""
    with _CHANGED:
        _CHANGED.wait_for(lambda: id(options) not in _BORROWED)
        yield


@contextmanager
def borrowed(options: Any, attributes: Mapping[str, Any], entries: Mapping[str, str]) -> Iterator[None]:
    """Change the caller's own ``options`` inside the block and put everything back after it.

    Entries that the caller has not set are left out: ONNX Runtime cannot remove an entry. One borrower at a time.
    """
    with reading(options):
        attributes_before = {name: getattr(options, name) for name in attributes}
        entries_before = {key: text for key in entries if (text := config_entry(options, key)) is not None}
        _BORROWED.add(id(options))
        try:
            apply(options, attributes, {key: entries[key] for key in entries_before})
        except BaseException:
            _give_back(options, attributes_before, entries_before)
            raise
    try:
        yield
    finally:
        with _CHANGED:
            _give_back(options, attributes_before, entries_before)


def _give_back(options: Any, attributes: Mapping[str, Any], entries: Mapping[str, str]) -> None:
    try:
        apply(options, attributes, entries)
    finally:
        _BORROWED.discard(id(options))
        _CHANGED.notify_all()
