"""External weights of a model that is handed over in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import onnx
from onnx.checker import ValidationError
from onnx.external_data_helper import load_external_data_for_tensor

from ortlock.operators.model_file import external_tensors

_SMALL = 4096
"""Bytes. Shapes and axes are smaller; ONNX's shape inference needs them, and reads no files for a model in memory."""


def settle_weights(model: onnx.ModelProto, folder: str) -> str:
    """Make a model's external weights readable without its file; return the folder that their paths go out from.

    Small tensors are copied into the model. Where files are links, as in caches that keep files by their hash, paths
    become those of the files themselves: ONNX Runtime follows no link out of the folder of a model in memory. What
    cannot be read is left for ONNX Runtime to complain of.
    """
    tensors = list(external_tensors(model))
    folder = _without_links(tensors, folder)
    for tensor in tensors:
        if not 0 < _number(_entry(tensor, "length")) <= _SMALL:
            continue
        with suppress(OSError, ValueError, ValidationError):
            load_external_data_for_tensor(tensor, folder)
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    return folder


def _without_links(tensors: Sequence[onnx.TensorProto], folder: str) -> str:
    places = {location for tensor in tensors if (location := _entry(tensor, "location"))}
    files = {place: Path(folder, place) for place in places if not Path(place).is_absolute()}
    real = {place: file.resolve() for place, file in files.items()}
    if len(files) < len(places) or all(Path(folder).resolve() / place == real[place] for place in places):
        return folder
    base = os.path.commonpath([file.parent for file in real.values()])
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = os.path.relpath(real[entry.value], base)
    return base


def _entry(tensor: onnx.TensorProto, key: str) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == key), "")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
