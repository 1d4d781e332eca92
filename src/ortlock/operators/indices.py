"""Whether a scatter writes an element twice, where its indices are a constant of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ortlock.operators.model_file import subgraphs

SCATTERS = frozenset({"ScatterND", "ScatterElements", "Scatter"})

_DATA, _INDICES = 0, 1
LARGEST = 1 << 22
"""Indices up to which they are looked at."""

Integers = NDArray[np.int64]


def duplicate_indices(model: onnx.ModelProto, node: onnx.NodeProto) -> bool | None:
    """Return whether the indices of a scatter name an element more than once.

    Args:
        model: the model, without its external data.
        node: a ScatterND, ScatterElements or Scatter of the model, in any graph or function of it.

    Returns:
        None where it cannot be told: the indices are no constant, lie in a file of their own, or are many.
    """
    return Constants(model).duplicates(node)


class Constants:
    """The constants of a model by name; a name that means different things in different graphs is not one."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._tensors: dict[str, list[onnx.TensorProto | None]] = defaultdict(list)
        self._answers: dict[tuple[str, bool, int, tuple[int, ...] | None], bool | None] = {}
        self._shapes: dict[str, list[tuple[int, ...] | None]] = defaultdict(list)
        self._add_graph(model.graph)
        for function in model.functions:
            self._unknown(function.input)
            self._add_nodes(function.node)

    def duplicates(self, node: onnx.NodeProto) -> bool | None:
        """As :func:`duplicate_indices`, for several nodes of one model."""
        if node.op_type not in SCATTERS or len(node.input) <= _INDICES:
            return None
        sizes = self._shape(node.input[_DATA])
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        # Many nodes may share their indices.
        key = (node.input[_INDICES], node.op_type == "ScatterND", axis, sizes)
        if key not in self._answers:
            self._answers[key] = self._look(*key)
        return self._answers[key]

    def _look(self, name: str, rows: bool, axis: int, sizes: tuple[int, ...] | None) -> bool | None:
        indices = self._integers(name)
        if indices is None:
            return None
        return _duplicate_rows(indices, sizes) if rows else _duplicates_along(indices, axis, sizes)

    def _integers(self, name: str) -> Integers | None:
        found = self._tensors.get(name, [None])
        tensor = found[0]
        if len(found) != 1 or tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        if tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            return None
        if int(np.prod(tensor.dims, dtype=np.float64)) > LARGEST:
            return None
        try:
            values: Integers = onnx.numpy_helper.to_array(tensor).astype(np.int64)
        except ValueError:
            return None  # its values were left out, or do not fit its dimensions
        return values

    def _shape(self, name: str) -> tuple[int, ...] | None:
        known = set(self._shapes.get(name, ()))
        return known.pop() if len(known) == 1 else None

    def _add_graph(self, graph: onnx.GraphProto) -> None:
        fed = [value.name for value in graph.input]
        # An initializer that is an input as well can be replaced by the caller.
        self._unknown(fed)
        for tensor in graph.initializer:
            self._tensors[tensor.name].append(tensor)
            self._shapes[tensor.name].append(tuple(tensor.dims))
        for value in (*graph.input, *graph.value_info, *graph.output):
            self._shapes[value.name].append(_static(value))
        self._add_nodes(graph.node)

    def _add_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            tensor = _constant(node)
            for output in node.output:
                self._tensors[output].append(tensor)
            if tensor is not None:
                self._shapes[node.output[0]].append(tuple(tensor.dims))
            for _, inner in subgraphs(node):
                self._add_graph(inner)

    def _unknown(self, names: Iterable[str]) -> None:
        for name in names:
            self._tensors[name].append(None)


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and not attribute.ref_attr_name:
            return attribute.t
        if attribute.name == "value_ints":
            return onnx.numpy_helper.from_array(np.array(attribute.ints, np.int64))
        if attribute.name == "value_int":
            return onnx.numpy_helper.from_array(np.array(attribute.i, np.int64))
    return None


def _static(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    tensor: Any = value.type.tensor_type
    if not tensor.HasField("shape") or not all(size.HasField("dim_value") for size in tensor.shape.dim):
        return None
    return tuple(size.dim_value for size in tensor.shape.dim)


def _from_the_front(indices: Integers, sizes: Iterator[int] | None) -> Integers | None:
    """Return columns of indices counted from the front; None where that needs sizes that are not known."""
    negative = (indices < 0).any(axis=0)
    mixed = negative & (indices >= 0).any(axis=0)
    if not mixed.any():
        return indices  # all from the back, or all from the front: they compare as they are
    if sizes is None:
        return None
    return np.where(indices < 0, indices + np.array(list(sizes), np.int64), indices)


def _duplicate_rows(indices: Integers, sizes: tuple[int, ...] | None) -> bool | None:
    if indices.ndim == 0 or indices.size == 0:
        return None if indices.ndim == 0 else False
    rows = indices.reshape(-1, indices.shape[-1])
    if _repeats(rows):
        return True
    known = sizes is not None and len(sizes) >= rows.shape[1]
    rows_ = _from_the_front(rows, iter(sizes[: rows.shape[1]]) if known and sizes is not None else None)
    return None if rows_ is None else _repeats(rows_)


def _repeats(rows: Integers) -> bool:
    return len(np.unique(rows, axis=0)) < len(rows)


def _duplicates_along(indices: Integers, axis: int, sizes: tuple[int, ...] | None) -> bool | None:
    if indices.size == 0:
        return False
    if not -indices.ndim <= axis < indices.ndim:
        return None
    lines = np.moveaxis(indices, axis, -1).reshape(-1, indices.shape[axis])
    if _repeats_in_a_line(lines):
        return True
    size = sizes[axis] if sizes is not None and len(sizes) == indices.ndim else None
    column = _from_the_front(lines.reshape(-1, 1), iter((size,)) if size is not None else None)
    return None if column is None else _repeats_in_a_line(column.reshape(lines.shape))


def _repeats_in_a_line(lines: Integers) -> bool:
    ordered = np.sort(lines, axis=1)
    return bool((ordered[:, 1:] == ordered[:, :-1]).any())
