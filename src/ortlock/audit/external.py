"""External data of a model: whether the files are there and as long as the tensors in them need."""

from __future__ import annotations

from pathlib import Path

import onnx

from ortlock.audit.model import FileFinding
from ortlock.operators.model_file import external_tensors

_IN_MEMORY = "*/_ORT_MEM_ADDR_/*"
"""What ONNX Runtime writes in place of a file for tensors that lie in its memory."""


def file_findings(model: onnx.ModelProto, path: Path) -> tuple[FileFinding, ...]:
    """Return one finding for each file with a problem. Only names and sizes are looked at.

    Args:
        model: the model, without its external data.
        path: its file, beside which the data is looked for.
    """
    found: dict[tuple[str, bool], FileFinding] = {}
    sizes: dict[str, int | None] = {}
    for tensor in external_tensors(model):
        values = {entry.key: entry.value for entry in tensor.external_data}
        location = values.get("location", "")
        if location == _IN_MEMORY:
            continue
        file = path.parent / location
        if location not in sizes:
            sizes[location] = file.stat().st_size if file.is_file() else None
        problem = _problem(tensor, values, sizes[location])
        if problem is None:
            continue
        key = (location, sizes[location] is None)
        first = found.get(key)
        count = 1 if first is None else first.count + 1
        found[key] = FileFinding(
            str(file), first.tensor if first else tensor.name, count, first.problem if first else problem
        )
    return tuple(found.values())


def _problem(tensor: onnx.TensorProto, values: dict[str, str], size: int | None) -> str | None:
    if size is None:
        return "there is no such file"
    try:
        offset, length = int(values.get("offset") or 0), int(values.get("length") or _bytes(tensor))
    except ValueError:
        return "its offset or length is no number"
    if offset + length > size:
        return f"the tensor ends at byte {offset + length}, the file at byte {size}"
    if length < _bytes(tensor):
        return f"the tensor needs {_bytes(tensor)} bytes and names {length}"
    return None


def _bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes that a tensor's values take; 0 for a type that is not known."""
    count = 1
    for size in tensor.dims:
        count *= size
    return -(-count * _BITS.get(tensor.data_type, 0) // 8)


_TYPES = onnx.TensorProto
_BITS = {
    **dict.fromkeys((_TYPES.DOUBLE, _TYPES.INT64, _TYPES.UINT64, _TYPES.COMPLEX64), 64),
    **dict.fromkeys((_TYPES.FLOAT, _TYPES.INT32, _TYPES.UINT32), 32),
    **dict.fromkeys((_TYPES.FLOAT16, _TYPES.BFLOAT16, _TYPES.INT16, _TYPES.UINT16), 16),
    **dict.fromkeys((_TYPES.INT8, _TYPES.UINT8, _TYPES.BOOL), 8),
    _TYPES.COMPLEX128: 128,
}
