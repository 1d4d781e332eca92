"""Reductions, cumulative sums and the operators that choose among elements."""

from __future__ import annotations

from typing import Any

from operator_cases.building import (
    FLOATS,
    WIDE_FLOATS,
    Group,
    bits,
    const,
    ints,
    near_one,
    positive,
    special,
    ties,
    wide,
    x,
)

GROUP = Group()
_add = GROUP.add

# Name of the shape, the input's shape and the axes: kernels differ by which axes go.
_SHAPES: tuple[tuple[str, tuple[int, ...], tuple[int, ...] | None], ...] = (
    ("all", (64, 1000, 101), None),
    ("one long row", (4_000_003,), None),
    ("last axis", (37, 100_003), (-1,)),
    ("last of many rows", (20_011, 257), (-1,)),
    ("first axis", (100_003, 37), (0,)),
    ("middle axis", (17, 4001, 53), (1,)),
    ("outer axes", (64, 33, 1021), (0, 2)),
)
_SUMS = ("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
_OF_INTEGERS = {
    "ReduceSum": ("int32", "int64"),
    "ReduceMax": ("int32", "int64", "int8", "uint8"),
    "ReduceMin": ("int32",),
}


def _reductions() -> None:
    for label, shape, axes in _SHAPES:
        kept = None if axes is None else list(axes)
        for operator in (*_SUMS, "ReduceProd", "ReduceMax", "ReduceMin"):
            data = {"ReduceProd": near_one, "ReduceLogSum": positive}.get(operator, wide)(*shape)
            dtypes = FLOATS if label in ("all", "last axis", "first axis") else ("float32",)
            # From 13 on the axes of ReduceSum are an input, from 18 on those of the others.
            if operator == "ReduceSum":
                _add(operator, data, None if kept is None else const(kept), label=label, dtypes=dtypes, keepdims=0)
            else:
                _add(operator, data, label=label, dtypes=dtypes, keepdims=0, axes=kept)
    for operator in ("ReduceSum", "ReduceMean"):
        _add(operator, wide(64, 1000, 101), label="all", dtypes=("float64", "bfloat16"), keepdims=1)
    for operator, integers in _OF_INTEGERS.items():
        _add(operator, x(300, 5003), label="all", dtypes=integers, keepdims=0)
    _add("ReduceMean", wide(64, 1000, 101), const([0, 2]), label="axes as input", opset=18)
    _add("ReduceMax", special(1000, 1003), label="with NaN", keepdims=0)
    _add("ReduceMin", special(1000, 1003), label="with NaN, rows", keepdims=0, axes=[1])
    _add("ReduceSum", special(1000, 1003), const([1]), label="with NaN, rows", keepdims=0)


def _choices() -> None:
    for operator in ("ArgMax", "ArgMin"):
        for dtype in FLOATS:
            _add(operator, ties(37, 10_007), label="ties, last axis", dtypes=(dtype,), axis=-1)
            _add(operator, ties(10_007, 37), label="ties, first axis", dtypes=(dtype,), axis=0)
        _add(operator, special(101, 1003), label="with NaN", axis=1)
        _add(operator, ties(37, 10_007), label="last of ties", axis=1, select_last_index=1)
    for dtype in (*FLOATS, "float64", "int32", "int64"):
        _add("TopK", ties(13, 20_011, values=50), const([5000]), label="large k, ties", dtypes=(dtype,), outputs=2)
    for ordered in (0, 1):
        for largest in (0, 1):
            label = f"{'largest' if largest else 'smallest'}, {'sorted' if ordered else 'unsorted'}"
            more: dict[str, Any] = {"outputs": 2, "sorted": ordered, "largest": largest}
            _add("TopK", ties(3, 200_003), const([777]), label=f"{label}, ties, long row", **more)
            _add("TopK", ties(64, 1000, 7), const([100]), label=f"{label}, ties, axis 1", axis=1, **more)
            _add("TopK", x(500, 129), const([8]), label=f"{label}, small k", **more)
    _add("TopK", special(13, 20_011), const([500]), label="with NaN", outputs=2)
    _add("TopK", x(1_000_003), const([1_000_003]), label="all of a long row", outputs=2)
    _add("Hardmax", ties(101, 1003), label="ties", dtypes=FLOATS)
    _add("NonZero", ties(1000, 1003, values=2), label="half", dtypes=("float32", "int32", "int64", "uint8", "bool"))
    _add("NonZero", x(3_000_001), label="all", dtypes=("float16",))
    _add("Unique", ints(0, 1000, 100_003, dtype="float32"), label="duplicates", outputs=4)
    _add("Unique", ints(0, 3, 1000, 4), label="rows", outputs=4, axis=0)
    _add("Compress", x(1000, 503), bits(1000), label="rows", dtypes=FLOATS, axis=0)
    _add("Compress", x(1000, 503), bits(400_000), label="flat")


def _cumulative() -> None:
    for label, shape, axis in (
        ("long row", (3, 300_007), 1),
        ("first axis", (10_007, 64), 0),
        ("flat", (1_000_003,), 0),
    ):
        _add("CumSum", wide(*shape), const(axis), label=label, dtypes=FLOATS)
        _add("CumSum", wide(*shape), const(axis), label=f"{label}, reverse exclusive", reverse=1, exclusive=1)
    _add("CumSum", x(1000, 1003), const(1), label="rows", dtypes=("int32", "int64", "float64"))
    _add("CumProd", near_one(1000, 1003), const(1), label="rows", opset=26)


def _losses() -> None:
    _add("Softmax", x(4, 50_257), label="long rows", dtypes=WIDE_FLOATS, axis=-1)
    for operator in ("Softmax", "LogSoftmax"):
        _add(operator, x(3, 500_009, scale=5), label="very long rows", dtypes=FLOATS, axis=-1)
        _add(operator, x(5001, 1000), label="rows", dtypes=FLOATS, axis=-1)
        _add(operator, x(20_000, 33), label="short rows", axis=-1)
        _add(operator, x(16, 1021, 77), label="middle axis", dtypes=FLOATS, axis=1)
        _add(operator, x(64, 1000, 101), label="flattened", opset=11, axis=1)
        _add(operator, special(300, 1021), label="with NaN", axis=-1)
    classes = ints(0, 1000, 4096)
    _add(
        "SoftmaxCrossEntropyLoss", x(4096, 1000), classes, x(1000), label="mean, weighted", outputs=2, reduction="mean"
    )
    _add("SoftmaxCrossEntropyLoss", x(4096, 1000), classes, label="sum", outputs=1, reduction="sum")
    _add("NegativeLogLikelihoodLoss", x(4096, 1000), classes, label="mean", reduction="mean")


_reductions()
_choices()
_cumulative()
_losses()
