"""Reading a model file whatever its size: the weights are skipped, not loaded.

A model of 2 GB is nearly all weights, and Protocol Buffers can only be asked for the whole of it, twice: bytes and
objects. So the file is mapped, the weights are cut out of the message, and what is left is parsed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ortlock.errors import ModelFileError
from ortlock.operators.indices import LARGEST
from ortlock.operators.model_file import is_ort_format

_SMALL = 1 << 16
"""Bytes of a message up to which it is taken as it is."""
_LARGEST_INDICES = 10 * LARGEST + _SMALL
"""Bytes of a tensor of integers up to which it is kept: indices may be wanted, weights are not. An integer that is not
raw takes up to 10."""

_EXPORT = "Export the model again, or copy it once more."
_GIVE_ONNX = "Give the path of an ONNX model."

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_TENSOR_TYPE, _RAW = 2, 9
_TENSOR_DATA = frozenset({4, 5, 6, 7, _RAW, 10, 11})
_KEPT_TYPES = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL})


@dataclass(frozen=True)
class _Message:
    """A message type: which of its fields are messages with tensors inside."""

    inner: dict[int, _Message] = field(default_factory=dict)
    tensor: bool = False


_TENSOR = _Message(tensor=True)
_GRAPH = _Message()
_ATTRIBUTE = _Message({5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH})
_NODE = _Message({5: _ATTRIBUTE})
_GRAPH.inner.update({1: _NODE, 5: _TENSOR, 15: _Message({1: _TENSOR, 2: _TENSOR})})
_MODEL = _Message({7: _GRAPH, 25: _Message({7: _NODE})})


class _MalformedError(ValueError):
    """The bytes are no message; the text says why."""


def load_slim(path: str | None, data: bytes | None) -> onnx.ModelProto | None:
    """Return a model as :func:`read_without_weights`, which tells the same of its nodes as the whole.

    Args:
        path: the model's file, or None.
        data: the model's bytes, or None.

    Returns:
        None where it is not an ONNX model in the binary form.
    """
    try:
        return parse_without_weights(data) if data is not None else read_without_weights(path or "")
    except ModelFileError:
        return None


def read_without_weights(path: str | Path) -> onnx.ModelProto:
    """Return the model in a file; tensors keep name, type and dimensions, and lose their values if these are large.

    Raises:
        ModelFileError: it is not there, cannot be read, is damaged, or is no ONNX model.
    """
    path = Path(path)
    try:
        if not path.exists():
            raise ModelFileError(path, "There is no such file.", _GIVE_ONNX)
        if path.is_dir():
            raise ModelFileError(path, "It is a folder, not a model.", _GIVE_ONNX)
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise ModelFileError(path, "The file is empty.", _EXPORT)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                return parse_without_weights(view, str(path))
    except OSError as error:
        raise ModelFileError(path, f"It cannot be read: {error.strerror}.", "Check its permissions.") from error


def parse_without_weights(data: bytes | memoryview, name: str = "model") -> onnx.ModelProto:
    """Return the model in ``data``, as :func:`read_without_weights`; ``name`` is for the error text."""
    with memoryview(data) as view:
        if problem := _other_format(bytes(view[:256])):
            raise ModelFileError(name, *problem)
        try:
            model = onnx.ModelProto.FromString(b"".join(_without_weights(view, 0, len(view), _MODEL)))
        except _MalformedError as error:
            raise ModelFileError(name, f"It is damaged, or no ONNX model: {error}.", _EXPORT) from None
        except DecodeError:
            raise ModelFileError(name, "It is damaged, or no ONNX model: its fields make no sense.", _EXPORT) from None
    if not model.HasField("graph"):
        raise ModelFileError(name, "It is damaged, or no ONNX model: it holds no graph.", _EXPORT)
    return model


def _other_format(start: bytes) -> tuple[str, str] | None:
    """Return what a file is that is no ONNX model in the binary form, and what to do."""
    if not start:
        return "It is empty.", _EXPORT
    if is_ort_format(start):
        reason = "It is in ONNX Runtime's own .ort format, whose nodes only ONNX Runtime reads."
        return reason, "Give the ONNX model that it was made from."
    if start.startswith(b"version https://git-lfs"):
        return "It is a pointer of Git LFS, not the model.", "Fetch the file: git lfs pull."
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start):
        return "It is a text file, not an ONNX model in the binary form.", _GIVE_ONNX
    return None


def _without_weights(view: memoryview, start: int, end: int, kind: _Message) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a message that are kept."""
    fields = list(_fields(view, start, end))
    keep_data = kind.tensor and end - start <= _LARGEST_INDICES and _tensor_type(view, fields) in _KEPT_TYPES
    for number, wire, first, value, last in fields:
        if last - value <= _SMALL or wire != _LENGTH:
            yield view[first:last]
        elif number in kind.inner:
            pieces = b"".join(_without_weights(view, value, last, kind.inner[number]))
            yield _varint(number << 3 | _LENGTH) + _varint(len(pieces))
            yield pieces
        elif not kind.tensor or number not in _TENSOR_DATA or keep_data:
            yield view[first:last]


_Field = tuple[int, int, int, int, int]
"""Number, wire type, and where it begins, where its value begins and where it ends."""


def _fields(view: memoryview, start: int, end: int) -> Iterator[_Field]:
    position = start
    while position < end:
        first = position
        tag, position = _read_varint(view, position, end)
        number, wire = tag >> 3, tag & 7
        value = position
        if wire == _VARINT:
            _, position = _read_varint(view, position, end)
        elif wire == _LENGTH:
            length, value = _read_varint(view, position, end)
            position = value + length
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        else:
            raise _MalformedError(f"byte {first} begins no field")
        if not number or position > end:
            missing = f"the field at byte {first} needs {position - value} bytes, and {max(end - value, 0)} are there"
            raise _MalformedError(missing if number else f"byte {first} begins no field")
        yield number, wire, first, value, position


def _tensor_type(view: memoryview, fields: Sequence[_Field]) -> int:
    found = 0
    for number, wire, _, value, last in fields:
        if number == _TENSOR_TYPE and wire == _VARINT:
            found, _ = _read_varint(view, value, last)
    return found


def _read_varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise _MalformedError(f"it ends in the middle of a field at byte {position}")
        byte = view[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise _MalformedError(f"byte {position - 10} begins no number")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
