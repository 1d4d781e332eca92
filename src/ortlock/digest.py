"""A digest of outputs: names, shapes, types and bytes.

Encoding: every value is a tag and its fields; every field is preceded by its length in bytes (8, little endian), so
no two different outputs have the same encoding. Array bytes are in C order and little endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ortlock.arguments import check_names, check_outputs
from ortlock.words import counted


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...


def digest(outputs: Sequence[Any] | Mapping[str, Any], names: Sequence[str] | None = None) -> str:
    """Return ``sha256:<hex>`` over ``outputs``.

    Args:
        outputs: what ``run`` or ``run_with_ort_values`` returned: arrays of any layout and shape, OrtValues, sparse
            tensors, lists and dictionaries (sequence and map outputs) and None (an absent optional output); or a
            mapping from names to these.
        names: the outputs' names, one for each; their positions where it is None.

    Raises:
        ValueError: as many names as outputs are needed.
        TypeError: ``outputs`` is no sequence or mapping of outputs, such as one array by itself; ``names`` is one
            text; or an output is of a type that has no defined bytes.
    """
    if isinstance(outputs, Mapping):
        names, outputs = list(outputs), list(outputs.values())
    outputs, names = check_outputs(outputs), check_names("names", names)
    if names is None:
        names = [str(position) for position in range(len(outputs))]
    if len(names) != len(outputs):
        raise ValueError(f"{counted(len(outputs), 'output')} but {counted(len(names), 'name')}")
    state = hashlib.sha256()
    for name, value in zip(names, outputs, strict=True):
        _field(state, name.encode())
        _value(state, value)
    return f"sha256:{state.hexdigest()}"


def _field(state: _Hash, data: bytes | memoryview) -> None:
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    state.update(struct.pack("<Q", size))
    state.update(data)


def _value(state: _Hash, value: Any) -> None:
    if value is None:
        _field(state, b"none")
    elif isinstance(value, np.ndarray | np.generic):
        _array(state, np.asarray(value))
    elif isinstance(value, str | bytes):
        _field(state, b"text")
        _field(state, value.encode() if isinstance(value, str) else value)
    elif isinstance(value, bool | int | float):
        _array(state, np.asarray(value))
    elif isinstance(value, Mapping):
        _field(state, b"map")
        _field(state, struct.pack("<Q", len(value)))
        for key, item in sorted(value.items(), key=lambda entry: (str(type(entry[0])), entry[0])):
            _value(state, key)
            _value(state, item)
    elif isinstance(value, Sequence):
        _field(state, b"sequence")
        _field(state, struct.pack("<Q", len(value)))
        for item in value:
            _value(state, item)
    else:
        _ort(state, value)


def _array(state: _Hash, array: np.ndarray[Any, Any]) -> None:
    if array.dtype == object or array.dtype.kind in "US":
        # Strings have no bytes of their own in an array of objects.
        _field(state, b"text array")
        _shape(state, array.shape)
        for item in array.reshape(-1).tolist():
            _value(state, item)
        return
    _field(state, b"array")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    _field(state, little.dtype.name.encode())
    _shape(state, array.shape)
    _field(state, np.ascontiguousarray(little).tobytes())


def _shape(state: _Hash, shape: Sequence[int]) -> None:
    _field(state, struct.pack(f"<{len(shape)}q", *shape))


def _ort(state: _Hash, value: Any) -> None:
    """Add an OrtValue or a SparseTensor, by the methods that ONNX Runtime gives both."""
    if hasattr(value, "is_tensor") and value.is_tensor():
        element = value.element_type() if hasattr(value, "element_type") else 0
        try:
            _array(state, value.numpy())
        except (RuntimeError, TypeError) as cause:
            # Types that NumPy does not have, such as bfloat16: their raw bytes, where ONNX Runtime hands them out.
            raw = _raw_bytes(value)
            if raw is None:
                raise TypeError(f"an output of ONNX element type {element} has no bytes that can be read") from cause
            _field(state, b"raw")
            _field(state, str(element).encode())
            _shape(state, value.shape())
            _field(state, raw)
    elif hasattr(value, "is_sparse_tensor") and value.is_sparse_tensor():
        _ort(state, value.as_sparse_tensor())
    elif hasattr(value, "dense_shape"):
        _field(state, b"sparse")
        _field(state, str(value.format()).encode())
        _shape(state, value.dense_shape())
        _array(state, np.asarray(value.values()))
        for part in _sparse_indices(value):
            _array(state, np.asarray(part))
    elif hasattr(value, "is_tensor_sequence") and value.is_tensor_sequence():
        _value(state, value.to_numpy() if hasattr(value, "to_numpy") else value._ortvalue.to_python())
    else:
        raise TypeError(f"{type(value).__name__} has no defined digest")


def _raw_bytes(value: Any) -> bytes | None:
    import ctypes

    try:
        if value.device_name() != "cpu":
            return None
        size = value._ortvalue.tensor_size_in_bytes()
        return ctypes.string_at(value.data_ptr(), size)
    except (AttributeError, RuntimeError):
        return None


def _sparse_indices(value: Any) -> list[Any]:
    name = str(value.format())
    if "COO" in name:
        return [value.as_coo_view().indices()]
    if "CSR" in name:
        view = value.as_csrc_view()
        return [view.inner(), view.outer()]
    if "BLOCK" in name:
        return [value.as_blocksparse_view().indices()]
    return []
