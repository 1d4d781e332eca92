"""Convolutions, pooling and recurrent networks."""

from __future__ import annotations

from typing import Any

from operator_cases.building import FLOATS, Group, Spec, fixed, given, ints, special, ties, x

GROUP = Group()
_add, _ms = GROUP.add, GROUP.ms

# Name, input, weight and attributes.
_CONVOLUTIONS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("3x3", (4, 64, 56, 56), (64, 64, 3, 3), {"pads": [1] * 4}),
    ("3x3 few channels", (2, 3, 225, 223), (32, 3, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    ("1x1", (4, 256, 28, 28), (512, 256, 1, 1), {}),
    ("1x1 deep", (1, 4096, 7, 7), (64, 4096, 1, 1), {}),
    ("3x3 deep", (1, 1024, 7, 7), (256, 1024, 3, 3), {"pads": [1] * 4}),
    ("7x7 stride 2", (1, 3, 224, 224), (64, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    ("depthwise", (4, 144, 57, 55), (144, 1, 3, 3), {"pads": [1] * 4, "group": 144}),
    ("groups", (4, 128, 28, 28), (128, 32, 3, 3), {"pads": [1] * 4, "group": 4}),
    ("dilated", (1, 64, 65, 65), (64, 64, 3, 3), {"pads": [4] * 4, "dilations": [4, 4]}),
    ("1-D", (4, 64, 4001), (96, 64, 7), {"pads": [3, 3]}),
    ("1-D depthwise", (4, 96, 4001), (96, 1, 31), {"pads": [15, 15], "group": 96}),
    ("3-D", (1, 16, 17, 33, 31), (32, 16, 3, 3, 3), {"pads": [1] * 6}),
)
_TRANSPOSED: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("k4 s2", (1, 128, 28, 28), (128, 64, 4, 4), {"strides": [2, 2], "pads": [1] * 4}),
    ("k4 s2 deep", (1, 512, 7, 7), (512, 256, 4, 4), {"strides": [2, 2], "pads": [1] * 4}),
    ("k4 s2 few channels", (1, 64, 112, 112), (64, 3, 4, 4), {"strides": [2, 2], "pads": [1] * 4}),
    ("k2 s2", (2, 64, 33, 31), (64, 32, 2, 2), {"strides": [2, 2]}),
    ("k3 s1", (2, 64, 33, 31), (64, 32, 3, 3), {"pads": [1] * 4}),
    ("output padding", (1, 64, 29, 27), (64, 32, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]}),
    ("groups", (2, 64, 28, 28), (64, 8, 4, 4), {"strides": [2, 2], "group": 8}),
    ("depthwise", (2, 64, 28, 28), (64, 1, 4, 4), {"strides": [2, 2], "group": 64}),
    ("dilated", (1, 64, 28, 28), (64, 32, 3, 3), {"dilations": [2, 2]}),
    ("1-D", (2, 128, 1001), (128, 64, 8), {"strides": [4]}),
    ("3-D", (1, 32, 9, 17, 15), (32, 16, 4, 4, 4), {"strides": [2, 2, 2]}),
)


def _convolutions() -> None:
    for label, shape, weight, more in _CONVOLUTIONS:
        filters = x(*weight, scale=0.05)
        _add("Conv", x(*shape), filters, x(weight[0]), label=label, dtypes=FLOATS, **more)
        if label in ("3x3", "depthwise", "1-D"):
            activation: dict[str, Any] = {"label": label, "dtypes": FLOATS, "activation": "Relu"}
            _ms("FusedConv", x(*shape), filters, x(weight[0]), **activation, **more)
        if len(shape) == 4 and label in ("3x3", "1x1", "depthwise"):
            n, c, h, w = shape
            last = x(weight[0], *weight[2:], weight[1], scale=0.05)
            _ms("NhwcConv", x(n, h, w, c), last, x(weight[0]), label=label, dtypes=FLOATS, **more)
    _add("Conv", x(4, 64, 56, 56), fixed(x(64, 64, 3, 3)), label="3x3, constant weights", pads=[1] * 4)
    for label, shape, weight, group in (
        ("1x1", (1, 512, 14, 14), (1024, 512, 1, 1), 1),
        ("depthwise", (1, 144, 57, 55), (144, 1, 3, 3), 144),
        ("few channels", (1, 3, 225, 223), (64, 3, 7, 7), 1),
    ):
        _add("Conv", x(*shape), fixed(x(*weight)), label=f"{label}, constant weights", group=group)
    sum_of = x(4, 64, 56, 56)
    _ms("FusedConv", sum_of, x(64, 64, 3, 3), x(64), sum_of, label="with sum", activation="Relu", pads=[1] * 4)
    for label, shape, weight, more in _TRANSPOSED:
        bias = x(weight[1] * more.get("group", 1))
        _add("ConvTranspose", x(*shape), x(*weight, scale=0.05), bias, label=label, dtypes=FLOATS, **more)
    inputs: tuple[Spec | None, ...] = (x(1, 64, 28, 28), x(64, 32, 4, 4), given([1, 1, 1, 1]), x(32))
    _ms("ConvTransposeWithDynamicPads", *inputs, strides=[2, 2])
    offsets, mask = x(2, 18, 33, 31), x(2, 9, 33, 31)
    for opset in (19, 22):
        inputs = (x(2, 64, 33, 31), x(48, 64, 3, 3), offsets, x(48), mask)
        _add("DeformConv", *inputs, label=f"opset {opset}", dtypes=FLOATS, opset=opset, pads=[1] * 4)
    data, filters = (ints(-100, 100, *s, dtype="int8") for s in ((2, 32, 28, 28), (32, 32, 3, 3)))
    _add("ConvInteger", data, filters, dtypes=("int8",), pads=[1] * 4)
    one, zero = given(0.02, "float32"), given(0, "int8")
    _add("QLinearConv", data, one, zero, filters, one, zero, one, zero, dtypes=("int8",), pads=[1] * 4)


def _pools() -> None:
    for label, shape, kernel in (
        ("2-D", (4, 64, 57, 55), [3, 3]),
        ("1-D", (4, 64, 4001), [5]),
        ("3-D", (2, 16, 17, 33, 31), [3, 3, 3]),
        ("2-D large", (1, 8, 301, 299), [31, 31]),
    ):
        more: dict[str, Any] = {"label": label, "kernel_shape": kernel, "strides": [2] * len(kernel)}
        _add("MaxPool", ties(*shape), dtypes=FLOATS, outputs=1, **more)
        _add("MaxPool", ties(*shape), dtypes=FLOATS, outputs=2, **(more | {"label": f"{label}, indices of ties"}))
        _add("AveragePool", x(*shape), dtypes=FLOATS, count_include_pad=1, pads=[1] * 2 * len(kernel), **more)
        _add("LpPool", x(*shape), **more)
        for operator in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
            _add(operator, x(*shape), label=label, dtypes=FLOATS)
    _add("GlobalAveragePool", x(1, 8, 801, 799), label="large", dtypes=FLOATS)
    kernel_of: dict[str, Any] = {"kernel_shape": [3, 3]}
    _add("MaxPool", x(4, 64, 57, 55), label="int", dtypes=("int8", "uint8"), outputs=1, **kernel_of)
    _add("MaxPool", special(4, 64, 57, 55), label="with NaN", outputs=2, **kernel_of)
    _add("MaxPool", x(4, 64, 57, 55), label="dilated", outputs=1, dilations=[2, 2], **kernel_of)
    _add("AveragePool", x(4, 64, 57, 55), label="dilated", opset=19, dilations=[2, 2], **kernel_of)
    _ms("MaxpoolWithMask", x(4, 64, 57, 55), ints(0, 2, 4, 64, 57, 55, dtype="int32"), **kernel_of)
    places = ints(0, 56 * 56, 2, 16, 28, 28)
    more = {"kernel_shape": [2, 2], "strides": [2, 2]}
    _add("MaxUnpool", x(2, 16, 28, 28), places, label="duplicate places", **more)


def _recurrent() -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}
    for operator, number in gates.items():
        for direction, ways in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            for lengths in (None, [33, 20, 33, 7, 1]):
                label = f"{direction}{', lengths' if lengths else ''}"
                _network(operator, number, direction, ways, lengths, (33, 5, 48, 64), label, FLOATS)
        _network(operator, number, "bidirectional", 2, None, (101, 64, 256, 512), "large", FLOATS)
        _network(operator, number, "forward", 1, None, (129, 1, 512, 1024), "batch of one", ("float32",))


def _network(
    operator: str,
    gates: int,
    direction: str,
    ways: int,
    lengths: list[int] | None,
    sizes: tuple[int, int, int, int],
    label: str,
    dtypes: tuple[str, ...],
) -> None:
    steps, batch, width, hidden = sizes
    weights = [
        fixed(x(ways, gates * hidden, width, scale=0.05)),
        fixed(x(ways, gates * hidden, hidden, scale=0.05)),
        fixed(x(ways, 2 * gates * hidden, scale=0.05)),
    ]
    state = x(ways, batch, hidden)
    inputs: list[Spec | None] = [x(steps, batch, width), *weights, given(lengths, "int32") if lengths else None, state]
    if operator == "LSTM":
        inputs.append(state)
    more: dict[str, Any] = {"linear_before_reset": 1} if operator == "GRU" else {}
    outputs = 3 if operator == "LSTM" else 2
    more |= {"hidden_size": hidden, "direction": direction, "outputs": outputs}
    _add(operator, *inputs, label=label, dtypes=dtypes, **more)


_convolutions()
_pools()
_recurrent()
