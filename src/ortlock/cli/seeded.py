"""Seeded inputs, made from a model's own types and shapes."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ortlock.cli.inputs import BITS, DTYPES, Feed, InputError, InputSpec
from ortlock.words import counted


def seeded_feeds(
    specs: Sequence[InputSpec], seed: int, dims: Mapping[str, int], shapes: Mapping[str, Sequence[tuple[int, ...]]]
) -> list[Feed]:
    """Return one feed for each shape that was asked for; inputs with fewer shapes keep their last one.

    A symbolic dimension takes its size from ``dims``, or from a shape that was asked for another input and names it
    too; an unnamed or unset first one is 1.

    Raises:
        InputError: a dimension is open or given two sizes, a name or a rank does not fit, or a type cannot be made up.
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
    count = max((len(asked) for asked in shapes.values()), default=1)
    sizes = [_bound(specs, dims, shapes, index) for index in range(count)]
    if open_ := list(_open_axes(specs, sizes[0], shapes)):
        raise InputError(_without_size(open_))
    return [_feed(specs, seed, sizes[index], shapes, index) for index in range(count)]


def _bound(
    specs: Sequence[InputSpec],
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    index: int,
) -> dict[str, int]:
    """Return the sizes of symbolic dimensions in feed ``index``.

    Raises:
        InputError: a dimension is given two sizes.
    """
    given = {name: (size, f"--dim {name}={size}") for name, size in dims.items()}
    for spec in specs:
        if asked := shapes.get(spec.name):
            shape = asked[min(index, len(asked) - 1)]
            here = f"--shapes {spec.name}:{'x'.join(map(str, shape))}"
            for name, size in zip(spec.shape, shape, strict=True):
                if not is_name(name):
                    continue
                known, source = given.setdefault(name, (size, here))
                # A shape that is written out is what its input takes: models name axes alike that need not be.
                if known != size and source != here:
                    raise InputError(
                        f"{source} and {here} contradict each other: the model's dimension {name} would be {known} and "
                        f"{size}. Give it one size; arrays of any shape can be given with --inputs."
                    )
    return {name: size for name, (size, _) in given.items()}


def is_name(size: int | str | None) -> TypeGuard[str]:
    """Return whether a dimension has a name."""
    return isinstance(size, str) and size not in ("", "?")


def _open_axes(
    specs: Sequence[InputSpec], sizes: Mapping[str, int], shapes: Mapping[str, Sequence[tuple[int, ...]]]
) -> Iterator[tuple[InputSpec, int]]:
    """Yield the inputs and axes that nothing gives a size; a first axis without one is 1."""
    for spec in specs:
        if spec.name in shapes or spec.optional:
            continue
        for axis, size in enumerate(spec.shape):
            fixed = isinstance(size, int) and size >= 0
            if axis != 0 and not fixed and not (isinstance(size, str) and size in sizes):
                yield spec, axis


def _without_size(open_: Sequence[tuple[InputSpec, int]]) -> str:
    """Return the error for axes without a size: names take ``--dim``, an input with others takes ``--shapes``."""
    names = sorted({size for spec, axis in open_ if is_name(size := spec.shape[axis])})
    unnamed = [(spec, axis) for spec, axis in open_ if not is_name(spec.shape[axis])]
    told = ", ".join([*names, *(f"axis {axis} of input {spec.name} (without a name)" for spec, axis in unnamed)])
    remedies = [f"--dim {shlex.quote(name)}=N" for name in names]
    if unnamed:
        remedies.append(f"--shapes {','.join(dict.fromkeys(_example(spec) for spec, _ in unnamed))}")
    else:
        remedies.append("or --shapes NAME:AxBxC")
    return f"these dimensions of the model have no size: {told}. Set them with {' '.join(remedies)}."


def _example(spec: InputSpec) -> str:
    """Return how the shape of an input is written, e.g. ``x:Ax3xBxC``: letters for the sizes that the model leaves."""
    letters = iter(string.ascii_uppercase * len(spec.shape))
    sizes = (str(size) if isinstance(size, int) and size >= 0 else next(letters) for size in spec.shape)
    return f"{spec.name}:{'x'.join(sizes)}"


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
    sizes: Mapping[str, int],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    index: int,
) -> Feed:
    feed: Feed = {}
    for number, spec in enumerate(specs):
        if spec.optional:
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
    element = spec.element
    if element == "string":
        return np.array([f"text {number}" for number in random.integers(0, 100, shape).ravel()], object).reshape(shape)
    if element in BITS:
        return _ort_value(spec, random.integers(0, 2, shape))
    if element not in DTYPES:
        raise InputError(
            f"input {spec.name} is a {spec.type}, which cannot be made up, nor can an .npz file hold it; "
            "use a model whose inputs are tensors of a type that NumPy has."
        )
    dtype = np.dtype(DTYPES[element])
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
    element, integer, one = BITS[spec.element]
    return make((ones * one).astype(integer), element)
