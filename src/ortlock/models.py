"""Built-in models, made in code from seeds: for the demo, the benchmarks and the tests.

Each function returns the bytes of an ONNX model whose input is called ``x`` and whose outputs are all float. Opset 13
and IR version 8, so that ONNX Runtime 1.19 and later run them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

_OPSETS = (("", 13), ("com.microsoft", 1))


class _Builder:
    """Collects nodes and seeded weights."""

    def __init__(self, seed: int, dtype: DTypeLike = np.float32) -> None:
        self.random = np.random.default_rng(seed)
        self.dtype = np.dtype(dtype)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, shape: Sequence[int], fan_in: int) -> str:
        """Add a weight of variance 2 / ``fan_in``, which keeps activations near one through Relu layers."""
        values = self.random.standard_normal(shape) * math.sqrt(2 / fan_in)
        return self.constant(values.astype(self.dtype))

    def constant(self, values: NDArray[np.generic]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def node(self, op_type: str, inputs: Sequence[str], output: str | None = None, **attributes: object) -> str:
        name = f"{op_type.lower()}_{len(self.nodes)}"
        result = output or f"{name}_out"
        self.nodes.append(helper.make_node(op_type, list(inputs), [result], name=name, **attributes))
        return result

    def conv(
        self, x: str, channels: tuple[int, int], kernel: int = 3, stride: int = 1, bias: bool = True, group: int = 1
    ) -> str:
        """Add a Conv from ``channels[0]`` to ``channels[1]``, padded to keep the size at stride 1."""
        source, target = channels
        fan_in = source // group * kernel * kernel
        inputs = [x, self.weight((target, source // group, kernel, kernel), fan_in)]
        if bias:
            inputs.append(self.weight((target,), 50))
        shape, pads = [kernel] * 2, [kernel // 2] * 4
        # An attribute that is None is left out: the default of 1.
        grouped = group if group > 1 else None
        return self.node("Conv", inputs, kernel_shape=shape, strides=[stride] * 2, pads=pads, group=grouped)

    def fused_conv(self, x: str, channels: tuple[int, int], kernel: int = 3) -> str:
        """Add a Conv and its Relu as the one node that ONNX Runtime up to 1.19 fuses them into."""
        source, target = channels
        inputs = [
            x,
            self.weight((target, source, kernel, kernel), source * kernel * kernel),
            self.weight((target,), 50),
        ]
        pads = [kernel // 2] * 4
        shape = [kernel] * 2
        return self.node("FusedConv", inputs, domain="com.microsoft", kernel_shape=shape, pads=pads, activation="Relu")

    def transposed(self, x: str, channels: tuple[int, int], kernel: int = 4, stride: int = 2) -> str:
        """Add a ConvTranspose that multiplies the size by ``stride``."""
        source, target = channels
        pad = (kernel - stride) // 2
        weights = self.weight((source, target, kernel, kernel), source * kernel * kernel // stride**2)
        return self.node("ConvTranspose", [x, weights], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def build(self, outputs: dict[str, str], shape: Sequence[int | str]) -> bytes:
        """Return the model that names the values in ``outputs`` as its outputs."""
        element = helper.np_dtype_to_tensor_dtype(self.dtype)
        for name, value in outputs.items():
            self.node("Identity", [value], name)
        graph = helper.make_graph(
            self.nodes,
            "ortlock",
            [helper.make_tensor_value_info("x", element, list(shape))],
            [helper.make_tensor_value_info(name, element, None) for name in outputs],
            self.weights,
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="ortlock")
        return bytes(model.SerializeToString())


DEMO_OUTPUTS = ("conv", "fused_conv", "conv_transpose", "reduce_mean")


def demo_model(seed: int = 0) -> bytes:
    """Return the demo's model: float32 ``x`` [1,3,112,112]; outputs ``DEMO_OUTPUTS``, one for each kind of operator.

    ``conv`` comes from a Conv, ``fused_conv`` from FusedConv nodes, ``conv_transpose`` from a ConvTranspose and
    ``reduce_mean`` is the mean of a feature map to one value. The branches do not feed each other, so a change in one
    output tells which operator it comes from.
    """
    b = _Builder(seed)
    stem = b.node("Relu", [b.conv("x", (3, 64), stride=2)])
    fused = b.fused_conv(b.fused_conv(b.fused_conv(stem, (64, 64)), (64, 64)), (64, 64))
    outputs = {
        "conv": b.conv(stem, (64, 32)),
        "fused_conv": fused,
        "conv_transpose": b.transposed(stem, (64, 16)),
        "reduce_mean": b.node("ReduceMean", [stem], keepdims=0),
    }
    return b.build(outputs, [1, 3, 112, 112])


def residual_net(dtype: DTypeLike = np.float32, seed: int = 0, size: int | str = 112) -> bytes:
    """Return a residual net of 20 convolutions like ResNet-18: ``x`` [1,3,size,size] of ``dtype``, output ``y`` [1,10].

    ``size`` may be a name: a symbolic dimension.
    """
    b = _Builder(seed, dtype)
    x = b.node("Relu", [b.conv("x", (3, 64), kernel=7, stride=2)])
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, target in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            inner = b.node("Relu", [b.conv(x, (channels, target), stride=stride)])
            inner = b.conv(inner, (target, target))
            shortcut = x if channels == target else b.conv(x, (channels, target), kernel=1, stride=stride)
            x = b.node("Relu", [b.node("Add", [inner, shortcut])])
            channels = target
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    return b.build({"y": b.node("Gemm", [x, b.weight((512, 10), 512)])}, [1, 3, size, size])


def conv_net(depth: int = 10, dtype: DTypeLike = np.float32, seed: int = 0, size: int | str = "size") -> bytes:
    """Return a chain of ``depth`` Conv and Relu: ``x`` [1,3,size,size], output ``y`` [1,64,size/2,size/2]."""
    b = _Builder(seed, dtype)
    x = b.node("Relu", [b.conv("x", (3, 64), stride=2)])
    for _ in range(depth - 1):
        x = b.node("Relu", [b.conv(x, (64, 64))])
    return b.build({"y": x}, [1, 3, size, size])


def depthwise_net(dtype: DTypeLike = np.float32, seed: int = 0, size: int | str = "size") -> bytes:
    """Return eight inverted residual blocks like MobileNetV2's: ``x`` [1,3,size,size], ``y`` [1,96,size/16,size/16].

    A block is a 1x1 Conv to more channels, a 3x3 Conv for each channel by itself and a 1x1 Conv to fewer channels.
    """
    b = _Builder(seed, dtype)
    low, high = (b.constant(np.asarray(limit, b.dtype)) for limit in (0, 6))

    def relu6(x: str) -> str:
        return b.node("Clip", [x, low, high])

    x = relu6(b.conv("x", (3, 32), stride=2))
    channels = 32
    blocks = ((1, 16, 1), (6, 24, 2), (6, 24, 1), (6, 32, 2), (6, 32, 1), (6, 64, 2), (6, 64, 1), (6, 96, 1))
    for factor, target, stride in blocks:
        wide = channels * factor
        inner = relu6(b.conv(x, (channels, wide), kernel=1)) if factor > 1 else x
        inner = relu6(b.conv(inner, (wide, wide), stride=stride, group=wide))
        inner = b.conv(inner, (wide, target), kernel=1)
        x = b.node("Add", [x, inner]) if stride == 1 and channels == target else inner
        channels = target
    return b.build({"y": x}, [1, 3, size, size])


def fused_conv_net(depth: int = 10, dtype: DTypeLike = np.float32, seed: int = 0, size: int | str = 56) -> bytes:
    """Return a chain of ``depth`` FusedConv nodes (Conv + Relu): ``x`` and output ``y`` [1,64,size,size]."""
    b = _Builder(seed, dtype)
    x = "x"
    for _ in range(depth):
        x = b.fused_conv(x, (64, 64))
    return b.build({"y": x}, [1, 64, size, size])


def conv_transpose(shape: Sequence[int], channels: int, dtype: DTypeLike = np.float32, seed: int = 0) -> bytes:
    """Return one ConvTranspose, kernel 4, stride 2: ``x`` of ``shape`` (NCHW) to ``channels`` at twice the size."""
    b = _Builder(seed, dtype)
    return b.build({"y": b.transposed("x", (shape[1], channels))}, shape)


def decoder(dtype: DTypeLike = np.float32, seed: int = 0, size: int | str = "size") -> bytes:
    """Return a decoder of three ConvTranspose and a Conv: ``x`` [1,128,size,size], output ``y`` [1,3,8*size,8*size]."""
    b = _Builder(seed, dtype)
    x = "x"
    for channels in ((128, 96), (96, 64), (64, 32)):
        x = b.node("Relu", [b.transposed(x, channels)])
    return b.build({"y": b.conv(x, (32, 3))}, [1, 128, size, size])


def branches(count: int = 6, channels: int = 32, size: int = 64, seed: int = 0) -> bytes:
    """Return ``count`` branches of Conv, Atan and Conv, summed: ``x`` [n,8,size,size] to ``y`` [n,channels,size,size].

    CUDA has no Atan: each branch is copied to the CPU and back, with much memory alive at a time.
    """
    b = _Builder(seed)
    ends = []
    for _ in range(count):
        copied = b.node("Atan", [b.conv("x", (8, channels))])
        ends.append(b.conv(copied, (channels, channels)))
    return b.build({"y": b.node("Sum", ends)}, ["n", 8, size, size])


def reduction(op_type: str, shape: Sequence[int], seed: int = 0) -> bytes:
    """Return one reduction of float32 ``x`` of ``shape`` to a single value, e.g. of ``ReduceSum``."""
    b = _Builder(seed)
    return b.build({"y": b.node(op_type, ["x"], keepdims=0)}, shape)


def biased_conv(dtype: DTypeLike = np.float32, shape: Sequence[int] = (1, 64, 28, 28)) -> bytes:
    """Return one 3x3 Conv whose every weight is 0 and whose bias is 7: every output value must be 7."""
    b = _Builder(0, dtype)
    weights = b.constant(np.zeros((shape[1], shape[1], 3, 3), b.dtype))
    bias = b.constant(np.full((shape[1],), 7, b.dtype))
    return b.build({"y": b.node("Conv", ["x", weights, bias], kernel_shape=[3, 3], pads=[1] * 4)}, shape)


def trivial() -> bytes:
    """Return the smallest model there is: ``y`` is ``x``, float32 [1]. For measuring the cost of a call."""
    return _Builder(0).build({"y": "x"}, [1])


def seeded_input(shape: Sequence[int], dtype: DTypeLike = np.float32, seed: int = 0) -> NDArray[np.generic]:
    """Return standard normal numbers of ``shape``."""
    values: NDArray[np.generic] = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return values
