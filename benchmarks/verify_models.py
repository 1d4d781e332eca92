"""The models of verify_evidence.py: operators whose bits vary, nets with one planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

PLANTED = "planted"
"""Name of the node whose bits vary."""

CHANNELS, SIZE = 16, 56

_OPSET = 16


class _Graph:
    """Collects nodes and seeded weights of a float32 model."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def constant(self, values: object) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int, fan_in: int) -> str:
        values = self.random.standard_normal(shape) * np.sqrt(2 / fan_in)
        return self.constant(values.astype(np.float32))

    def node(self, op_type: str, *inputs: str, name: str = "", **attributes: object) -> str:
        name = name or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def conv(self, x: str, source: int, target: int, kernel: int, stride: int = 1) -> str:
        weights = self.weight(target, source, kernel, kernel, fan_in=source * kernel * kernel)
        return self.node("Conv", x, weights, pads=[kernel // 2] * 4, strides=[stride] * 2)

    def build(self, output: str, shape: Sequence[int | str]) -> bytes:
        """Return the model with input ``x`` of ``shape`` and output ``y``."""
        self.nodes.append(helper.make_node("Identity", [output], ["y"], name="last"))
        graph = helper.make_graph(
            self.nodes,
            "verify",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            self.weights,
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        return bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())


def scatter(updates: int = 50_000, elements: int = 16) -> bytes:
    """Return a ScatterND that adds ``updates`` values of ``x`` to few elements: float atomics on CUDA."""
    g = _Graph(0)
    indices = g.constant(g.random.integers(0, elements, (updates, 1)))
    zeros = g.constant(np.zeros(elements, np.float32))
    return g.build(g.node("ScatterND", zeros, indices, g.node("Neg", "x"), reduction="add"), [updates])


def draws(size: int = 64) -> bytes:
    """Return a RandomNormalLike: it goes on with its sequence in every run, on every provider."""
    g = _Graph(0)
    return g.build(g.node("RandomNormalLike", g.node("Neg", "x"), seed=3.0), [size])


def _scatter_nd(g: _Graph, x: str) -> str:
    """Sum the values of ``x`` by a repeated index, and give the sums back as one value a channel."""
    size = CHANNELS * SIZE * SIZE
    flat = g.node("Reshape", x, g.constant(np.array([size])))
    indices = g.constant(g.random.integers(0, CHANNELS, (size, 1)))
    zeros = g.constant(np.zeros(CHANNELS, np.float32))
    sums = g.node("ScatterND", zeros, indices, flat, name=PLANTED, reduction="add")
    # Near one again: about SIZE * SIZE values of random sign each.
    scaled = g.node("Mul", sums, g.constant(np.float32(1 / SIZE)))
    return g.node("Reshape", scaled, g.constant(np.array([1, CHANNELS, 1, 1])))


def _conv_transpose(g: _Graph, x: str) -> str:
    """To half the size and 128 channels and back, by a ConvTranspose whose first plan in cuDNN varies."""
    wide = g.conv(x, CHANNELS, 128, 3, stride=2)
    weights = g.weight(128, 64, 4, 4, fan_in=128 * 4)
    up = g.node("ConvTranspose", wide, weights, name=PLANTED, strides=[2, 2], pads=[1] * 4, kernel_shape=[4, 4])
    return g.conv(up, 64, CHANNELS, 1)


def _random(g: _Graph, x: str) -> str:
    """Draw anew in every run, on every provider."""
    return g.node("RandomNormalLike", x, name=PLANTED, seed=3.0)


PLANTS: dict[str, Callable[[_Graph, str], str]] = {
    "ScatterND": _scatter_nd,
    "ConvTranspose": _conv_transpose,
    "RandomNormalLike": _random,
}


def planted(op_type: str, nodes: int = 300) -> bytes:
    """Return a residual net of about ``nodes`` mixed nodes with one of ``PLANTS`` in the middle, named ``PLANTED``.

    ``x`` and output ``y`` [1,16,56,56]. Every block adds a tenth of what it computes to its input, so that values stay
    near one and a difference in the last place is not lost on the way.
    """
    g = _Graph(1)
    x, there = g.conv("x", CHANNELS, CHANNELS, 3), False
    blocks = (_convolutions, _products, _gates)
    tenth = g.constant(np.float32(0.1))
    block = 0
    while len(g.nodes) < nodes - 1:
        if not there and len(g.nodes) >= nodes // 2:
            inner, there = PLANTS[op_type](g, g.conv(x, CHANNELS, CHANNELS, 3)), True
        else:
            inner = blocks[block % len(blocks)](g, x)
            block += 1
        x = g.node("Add", x, g.node("Mul", inner, tenth))
    return g.build(x, [1, CHANNELS, SIZE, SIZE])


def _convolutions(g: _Graph, x: str) -> str:
    return g.conv(g.node("Relu", g.conv(x, CHANNELS, CHANNELS, 3)), CHANNELS, CHANNELS, 1)


def _products(g: _Graph, x: str) -> str:
    rows = g.node("Reshape", x, g.constant(np.array([CHANNELS, SIZE * SIZE])))
    mixed = g.node("MatMul", g.weight(CHANNELS, CHANNELS, fan_in=CHANNELS), g.node("Tanh", rows))
    return g.node("Reshape", mixed, g.constant(np.array([1, CHANNELS, SIZE, SIZE])))


def _gates(g: _Graph, x: str) -> str:
    gate = g.node("Sigmoid", g.conv(g.node("GlobalAveragePool", x), CHANNELS, CHANNELS, 1))
    return g.node("Mul", g.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4), gate)
