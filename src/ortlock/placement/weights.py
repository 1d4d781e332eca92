"""External weights of a model that is handed over in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import onnx
from onnx.checker import ValidationError
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

_SMALL = 4096
"""Bytes. Shapes and axes are smaller; ONNX's shape inference needs them, and reads no files for a model in memory."""


def take_in_small_weights(model: onnx.ModelProto, folder: str) -> None:
    """Copy small external tensors into the model; what cannot be read is left for ONNX Runtime to complain of."""
    for tensor in _tensors(model.graph):
        if not uses_external_data(tensor):
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not 0 < int(entries.get("length", "0") or 0) <= _SMALL:
            continue
        with suppress(OSError, ValueError, ValidationError):
            load_external_data_for_tensor(tensor, folder)
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)
