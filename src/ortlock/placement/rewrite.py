"""Rewriting nodes: narrow types around a node that computes in float32, and GroupNorm in standard operators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

import onnx
from onnx import TensorProto
from onnx.helper import make_node, make_tensor

from ortlock.operators.model_file import opset_of, subgraphs

_GROUP_NORM = "GroupNorm"
_MICROSOFT = "com.microsoft"
_SILU = 1
_CAST_LIKE, _AXES_AS_INPUT = 15, 18
"""The versions of ONNX's operators that brought CastLike, and ReduceMean with its axes as an input."""


def decomposable(node: onnx.NodeProto, opset: int) -> bool:
    """Return whether :func:`apply` can write the node in standard operators: a channels-last GroupNorm."""
    if (node.op_type, node.domain) != (_GROUP_NORM, _MICROSOFT) or opset < _CAST_LIKE:
        return False
    if len(node.input) < 3 or not all(node.input[:3]):
        return False
    known = _attribute(node, "activation", 0) in (0, _SILU)
    return known and bool(_attribute(node, "channels_last", 1)) and _attribute(node, "groups", 0) > 0


def apply(model: onnx.ModelProto, mark: str, rewritten: Set[int], widened: Mapping[int, int]) -> None:
    """Rewrite the marked nodes with these numbers, in the main graph, subgraphs and functions.

    ``rewritten`` are GroupNorms. ``widened`` are nodes with data as input 0 and updates as input 2, by number the
    ``TensorProto`` type of both: they get float32 copies and their result is rounded once.
    """
    if not rewritten and not widened:
        return
    numbered = re.compile(re.escape(mark) + r"[a-z]+_(\d+)_$")
    for nodes, opset in _node_lists(model):
        new: list[onnx.NodeProto] = []
        changed = False
        for node in nodes:
            match = numbered.search(node.name)
            number = int(match[1]) if match else -1
            if number in rewritten:
                new += _GroupNorm(node, opset).nodes()
            elif number in widened:
                new += _widen(node, widened[number])
            else:
                new.append(node)
                continue
            changed = True
        if changed:
            copies = [_copy(node) for node in new]
            del nodes[:]
            nodes.extend(copies)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied


def _node_lists(model: onnx.ModelProto) -> Iterator[tuple[Any, int]]:
    for owner, nodes in ((model, model.graph.node), *((one, one.node) for one in model.functions)):
        for found in _nested(nodes):
            yield found, opset_of(owner)


def _nested(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        for _, graph in subgraphs(node):
            yield from _nested(graph.node)
    yield nodes


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((onnx.helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)


def _widen(node: onnx.NodeProto, narrow: int) -> list[onnx.NodeProto]:
    prefix, result = f"{node.name}wide", node.output[0]
    wide = [f"{prefix}/data", f"{prefix}/updates", f"{prefix}/result"]
    casts = [
        make_node("Cast", [source], [target], name=f"{target}/cast", to=TensorProto.FLOAT)
        for source, target in ((node.input[0], wide[0]), (node.input[2], wide[1]))
    ]
    inner = _copy(node)
    inner.input[0], inner.input[2], inner.output[0] = wide
    return [*casts, inner, make_node("Cast", [wide[2]], [result], name=f"{prefix}/back", to=narrow)]


class _GroupNorm:
    """``Y = activation((X - mean) / sqrt(variance + epsilon) * gamma + beta)`` in standard operators.

    X is [N, ..., C]; mean and variance are of a group's channels over all positions. Computed in float32, as the
    operator's own kernel does, with reductions over the last axis only.
    """

    def __init__(self, node: onnx.NodeProto, opset: int) -> None:
        self._node = node
        self._opset = opset
        self._prefix = f"{node.name}norm"
        self._made: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        source, gamma, beta = self._node.input[:3]
        groups = int(_attribute(self._node, "groups", 0))
        wide = self._add("wide", "Cast", source, to=TensorProto.FLOAT)
        shape = self._add("shape", "Shape", wide)
        batch, channels = (
            self._add(name, "Gather", shape, self._integers(f"{name}_axis", [axis]))
            for name, axis in (("batch", 0), ("channels", -1))
        )
        flat_shape = self._add("flat_shape", "Concat", batch, self._integers("any", [-1]), channels, axis=0)
        flat = self._add("flat", "Reshape", wide, flat_shape)
        apart = self._add("apart", "Reshape", flat, self._integers("groups", [0, 0, groups, -1]))
        # [N, positions, groups, channels of a group] -> [N, groups, positions * channels of a group]
        turned = self._add("turned", "Transpose", apart, perm=[0, 2, 1, 3])
        turned_shape = self._add("turned_shape", "Shape", turned)
        rows = self._add("rows", "Reshape", turned, self._integers("rows_shape", [0, 0, -1]))
        centred = self._add("centred", "Sub", rows, self._mean("mean", rows))
        variance = self._mean("variance", self._add("squared", "Mul", centred, centred))
        epsilon = self._constant("epsilon", TensorProto.FLOAT, [], [_attribute(self._node, "epsilon", 1e-5)])
        deviation = self._add("deviation", "Sqrt", self._add("above_zero", "Add", variance, epsilon))
        normal = self._add("normal", "Div", centred, deviation)
        normal = self._add("normal_apart", "Reshape", normal, turned_shape)
        normal = self._add("same", "Reshape", self._add("back", "Transpose", normal, perm=[0, 2, 1, 3]), shape)
        scale, shift = (
            self._add(name, "Cast", one, to=TensorProto.FLOAT) for name, one in (("scale", gamma), ("shift", beta))
        )
        result = self._add("shifted", "Add", self._add("scaled", "Mul", normal, scale), shift)
        if _attribute(self._node, "activation", 0) == _SILU:
            result = self._add("activated", "Mul", result, self._add("gate", "Sigmoid", result))
        last = make_node("CastLike", [result, source], [self._node.output[0]], name=f"{self._prefix}/CastLike")
        return [*self._made, last]

    def _add(self, name: str, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self._prefix}/{name}"
        self._made.append(make_node(operator, list(inputs), [output], name=f"{output}/{operator}", **attributes))
        return output

    def _constant(self, name: str, kind: int, shape: list[int], values: list[Any]) -> str:
        return self._add(name, "Constant", value=make_tensor(name, kind, shape, values))

    def _integers(self, name: str, values: list[int]) -> str:
        return self._constant(name, TensorProto.INT64, [len(values)], values)

    def _mean(self, name: str, source: str) -> str:
        if self._opset >= _AXES_AS_INPUT:
            return self._add(name, "ReduceMean", source, self._integers(f"{name}_axes", [-1]), keepdims=1)
        return self._add(name, "ReduceMean", source, axes=[-1], keepdims=1)
