"""Inputs for commands that run a model: from a file, or seeded and made from the model's own types and shapes."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortlock.npz import NpzError, read_npz
from ortlock.words import counted

Feed = dict[str, Any]

_DTYPES: dict[str, type[np.generic]] = {
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
_BITS: dict[str, tuple[int, type[np.unsignedinteger[Any]], int]] = {
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


def input_specs(session: Any) -> tuple[InputSpec, ...]:
    """Return the inputs of an ``onnxruntime.InferenceSession``."""
    return tuple(InputSpec(arg.name, arg.type, tuple(arg.shape)) for arg in session.get_inputs())


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Return ``NAME=N`` texts as a dictionary.

    Raises:
        InputError: a text has another form.
    """
    dims = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        if not separator or not name or not re.fullmatch(r"0|[1-9][0-9]*", value):
            raise InputError(f"--dim {text!r}: give NAME=N with a number from 0 on, e.g. --dim batch=1.")
        dims[name] = int(value)
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
    needed = {spec.name for spec in specs if not spec.type.startswith("optional")}
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
    found = re.fullmatch(r"tensor\((\w+)\)", spec.type)
    wanted = _DTYPES.get(found[1]) if found else None
    if wanted is not None and array.dtype != wanted:
        kind = np.dtype(wanted)
        raise InputError(
            f"--inputs {path}: {spec.name} is {array.dtype}, the model takes {kind}. Write it with "
            f"array.astype(numpy.{kind})."
        )
    if found is None or not spec.shape:
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


def seeded_feeds(
    specs: Sequence[InputSpec], seed: int, dims: Mapping[str, int], shapes: Mapping[str, Sequence[tuple[int, ...]]]
) -> list[Feed]:
    """Return one feed for each shape that was asked for; inputs with fewer shapes keep their last one.

    A symbolic dimension takes its size from ``dims``, else from a shape that was asked for another input and names
    it too; an unnamed or unset first one is 1.

    Raises:
        InputError: a dimension is open, a name or a rank does not fit, or a type cannot be made up.
    """
    known = {spec.name: spec for spec in specs}
    if unknown := sorted(set(shapes) - set(known)):
        raise InputError(f"--shapes: the model has no input {', '.join(unknown)}; it has {', '.join(known)}.")
    symbols = {size for spec in specs for size in spec.shape if isinstance(size, str)}
    if unused := sorted(set(dims) - symbols):
        raise InputError(
            f"--dim: the model has no dimension {', '.join(unused)}; it has {', '.join(sorted(symbols)) or 'none'}."
        )
    for name, asked in shapes.items():
        for shape in asked:
            _check(known[name], shape)
    if open_ := sorted(set(_open_dimensions(specs, _bound(specs, dims, shapes, 0), shapes))):
        raise InputError(
            f"these dimensions of the model have no size: {', '.join(open_)}. Set them with "
            f"{' '.join(f'--dim {name.split()[0]}=N' for name in open_ if '[' not in name) or '--shapes'}"
            " or --shapes NAME:AxBxC."
        )
    count = max((len(asked) for asked in shapes.values()), default=1)
    return [_feed(specs, seed, dims, shapes, index) for index in range(count)]


def _bound(
    specs: Sequence[InputSpec],
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    index: int,
) -> dict[str, int]:
    """Return the sizes of symbolic dimensions in feed ``index``: an explicit --dim, else the first shape's."""
    sizes = dict(dims)
    for spec in specs:
        if asked := shapes.get(spec.name):
            for name, size in zip(spec.shape, asked[min(index, len(asked) - 1)], strict=True):
                if isinstance(name, str) and name not in ("", "?"):
                    sizes.setdefault(name, size)
    return sizes


def _open_dimensions(
    specs: Sequence[InputSpec], dims: Mapping[str, int], shapes: Mapping[str, Sequence[tuple[int, ...]]]
) -> list[str]:
    found = []
    for spec in specs:
        if spec.name in shapes:
            continue
        for axis, size in enumerate(spec.shape):
            if isinstance(size, int) and size >= 0:
                continue
            if isinstance(size, str) and size in dims:
                continue
            if axis != 0:
                found.append(size if isinstance(size, str) and size != "?" else f"{spec.name}[{axis}]")
    return found


def _check(spec: InputSpec, shape: tuple[int, ...]) -> None:
    if len(shape) != len(spec.shape):
        raise InputError(
            f"--shapes {spec.name}: {counted(len(shape), 'size')} for the "
            f"{counted(len(spec.shape), 'axis', 'axes')} of {list(spec.shape)}."
        )
    for axis, (given, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
        if isinstance(wanted, int) and wanted >= 0 and given != wanted:
            raise InputError(f"--shapes {spec.name}: axis {axis} is {wanted} in the model, not {given}.")


def _feed(
    specs: Sequence[InputSpec],
    seed: int,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    index: int,
) -> Feed:
    feed: Feed = {}
    sizes = _bound(specs, dims, shapes, index)
    for number, spec in enumerate(specs):
        if spec.type.startswith("optional"):
            continue
        asked = shapes.get(spec.name)
        shape = asked[min(index, len(asked) - 1)] if asked else tuple(_size(size, sizes) for size in spec.shape)
        feed[spec.name] = _fitting(spec, shape, np.random.default_rng([seed, number, index]))
    return feed


def _fitting(spec: InputSpec, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    """Return made-up values, or say that there is no memory for so many."""
    # Random numbers are drawn as float64 or int64. What exceeds the machine's memory may kill the process.
    if 8 * math.prod(shape) <= _memory():
        with contextlib.suppress(MemoryError):
            return _values(spec, shape, random)
    raise InputError(
        f"input {spec.name} of the shape {'x'.join(map(str, shape))} does not fit in memory; give smaller sizes with "
        "--shapes or --dim."
    )


def _memory() -> int:
    """Return the machine's memory in bytes; where it cannot be asked, the most that an array can have."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def _size(size: int | str | None, dims: Mapping[str, int]) -> int:
    if isinstance(size, int) and size >= 0:
        return size
    return dims.get(size, 1) if isinstance(size, str) else 1


def _values(spec: InputSpec, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    found = re.fullmatch(r"tensor\((\w+)\)", spec.type)
    if found and found[1] == "string":
        return np.array([f"text {number}" for number in random.integers(0, 100, shape).ravel()], object).reshape(shape)
    if found and found[1] in _BITS:
        return _ort_value(spec, random.integers(0, 2, shape))
    if not found or found[1] not in _DTYPES:
        raise InputError(
            f"input {spec.name} is a {spec.type}, which cannot be made up, nor can an .npz file hold it; "
            "use a model whose inputs are tensors of a type that NumPy has."
        )
    dtype = np.dtype(_DTYPES[found[1]])
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    # Zeros and ones are safe as indices, lengths and masks.
    return random.integers(0, 2, shape).astype(dtype)


def _ort_value(spec: InputSpec, ones: NDArray[Any]) -> Any:
    """Return zeros and ones of a type that NumPy lacks as an ``onnxruntime.OrtValue``."""
    import onnxruntime

    make = getattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type", None)
    if make is None:
        raise InputError(
            f"input {spec.name} is a {spec.type}, which ONNX Runtime {onnxruntime.__version__} takes from no array; "
            "use a newer ONNX Runtime."
        )
    element, integer, one = _BITS[spec.type[len("tensor(") : -1]]
    return make((ones * one).astype(integer), element)
