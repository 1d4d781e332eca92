"""Gathering, scattering and moving of elements; images; sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from operator_cases.building import (
    FLOATS,
    Group,
    Spec,
    bits,
    const,
    given,
    ints,
    permutation,
    positive,
    special,
    ties,
    x,
)

GROUP = Group()
_add, _ms = GROUP.add, GROUP.ms

_KINDS = (*FLOATS, "float64", "int32", "int64", "int8", "bool")


def _gathers() -> None:
    for axis in (0, 1):
        _add(
            "Gather",
            x(5003, 257),
            ints(-5003 if axis == 0 else -257, 257, 301, 17),
            label=f"axis {axis}",
            dtypes=FLOATS,
            axis=axis,
        )
    _add("Gather", x(5003, 257), ints(0, 5003, 20_001, dtype="int32"), label="int32 indices", dtypes=("int64", "bool"))
    for axis in (0, 1, 2):
        _add(
            "GatherElements",
            x(101, 103, 107),
            ints(0, 101, 101, 103, 107),
            label=f"axis {axis}",
            dtypes=FLOATS,
            axis=axis,
        )
    _add("GatherND", x(101, 103, 107), ints(0, 101, 20_001, 2), label="rows", dtypes=(*FLOATS, "int64"))
    _add("GatherND", x(11, 103, 107), ints(0, 100, 11, 501, 2), label="batch", batch_dims=1)
    _add("OneHot", ints(-100, 100, 1001, 7), const(101), given([0, 1], None), dtypes=(*FLOATS, "int64"))


def _scatters() -> None:
    """Many updates of few elements: with duplicates the order of arrival shows."""
    for reduction, opset in (("none", 16), ("add", 16), ("mul", 16), ("max", 18), ("min", 18)):
        updates = positive if reduction == "mul" else x
        more: dict[str, Any] = {
            "dtypes": (*FLOATS, "float64", "int32", "int64"),
            "opset": opset,
            "reduction": reduction,
        }
        places = ints(0, 50, 4001, 64)
        _add(
            "ScatterElements", x(1001, 64), places, updates(4001, 64), label=f"{reduction}, duplicates", axis=0, **more
        )
        places = ints(0, 64, 333, 4001)
        more["dtypes"] = FLOATS
        _add(
            "ScatterElements",
            x(333, 65),
            places,
            updates(333, 4001),
            label=f"{reduction}, duplicates, axis 1",
            axis=1,
            **more,
        )
        places = ints(0, 50, 20_001, 1)
        more["dtypes"] = (*FLOATS, "int32", "int64")
        _add("ScatterND", x(1001, 64), places, updates(20_001, 64), label=f"{reduction}, duplicate rows", **more)
        places = ints(0, 10, 100_003, 2)
        _add("ScatterND", x(101, 64), places, updates(100_003), label=f"{reduction}, duplicate elements", **more)
        more["dtypes"] = FLOATS
        unique = permutation(1001, 1001, 1)
        _add("ScatterND", x(1001, 64), unique, updates(1001, 64), label=f"{reduction}, each row once", **more)
    _add("Scatter", x(1001, 64), ints(0, 50, 4001, 64), x(4001, 64), label="duplicates", dtypes=FLOATS, opset=9)
    cache, update = x(4, 8, 1024, 64), x(4, 8, 7, 64)
    _add("TensorScatter", cache, update, given([0, 500, 1000, 3]), dtypes=FLOATS, opset=24)


def _copies() -> None:
    data = x(33, 65, 129)
    for perm in ([2, 1, 0], [0, 2, 1], [1, 0, 2]):
        _add("Transpose", data, label=f"{perm}", dtypes=_KINDS, perm=perm)
    _add("Concat", data, x(33, 7, 129), x(33, 1, 129), dtypes=_KINDS, axis=1)
    _add("Split", data, const([5, 59, 1]), dtypes=FLOATS, outputs=3, axis=1)
    _add("Slice", data, const([30, 3]), const([-40, 100]), const([0, 2]), const([-2, 3]), dtypes=(*FLOATS, "int64"))
    for mode in ("constant", "reflect", "edge", "wrap"):
        _add("Pad", data, const([1, 2, 3, 4, 5, 6]), label=mode, dtypes=(*FLOATS, "int64"), mode=mode, opset=19)
    _add("Tile", x(33, 65), const([7, 3]), dtypes=(*FLOATS, "int64"))
    _add("Expand", x(33, 1, 129), const([5, 33, 65, 129]), dtypes=_KINDS)
    _add("Reshape", data, const([0, -1]), dtypes=FLOATS)
    _add("Flatten", data, dtypes=FLOATS)
    _add("Squeeze", x(33, 1, 129), const([1]), dtypes=FLOATS)
    _add("Unsqueeze", data, const([1]), dtypes=FLOATS)
    _add("Shape", data)
    _add("Size", data)
    value = numpy_helper.from_array(np.array([1.5], np.float32))
    _add("ConstantOfShape", const([101, 1003]), value=value)
    _add("Range", const(0.0, None), const(1000.0, None), const(0.37, None), dtypes=("float32", "float64"))
    _add("Range", const(0), const(100_003), const(3), label="integers")
    _add("EyeLike", x(501, 503), dtypes=FLOATS, k=3)
    for upper in (0, 1):
        _add("Trilu", x(7, 501, 503), const(2), label=f"upper {upper}", dtypes=(*FLOATS, "int64", "bool"), upper=upper)
        _ms("Trilu", x(7, 501, 503), const(2), label=f"upper {upper}", dtypes=FLOATS, upper=upper)
    _add("ReverseSequence", x(33, 65, 129), ints(1, 33, 65), dtypes=(*FLOATS, "int64"))
    for mode in ("DCR", "CRD"):
        _add("DepthToSpace", x(2, 64, 33, 31), label=mode, dtypes=FLOATS, blocksize=4, mode=mode)
    _add("SpaceToDepth", x(2, 4, 132, 124), dtypes=FLOATS, blocksize=4)
    _add("Col2Im", x(2, 64 * 9, 900), const([32, 32]), const([3, 3]), opset=18)
    _add("CenterCropPad", x(33, 65), const([20, 80]), opset=18)
    _ms("UnfoldTensor", x(65, 1003), dtypes=FLOATS, dim=-1, size=16, step=3)
    _add("Crop", x(2, 3, 101, 103), opset=1, outputs=("T",), dtypes=FLOATS, border=[3, 4, 5, 6])
    more: dict[str, Any] = {"opset": 1, "outputs": ("T",), "dtypes": FLOATS}
    _add("ImageScaler", x(2, 3, 101, 103), bias=[0.1, 0.2, 0.3], scale=0.7, **more)
    starts, ends = given([3, 5]), given([90, 80])
    _add("DynamicSlice", x(101, 103), starts, ends, opset=1, outputs=("T",))


def _sequences() -> None:
    parts = (x(33, 65), x(33, 7), x(33, 1))
    _add("SequenceConstruct", *parts)
    _add("SplitToSequence", x(33, 65), const([5, 28]), dtypes=FLOATS)
    _add("SequenceEmpty", label="empty", dtype=1)
    _add("SequenceAt", *parts, const(1), sequence=3)
    _add("SequenceLength", *parts, sequence=3)
    _add("SequenceErase", *parts, const(1), sequence=3)
    _add("SequenceInsert", *parts, x(5, 7), const(1), sequence=3)
    _add("ConcatFromSequence", *parts, sequence=3, axis=1)


def _images() -> None:
    image = x(2, 3, 101, 103)
    for mode in ("nearest", "linear", "cubic"):
        for label, factor in (("up", 2.37), ("down", 0.43)):
            scales = const([1, 1, factor, factor], "float32")
            for how in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
                words = f"{mode} {label}, {how}"
                dtypes = FLOATS if how == "half_pixel" else ("float32",)
                more: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": how}
                _add("Resize", image, None, scales, label=words, dtypes=dtypes, **more)
        if mode != "nearest":
            words = f"{mode}, antialias"
            _add(
                "Resize",
                image,
                None,
                None,
                const([2, 3, 41, 43]),
                label=words,
                dtypes=FLOATS,
                opset=18,
                mode=mode,
                antialias=1,
            )
    _add("Resize", image, None, const([1, 1, 1.7, 0.6], "float32"), label="uint8", dtypes=("uint8", "int32"))
    volume, scales = x(1, 3, 17, 33, 31), const([1, 1, 1.7, 1.3, 0.6], "float32")
    _add("Resize", volume, None, scales, label="trilinear", dtypes=FLOATS, mode="linear")
    region = const([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], "float32")
    more = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    _add("Resize", image, region, None, const([2, 3, 41, 43]), label="crop", **more)
    for mode in ("nearest", "linear"):
        _add("Upsample", image, const([1, 1, 2, 2.5], "float32"), label=mode, dtypes=FLOATS, opset=9, mode=mode)
    grid = x(2, 55, 57, 2, scale=0.7)
    for old, new in (("bilinear", "linear"), ("nearest", "nearest"), ("bicubic", "cubic")):
        for padding in ("zeros", "border", "reflection"):
            more = {"label": f"{old}, {padding}", "padding_mode": padding}
            _add("GridSample", image, grid, opset=16, mode=old, dtypes=FLOATS, **more)
            _add("GridSample", image, grid, opset=20, mode=new, **(more | {"label": f"{old}, {padding}, opset 20"}))
            _ms("GridSample", image, grid, mode=old, **more)
    volume_grid = x(1, 15, 17, 19, 3, scale=0.7)
    _add("GridSample", x(1, 3, 17, 33, 31), volume_grid, label="volume", opset=20, mode="linear")
    _add("AffineGrid", x(2, 2, 3), const([2, 3, 101, 103]), opset=20)
    _regions()


def _regions() -> None:
    corners = np.sort(np.random.default_rng(0).uniform(0, 60, (300, 2, 2)), axis=1).reshape(300, 4)
    rois, images = given(corners, None), ints(0, 2, 300)
    features = x(2, 64, 33, 31)
    for mode in ("avg", "max"):
        for ratio in (0, 2):
            more: dict[str, Any] = {
                "mode": mode,
                "sampling_ratio": ratio,
                "output_height": 7,
                "output_width": 7,
                "spatial_scale": 0.5,
            }
            label = f"{mode}, ratio {ratio}"
            _add("RoiAlign", features, rois, images, label=label, dtypes=(*FLOATS, "float64"), opset=16, **more)
    numbers = np.arange(300)[:, None] % 2
    pooled = given(np.concatenate([numbers, corners], axis=1), None)
    _add("MaxRoiPool", features, pooled, dtypes=FLOATS, pooled_shape=[7, 7], spatial_scale=0.5)
    size = const([14, 14], "int32")
    _ms("CropAndResize", features, positive(300, 4, low=0, high=1), ints(0, 2, 300, dtype="int32"), size)
    boxes: Spec = given(np.concatenate([corners, corners[::-1] + 0.5, corners])[None].repeat(2, axis=0), "float32")
    limits = (const([100]), const([0.5], "float32"), const([0.1], "float32"))
    _add("NonMaxSuppression", boxes, ties(2, 5, 900, values=20), *limits, label="ties")
    _add("NonMaxSuppression", boxes, positive(2, 5, 900), *limits, label="center", center_point_box=1)
    _add("NonMaxSuppression", boxes, special(2, 5, 900), *limits, label="with NaN")
    _add("Where", bits(101, 1), special(101, 103), special(103), label="rows and columns", dtypes=("uint8", "int32"))


_gathers()
_scatters()
_copies()
_sequences()
_images()
