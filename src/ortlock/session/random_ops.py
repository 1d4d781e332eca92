"""``random_ops``: operators that draw at random, refused or started from their seed in every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from ortlock.errors import ModelFileError, NotReproducibleError
from ortlock.operators.model_file import external_tensors, is_ort_format
from ortlock.operators.random import SETTING, holds_random, restart_random
from ortlock.operators.weightless import parse_without_weights, read_without_weights
from ortlock.policy import Mode
from ortlock.session.options import external_data_lost

Stock = Callable[[Any, Any], None]
"""ONNX Runtime's own creation: providers and provider options in; a session bound to the object, or an error, out."""


class RandomOps(StrEnum):
    """What is done with operators that draw at random.

    ``error`` leaves them as they are: they go on with their sequence in each run, so strict refuses them and pin
    reports them. ``restart`` replaces them in memory: each run draws the same numbers.
    """

    ERROR = "error"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Restarted:
    """The model that ONNX Runtime is given in place of the caller's."""

    data: bytes
    folder: str | None
    """Where its external data lies; None if it has none."""
    nodes: tuple[str, ...]
    """The nodes whose numbers start anew in each run."""


def random_request(random_ops: str, mode: Mode) -> RandomOps:
    """Return what was asked for.

    Raises:
        ValueError: it is none of the two, or contradicts the mode.
    """
    try:
        asked = RandomOps(random_ops)
    except ValueError:
        names = " or ".join(repr(str(known)) for known in RandomOps)
        raise ValueError(f"random_ops={random_ops!r} is not known; choose {names}.") from None
    if asked is RandomOps.RESTART and mode is Mode.OBSERVE:
        raise ValueError(f"{SETTING} changes the model and mode='observe' changes nothing; use mode='pin' or 'strict'.")
    return asked


def restart(path: str | None, data: bytes | None) -> Restarted | None:
    """Return the model with its random operators started anew in each run; None where it has none.

    So it does where ONNX Runtime will refuse the model anyway.

    Args:
        path: the model's file, or None.
        data: the model's bytes, or None.

    Raises:
        NotReproducibleError: a node, or the model, cannot be rewritten.
    """
    try:
        slim = parse_without_weights(data) if data is not None else read_without_weights(path or "")
    except ModelFileError:
        if _is_ort_format(path, data):
            raise NotReproducibleError(
                path or "model",
                f"{SETTING}: the .ort format cannot be rewritten.",
                "Give the ONNX model that it was made from, or leave random_ops out.",
            ) from None
        return None
    if not holds_random(slim):
        return None
    external = any(external_tensors(slim))
    del slim
    try:
        model = (
            onnx.load_model_from_string(data) if data is not None else onnx.load(str(path), load_external_data=False)
        )
    except (DecodeError, OSError):
        return None
    rewritten = restart_random(model)
    folder = str(Path(path).parent.absolute()) if external and path is not None else None
    if problem := external_data_lost(folder, rewritten.nodes[0], SETTING):
        raise problem
    return Restarted(rewritten.model, folder, rewritten.nodes)


def _is_ort_format(path: str | None, data: bytes | None) -> bool:
    if data is not None:
        return is_ort_format(data)
    try:
        with Path(path or "").open("rb") as file:
            return is_ort_format(file.read(8))
    except OSError:
        return False
