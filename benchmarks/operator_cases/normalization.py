"""Normalizations, those of com.microsoft among them."""

from __future__ import annotations

from typing import Any

from operator_cases.building import FLOATS, WIDE_FLOATS, Group, f32, positive, special, x

GROUP = Group()
_add, _ms = GROUP.add, GROUP.ms


def _layers() -> None:
    for label, shape in (
        ("rows of 1024", (4096, 1024)),
        ("odd rows", (1501, 771)),
        ("long rows", (5, 200_003)),
        ("short rows", (50_001, 48)),
    ):
        size = shape[-1]
        _add("LayerNormalization", x(*shape, shift=3), x(size), x(size), label=label, dtypes=FLOATS, outputs=1)
        _add("RMSNormalization", x(*shape), x(size), label=label, dtypes=FLOATS, opset=23)
        simplified: dict[str, Any] = {"label": label, "dtypes": FLOATS, "outputs": ("T",), "axis": -1}
        _add("SimplifiedLayerNormalization", x(*shape), x(size), opset=13, **simplified)
    _add("LayerNormalization", x(64, 33, 768), x(33, 768), x(33, 768), label="two axes", outputs=3, axis=1)
    _add("LayerNormalization", special(64, 1021), x(1021), x(1021), label="with NaN")
    _add("LayerNormalization", x(2048, 1024), x(1024), x(1024), label="bf16", dtypes=("bfloat16",))
    for size in (768, 1024, 4096, 5003):
        data, weight = x(2, 257, size), x(size)
        outputs = ("T", "", "", "T")
        more: dict[str, Any] = {"label": f"rows of {size}", "dtypes": WIDE_FLOATS, "outputs": outputs}
        _ms("SkipLayerNormalization", data, data, weight, weight, weight, **more)
        _ms("SkipSimplifiedLayerNormalization", data, data, weight, weight, **more)


def _groups() -> None:
    for label, shape, groups in (
        ("small", (2, 16, 16, 320), 32),
        ("large", (2, 64, 64, 320), 32),
        ("many channels", (1, 32, 32, 1920), 32),
        ("odd size", (3, 37, 41, 128), 32),
        ("one image", (1, 128, 128, 256), 32),
    ):
        channels = shape[-1]
        data, weight = x(*shape, shift=1), f32(channels)
        for activation in (0, 1):
            words = f"{label}, {'SiLU' if activation else 'plain'}"
            more: dict[str, Any] = {
                "label": words,
                "dtypes": FLOATS,
                "groups": groups,
                "activation": activation,
                "channels_last": 1,
            }
            _ms("GroupNorm", data, weight, weight, **more)
            _ms("SkipGroupNorm", data, weight, weight, data, x(channels), outputs=("T", "T"), **more)
    _add("GroupNormalization", x(2, 320, 64, 64), x(320), x(320), dtypes=FLOATS, opset=21, num_groups=32)


def _channels() -> None:
    for label, shape in (("images", (4, 64, 56, 56)), ("large", (1, 32, 401, 399)), ("1-D", (3, 65, 40_003))):
        weight, variance = x(shape[1]), positive(shape[1])
        _add("InstanceNormalization", x(*shape, shift=2), weight, weight, label=label, dtypes=FLOATS)
        statistics = (weight, weight, weight, variance)
        _add("BatchNormalization", x(*shape), *statistics, label=label, dtypes=FLOATS, outputs=1)
        _add("BatchNormalization", x(*shape), *statistics, label=f"{label}, training", outputs=3, training_mode=1)
    _add("LRN", x(4, 64, 55, 57), dtypes=FLOATS, size=5)
    _add("MeanVarianceNormalization", x(4, 64, 55, 57), outputs=("T",))
    for p in (1, 2):
        _add("LpNormalization", x(300, 5003), label=f"L{p}, rows", dtypes=FLOATS, axis=-1, p=p)
        _add("LpNormalization", x(5003, 300), label=f"L{p}, first axis", axis=0, p=p)


_layers()
_groups()
_channels()
