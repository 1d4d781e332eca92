"""Rewriting a model so that every run draws the same numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import onnx
import onnx.inliner
import onnx.shape_inference
from google.protobuf.message import EncodeError

from ortlock.errors import NotReproducibleError
from ortlock.operators.model_file import Place, opset_of, places, subgraphs
from ortlock.operators.random.generator import Emitter, key
from ortlock.operators.random.replace import REPLACE, CannotReplaceError, Site
from ortlock.operators.weightless import parse_without_weights

SETTING = "random_ops='restart'"

_OLDEST = 11
"""Version of the operators from which on the ones that take over are there."""
_PREFIX = "ortlock_random"
_OUTSIDE = "Draw the numbers outside the model and feed them as an input."


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A model whose random operators were replaced."""

    model: bytes
    nodes: tuple[str, ...]
    """The nodes that were replaced: what they stand inside of, name and operator."""


@dataclass(frozen=True)
class _Around:
    """What stands around the nodes of a graph."""

    loops: tuple[str, ...] = ()
    """Names of the iteration numbers of the loops, from the outside in."""
    uncounted: str = ""
    """A node that runs the graph several times and has no iteration number."""


def holds_random(model: onnx.ModelProto) -> bool:
    """Return whether a model has nodes that :func:`restart_random` replaces, in any graph or function of it."""
    return any(_draws(place) for place in places(model))


def restart_random(model: onnx.ModelProto) -> Rewritten:
    """Return ``model`` with its random operators replaced by a generator that starts anew in each run.

    A number drawn depends on the node's seed (a node without one gets one from its position), on its place in the
    tensor and on the iterations of the loops around, and on nothing else. Nodes with the same operator and seed draw
    the same numbers.

    Args:
        model: the model, changed in place; external data may be missing.

    Raises:
        NotReproducibleError: a node cannot be replaced.
    """
    if any(place.function is not None and _draws(place) for place in places(model)):
        model = onnx.inliner.inline_local_functions(model)
    opset = opset_of(model) or 1
    graphs = [(model.graph, _Around()), *_inner_graphs(model.graph, _Around())]
    drawing = [place for place in places(model) if place.graph >= 0 and _draws(place)]
    types = _Types(model)
    replaced: dict[int, dict[int, list[onnx.NodeProto]]] = defaultdict(dict)
    for number, place in enumerate(drawing):
        around = graphs[place.graph][1]
        replaced[place.graph][place.index] = _replacement(place, number, around, opset, types)
    labels = tuple(_label(place) for place in drawing)
    # Inner graphs first: the nodes that hold them are copied afterwards.
    for number in sorted(replaced, reverse=True):
        graph = graphs[number][0]
        nodes = [new for index, old in enumerate(graph.node) for new in replaced[number].get(index, [old])]
        rebuilt = onnx.GraphProto(node=nodes)
        del graph.node[:]
        graph.node.extend(rebuilt.node)
    try:
        return Rewritten(model.SerializeToString(), labels)
    except (EncodeError, ValueError) as error:
        text = f"The rewritten model is larger than 2 GB: {error}."
        raise NotReproducibleError(f"{SETTING}, {labels[0]}", text, "Save it with external data.") from error


def _draws(place: Place) -> bool:
    if place.node.op_type not in REPLACE or place.node.domain not in ("", "ai.onnx"):
        return False
    if place.node.op_type == "Dropout":
        return (place.attributes or {}).get("training_mode", False) is not False
    return True


def _label(place: Place) -> str:
    return f"{place.label} ({place.node.op_type})"


def _replacement(place: Place, number: int, around: _Around, opset: int, types: _Types) -> list[onnx.NodeProto]:
    node = place.node
    if around.uncounted:
        reason = f"It stands inside of {around.uncounted}, which repeats it and does not say how often it has."
        raise NotReproducibleError(f"{_label(place)}", f"{SETTING}: {reason}", f"Use a Loop. {_OUTSIDE}")
    if len(set(around.loops)) < len(around.loops):
        reason = f"The loops around it give the same name to their iteration numbers: {', '.join(around.loops)}."
        raise NotReproducibleError(_label(place), f"{SETTING}: {reason}", "Give them different names.")
    if opset < _OLDEST:
        reason = f"The model uses version {opset} of ONNX's operators, and the ones that take over came with {_OLDEST}."
        remedy = "Convert it: onnx.version_converter.convert_version(model, 17)."
        raise NotReproducibleError(_label(place), f"{SETTING}: {reason}", remedy)
    seed = next((attribute.f for attribute in node.attribute if attribute.name == "seed"), None)
    if node.op_type == "Dropout":
        seed = next((attribute.i for attribute in node.attribute if attribute.name == "seed"), None)
    text = f"{node.op_type} number {number}" if seed is None else f"{node.op_type} seed {seed!r}"
    emitter = Emitter(place.label, f"{_PREFIX}_{number}", opset)
    try:
        REPLACE[node.op_type](Site(node, emitter, key(text), around.loops, types.of))
    except CannotReplaceError as error:
        raise NotReproducibleError(
            _label(place), f"{SETTING}: {error}", f"Set its attribute dtype. {_OUTSIDE}"
        ) from None
    return emitter.nodes


def _inner_graphs(graph: onnx.GraphProto, around: _Around) -> Iterator[tuple[onnx.GraphProto, _Around]]:
    """Yield the graphs inside a graph in the order in which they are numbered as places."""
    for index, node in enumerate(graph.node):
        for _, inner in subgraphs(node):
            if node.op_type == "Loop":
                within = replace(around, loops=(*around.loops, inner.input[0].name))
            elif node.op_type == "If":
                within = around
            else:
                within = replace(around, uncounted=f"{node.name or f'{node.op_type} #{index}'} ({node.op_type})")
            yield inner, within
            yield from _inner_graphs(inner, within)


class _Types:
    """The element types of a model's values, inferred when they are first asked for."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    def of(self, name: str) -> int | None:
        """Return the element type of a value; None where it is not known, or differs between graphs."""
        found = self._known.get(name, set())
        return next(iter(found)) if len(found) == 1 else None

    @cached_property
    def _known(self) -> dict[str, set[int]]:
        slim = parse_without_weights(self._model.SerializeToString())
        # It may not know every operator; what the model itself says is left then.
        with suppress(Exception):
            slim = onnx.shape_inference.infer_shapes(slim)
        known: dict[str, set[int]] = defaultdict(set)
        for graph in (slim.graph, *(inner for inner, _ in _inner_graphs(slim.graph, _Around()))):
            for value in (*graph.input, *graph.value_info, *graph.output):
                if value.type.tensor_type.elem_type:
                    known[value.name].add(value.type.tensor_type.elem_type)
            for tensor in graph.initializer:
                known[tensor.name].add(tensor.data_type)
        return known
