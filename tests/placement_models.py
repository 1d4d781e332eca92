"""Models with nodes that have no deterministic CUDA kernel, their inputs, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
ROWS, WIDTH, UPDATES = 1001, 64, 20001
GROUPS = 32


def serialized(graph: Any, opset: int = 18) -> bytes:
    """Return a model of ``graph``."""
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def value(name: str, dtype: DTypeLike, shape: Any) -> Any:
    """Return a graph's input or output."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def scatter(operator: str, reduction: str, dtype: DTypeLike = np.float32, name: str = "scatter") -> bytes:
    """Return ScatterND or ScatterElements over rows of x, with indices i and updates u."""
    node = helper.make_node(operator, ["x", "i", "u"], ["y"], name=name, reduction=reduction)
    indices = [UPDATES, 1] if operator == "ScatterND" else [UPDATES, WIDTH]
    inputs = [value("x", dtype, [ROWS, WIDTH]), value("i", np.int64, indices), value("u", dtype, [UPDATES, WIDTH])]
    return serialized(helper.make_graph([node], "scatter", inputs, [value("y", dtype, [ROWS, WIDTH])]))


def scatter_feed(operator: str, dtype: DTypeLike = np.float32, seed: int = 0) -> dict[str, Any]:
    """Return inputs of :func:`scatter` with many duplicate indices."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, ROWS, (UPDATES, 1))
    rows = rows if operator == "ScatterND" else np.broadcast_to(rows, (UPDATES, WIDTH)).copy()

    def make(shape: tuple[int, ...]) -> Any:
        if np.dtype(dtype).kind == "f":
            return random.uniform(0.5, 1.5, shape).astype(dtype)
        return random.integers(-9, 9, shape).astype(dtype)

    return {"x": make((ROWS, WIDTH)), "i": rows, "u": make((UPDATES, WIDTH))}


def scattered(feed: dict[str, Any], reduction: str) -> Any:
    """Return what :func:`scatter` computes, in float64 or the integers' own type."""
    kind = np.float64 if feed["x"].dtype.kind == "f" else feed["x"].dtype
    result = feed["x"].astype(kind)
    rows = feed["i"][:, 0]
    if reduction == "none":
        result[rows] = feed["u"]  # the last of several updates stays
        return result
    operation: Any = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    operation.at(result, rows, feed["u"].astype(kind))
    return result


def group_norm(dtype: DTypeLike = np.float16, silu: bool = False, operator: str = "GroupNorm") -> bytes:
    """Return the contrib operator over x [N, height, width, channels], channels last."""
    attributes = {"groups": GROUPS, "epsilon": 1e-5, "activation": int(silu), "channels_last": 1}
    names = ["x", "gamma", "beta"] + (["skip"] if operator == "SkipGroupNorm" else [])
    node = helper.make_node(operator, names, ["y"], name="norm", domain=MICROSOFT, **attributes)
    inputs = [value("x", dtype, ["n", "h", "w", 256])]
    inputs += [value("skip", dtype, ["n", "h", "w", 256])] if operator == "SkipGroupNorm" else []
    weights = [
        numpy_helper.from_array(np.random.default_rng(seed).uniform(0.5, 1.5, 256).astype(np.float32), name)
        for seed, name in enumerate(("gamma", "beta"))
    ]
    return serialized(helper.make_graph([node], "norm", inputs, [value("y", dtype, None)], weights))


def group_norm_of(x: Any, silu: bool) -> Any:
    """Return what :func:`group_norm` computes, in float64."""
    gamma, beta = (np.random.default_rng(seed).uniform(0.5, 1.5, 256).astype(np.float32) for seed in (0, 1))
    n, h, w, c = x.shape
    apart = x.astype(np.float64).reshape(n, h * w, GROUPS, c // GROUPS)
    mean = apart.mean(axis=(1, 3), keepdims=True)
    variance = apart.var(axis=(1, 3), keepdims=True)
    result = ((apart - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * gamma + beta
    return result / (1 + np.exp(-result)) if silu else result


def einsum_sum() -> bytes:
    """Return an Einsum that sums a label of its one operand away."""
    node = helper.make_node("Einsum", ["x"], ["y"], name="sum", equation="ij->j")
    graph = helper.make_graph([node], "einsum", [value("x", np.float32, [4096, 96])], [value("y", np.float32, [96])])
    return serialized(graph)


def mixed() -> bytes:
    """Return Conv, ScatterND(add) on its result's rows, ReduceMean and Softmax; the outputs y and conv."""
    weights = np.random.default_rng(3).standard_normal((128, 3, 3, 3)).astype(np.float32)
    constants = {
        "w": weights,
        "flat": np.array([-1, WIDTH], np.int64),
        "axes": np.array([0], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["conv"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["conv", "flat"], ["rows"], name="rows"),
        helper.make_node("ScatterND", ["rows", "i", "u"], ["sums"], name="scatter", reduction="add"),
        helper.make_node("ReduceMean", ["sums", "axes"], ["mean"], name="mean", keepdims=0),
        helper.make_node("Softmax", ["mean"], ["y"], name="softmax"),
    ]
    inputs = [
        value("image", np.float32, [1, 3, 64, 64]),
        value("i", np.int64, [UPDATES, 1]),
        value("u", np.float32, [UPDATES, WIDTH]),
    ]
    outputs = [value("y", np.float32, [WIDTH]), value("conv", np.float32, [1, 128, 64, 64])]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return serialized(helper.make_graph(nodes, "mixed", inputs, outputs, initializers))


def mixed_feed() -> dict[str, Any]:
    """Return inputs of :func:`mixed`."""
    feed = scatter_feed("ScatterND")
    image = np.random.default_rng(4).standard_normal((1, 3, 64, 64)).astype(np.float32)
    return {"image": image, "i": feed["i"], "u": feed["u"]}


def loop(trips: int = 3) -> bytes:
    """Return a Loop whose body adds updates to the carried x by ScatterElements."""
    body = helper.make_graph(
        [
            helper.make_node("ScatterElements", ["inner", "i", "u"], ["next"], name="scatter", axis=0, reduction="add"),
            helper.make_node("Identity", ["go"], ["still"], name="same"),
        ],
        "body",
        [value("trip", np.int64, []), value("go", np.bool_, []), value("inner", np.float32, [ROWS, WIDTH])],
        [value("still", np.bool_, []), value("next", np.float32, [ROWS, WIDTH])],
    )
    node = helper.make_node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)
    inputs = [
        value("x", np.float32, [ROWS, WIDTH]),
        value("i", np.int64, [UPDATES, WIDTH]),
        value("u", np.float32, [UPDATES, WIDTH]),
    ]
    count = helper.make_tensor("trips", TensorProto.INT64, [], [trips])
    return serialized(helper.make_graph([node], "loop", inputs, [value("y", np.float32, [ROWS, WIDTH])], [count]))
