"""The built-in models: valid, seeded, and what their documentation says of shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ortlock import models

CASES: dict[str, tuple[bytes, tuple[int, ...], str, list[tuple[int, ...]]]] = {
    "demo": (
        models.demo_model(),
        (1, 3, 112, 112),
        "float32",
        [(1, 32, 56, 56), (1, 64, 56, 56), (1, 16, 112, 112), ()],
    ),
    "residual fp32": (models.residual_net(), (1, 3, 112, 112), "float32", [(1, 10)]),
    "residual fp16": (models.residual_net("float16", size=64), (1, 3, 64, 64), "float16", [(1, 10)]),
    "residual, symbolic": (models.residual_net(size="size"), (1, 3, 64, 64), "float32", [(1, 10)]),
    "conv": (models.conv_net(4), (1, 3, 32, 32), "float32", [(1, 64, 16, 16)]),
    "depthwise fp32": (models.depthwise_net(), (1, 3, 64, 64), "float32", [(1, 96, 4, 4)]),
    "depthwise fp16": (models.depthwise_net("float16", size=32), (1, 3, 32, 32), "float16", [(1, 96, 2, 2)]),
    "fused conv": (models.fused_conv_net(3, size=16), (1, 64, 16, 16), "float32", [(1, 64, 16, 16)]),
    "transposed": (models.conv_transpose((1, 8, 7, 7), 4), (1, 8, 7, 7), "float32", [(1, 4, 14, 14)]),
    "decoder": (models.decoder(), (1, 128, 6, 6), "float32", [(1, 3, 48, 48)]),
    "reduction": (models.reduction("ReduceSum", (4, 5)), (4, 5), "float32", [()]),
    "bias": (models.biased_conv(), (1, 64, 28, 28), "float32", [(1, 64, 28, 28)]),
    "trivial": (models.trivial(), (1,), "float32", [(1,)]),
}


@pytest.mark.parametrize("name", CASES)
def test_model_runs_with_the_documented_shapes(name: str) -> None:
    data, shape, dtype, expected = CASES[name]
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, {"x": models.seeded_input(shape, dtype)})
    assert [output.shape for output in outputs] == expected
    assert all(output.dtype == np.dtype(dtype) and np.isfinite(output).all() for output in outputs)


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert models.residual_net(seed=1) == models.residual_net(seed=1)
    assert models.residual_net(seed=1) != models.residual_net(seed=2)


def test_operator_counts() -> None:
    def count(data: bytes) -> dict[str, int]:
        types = [node.op_type for node in onnx.load_model_from_string(data).graph.node]
        return {op_type: types.count(op_type) for op_type in types}

    assert count(models.residual_net())["Conv"] == 20
    assert count(models.depthwise_net()) == {"Conv": 24, "Clip": 16, "Add": 3, "Identity": 1}
    assert count(models.fused_conv_net(10))["FusedConv"] == 10
    assert set(count(models.demo_model())) >= {"Conv", "FusedConv", "ConvTranspose", "ReduceMean"}
    assert [output.name for output in onnx.load_model_from_string(models.demo_model()).graph.output] == list(
        models.DEMO_OUTPUTS
    )


def test_every_value_of_the_biased_conv_is_its_bias() -> None:
    session = onnxruntime.InferenceSession(models.biased_conv(), providers=["CPUExecutionProvider"])
    output: Any = session.run(None, {"x": models.seeded_input((1, 64, 28, 28))})[0]
    assert (output == 7).all()


def test_fused_conv_equals_conv_and_relu() -> None:
    fused = onnx.load_model_from_string(models.fused_conv_net(2, size=8))
    plain = onnx.load_model_from_string(models.fused_conv_net(2, size=8))
    nodes = []
    for node in plain.graph.node:
        if node.op_type == "FusedConv":
            kept = [attribute for attribute in node.attribute if attribute.name != "activation"]
            inner = onnx.helper.make_node("Conv", list(node.input), [f"{node.output[0]}_conv"])
            inner.attribute.extend(kept)
            nodes += [inner, onnx.helper.make_node("Relu", [f"{node.output[0]}_conv"], list(node.output))]
        else:
            nodes.append(node)
    assert [node.op_type for node in nodes] == ["Conv", "Relu", "Conv", "Relu", "Identity"]
    del plain.graph.node[:]
    plain.graph.node.extend(nodes)
    x = models.seeded_input((1, 64, 8, 8))
    values: list[Any] = []
    for model in (fused, plain):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        values += session.run(None, {"x": x})
    assert (values[0] == 0).any()
    np.testing.assert_allclose(values[0], values[1], rtol=1e-4, atol=1e-5)


def test_depthwise_conv_equals_conv_with_zeros_between_channels() -> None:
    grouped = onnx.load_model_from_string(models.depthwise_net(size=32))
    dense = onnx.load_model_from_string(models.depthwise_net(size=32))
    weights = {weight.name: weight for weight in dense.graph.initializer}
    groups = []
    for node in dense.graph.node:
        for attribute in [attribute for attribute in node.attribute if attribute.name == "group"]:
            node.attribute.remove(attribute)
            weight = weights[node.input[1]]
            values = onnx.numpy_helper.to_array(weight)
            assert values.shape == (attribute.i, 1, 3, 3)
            spread = np.zeros((attribute.i, attribute.i, 3, 3), values.dtype)
            channels = np.arange(attribute.i)
            spread[channels, channels] = values[:, 0]
            weight.CopyFrom(onnx.numpy_helper.from_array(spread, weight.name))
            groups.append(attribute.i)
    assert groups == [32, 96, 144, 144, 192, 192, 384, 384]
    x = models.seeded_input((1, 3, 32, 32))
    outputs: list[Any] = []
    for model in (grouped, dense):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        outputs += session.run(None, {"x": x})
    assert np.abs(outputs[0]).max() > 0.1
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-4)
