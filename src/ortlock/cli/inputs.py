"""Inputs for commands that run a model: what the model takes, what options say, and arrays from a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortlock.npz import NpzError, read_npz

Feed = dict[str, Any]

DTYPES: dict[str, type[np.generic]] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
}

# Types that NumPy lacks, by the integers that hold their bits: (ONNX element type, integer, bits of 1.0).
BITS: dict[str, tuple[int, type[np.unsignedinteger[Any]], int]] = {
    "bfloat16": (16, np.uint16, 0x3F80),
    "float8e4m3fn": (17, np.uint8, 0x38),
    "float8e4m3fnuz": (18, np.uint8, 0x40),
    "float8e5m2": (19, np.uint8, 0x3C),
    "float8e5m2fnuz": (20, np.uint8, 0x40),
}


class InputError(ValueError):
    """The inputs that were asked for do not fit the model; the text says which, why and what to do."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a model."""

    name: str
    type: str
    """As ONNX Runtime writes it, e.g. ``tensor(float)``."""
    shape: tuple[int | str | None, ...]
    """Sizes; a symbolic dimension by its name, None where it has none."""

    @property
    def element(self) -> str:
        """The type of a tensor's elements, e.g. ``float``, optional or not; empty for what is no tensor."""
        found = re.fullmatch(r"tensor\((\w+)\)|optional\(tensor\((\w+)\)\)", self.type)
        return (found[1] or found[2]) if found else ""

    @property
    def optional(self) -> bool:
        return self.type.startswith("optional")


def input_specs(session: Any) -> tuple[InputSpec, ...]:
    """Return the inputs of an ``onnxruntime.InferenceSession``."""
    return tuple(InputSpec(arg.name, arg.type, tuple(arg.shape)) for arg in session.get_inputs())


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Return ``NAME=N`` texts as a dictionary.

    Raises:
        InputError: a text has another form, or two give a dimension different sizes.
    """
    dims: dict[str, int] = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        if not separator or not name or not re.fullmatch(r"0|[1-9][0-9]*", value):
            raise InputError(f"--dim {text!r}: give NAME=N with a number from 0 on, e.g. --dim batch=1.")
        if dims.setdefault(name, int(value)) != int(value):
            raise InputError(f"--dim {name}={dims[name]} and --dim {text} contradict each other. Give {name} one size.")
    return dims


def parse_shapes(text: str) -> dict[str, list[tuple[int, ...]]]:
    """Return ``x:1x3x224x224,x:1x3x256x256,mask:1x77`` as shapes by input; a shape without a name goes with the last.

    Raises:
        InputError: the text has another form.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}
    name = ""
    for part in text.split(","):
        before, separator, shape = part.strip().rpartition(":")
        name = before if separator else name
        if not name or not re.fullmatch(r"[0-9]+(x[0-9]+)*", shape):
            raise InputError(
                f"--shapes {text!r}: give NAME:AxBxC, several with commas, e.g. x:1x3x224x224,x:1x3x256x256."
            )
        shapes.setdefault(name, []).append(tuple(int(size) for size in shape.split("x")))
    return shapes


def load_npz(path: Path, specs: Sequence[InputSpec]) -> Feed:
    """Return the arrays of an .npz file by input name.

    Raises:
        InputError: the file cannot be read, lacks an input or holds one that the model does not have.
    """
    try:
        feed: Feed = {**read_npz(path)}
    except NpzError as error:
        raise InputError(f"--inputs {path}: {error}. Write it with numpy.savez(path, NAME=array, ...).") from error
    wanted = {spec.name for spec in specs}
    needed = {spec.name for spec in specs if not spec.optional}
    if missing := sorted(needed - set(feed)):
        raise InputError(
            f"--inputs {path}: holds no {', '.join(missing)}; it holds {', '.join(sorted(feed)) or 'nothing'}."
        )
    if extra := sorted(set(feed) - wanted):
        raise InputError(
            f"--inputs {path}: the model has no input {', '.join(extra)}; it has {', '.join(sorted(wanted))}."
        )
    for spec in specs:
        if spec.name in feed:
            _check_array(path, spec, feed[spec.name])
    return feed


def _check_array(path: Path, spec: InputSpec, array: NDArray[Any]) -> None:
    """Check type, rank and fixed sizes, as far as the model tells them."""
    _check_type(path, spec, array.dtype)
    if not spec.shape:
        return
    fits = len(array.shape) == len(spec.shape) and all(
        size == given
        for size, given in zip(spec.shape, array.shape, strict=True)
        if isinstance(size, int) and size >= 0
    )
    if not fits:
        shape = ", ".join("?" if size is None else str(size) for size in spec.shape)
        raise InputError(
            f"--inputs {path}: {spec.name} has the shape {list(array.shape)}, the model takes [{shape}]. Give an array "
            "of that shape."
        )


def _check_type(path: Path, spec: InputSpec, given: np.dtype[Any]) -> None:
    element = spec.element
    if element == "string":
        # ONNX Runtime would read the characters of other texts from beyond the array.
        if given.kind != "U":
            raise InputError(
                f"--inputs {path}: {spec.name} is {given}, the model takes text. Write it with array.astype(str)."
            )
    elif element in DTYPES:
        wanted = np.dtype(DTYPES[element])
        if given != wanted:
            raise InputError(
                f"--inputs {path}: {spec.name} is {given}, the model takes {wanted}. Write it with "
                f"array.astype(numpy.{wanted})."
            )
    else:
        remedy = "Use a model whose inputs are tensors of a type that NumPy has."
        if element in BITS:
            remedy = "Leave --inputs out for made-up values, or put a Cast from float behind the model's input."
        raise InputError(
            f"--inputs {path}: {spec.name} is {given}, the model takes {spec.type}, which an .npz file cannot hold. "
            f"{remedy}"
        )
