"""Evaluating a node in float64: by ONNX Runtime's CPU provider where it has the kernel, else by onnx's reference."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
)
_QUANTIZED = ("Quantize", "QLinear", "Integer", "MatMulNBits", "DynamicQuant")
_ACTIVATIONS = {b"Relu": "Relu", b"Sigmoid": "Sigmoid", b"Tanh": "Tanh"}


def widened(value: Any) -> Any:
    """Return a value with floats in float64; other types stay."""
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


class Reference:
    """Evaluates nodes of one model in float64."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._opsets = list(model.opset_import)
        self._versions = {opset.domain: opset.version for opset in self._opsets}
        self._functions = {(function.domain, function.name) for function in model.functions}
        self._without_kernel: set[tuple[str, str]] = set()

    def evaluate(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Return a node's outputs; None where it cannot be evaluated in float64.

        Args:
            node: a node without subgraphs.
            inputs: arrays, floats in float64; None for an absent optional one.
        """
        if any(name in node.op_type for name in (*_RANDOM, *_QUANTIZED)):
            return None
        if (node.domain, node.op_type) in self._functions or any(
            attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for attribute in node.attribute
        ):
            return None
        if not all(value is None or isinstance(value, np.ndarray) for value in inputs):
            return None
        with np.errstate(all="ignore"):
            if node.op_type == "FusedConv":
                return self._fused(node, inputs)
            return self._run(_in_double(node), inputs)

    def _fused(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> Sequence[Any] | None:
        activation = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "activation"), b"")
        if len(inputs) > 3 or (activation and activation not in _ACTIVATIONS):
            return None
        conv = onnx.NodeProto()
        conv.CopyFrom(node)
        conv.op_type, conv.domain = "Conv", ""
        kept = [a for a in conv.attribute if not a.name.startswith("activation")]
        del conv.attribute[:]
        conv.attribute.extend(kept)
        result = self._run(conv, inputs)
        if result is None or not activation:
            return result
        return self._run(helper.make_node(_ACTIVATIONS[activation], ["c"], ["y"]), result)

    def _run(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> Sequence[Any] | None:
        names = [f"i{index}" if value is not None else "" for index, value in enumerate(inputs)]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.ClearField("input")
        copy.input.extend(names)
        feed = {name: np.ascontiguousarray(value) for name, value in zip(names, inputs, strict=True) if name}
        outputs = [name for name in copy.output if name]
        graph = helper.make_graph(
            [copy],
            "node",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
                for name, value in feed.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in outputs],
        )
        # Whether it was in the old one or not, every IR version that these opsets allow reads such a graph.
        model = helper.make_model(graph, opset_imports=self._opsets, ir_version=8)
        result = self._by_onnxruntime(model, copy, feed)
        if result is None:
            result = self._by_onnx(model, feed)
        if result is None or any(
            isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.dtype != np.float64 for value in result
        ):
            return None
        return result

    def _by_onnxruntime(
        self, model: onnx.ModelProto, node: onnx.NodeProto, feed: dict[str, Any]
    ) -> Sequence[Any] | None:
        key = (node.domain, node.op_type)
        if key in self._without_kernel:
            return None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception:
            self._without_kernel.add(key)
            return None
        try:
            return list(session.run(None, feed))
        except Exception:
            return None

    def _by_onnx(self, model: onnx.ModelProto, feed: dict[str, Any]) -> Sequence[Any] | None:
        from onnx.reference import ReferenceEvaluator

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return list(ReferenceEvaluator(model).run(None, feed))
        except Exception:
            return None


def _in_double(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node with every float type among its attributes turned into double."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        if attribute.name in ("to", "dtype") and attribute.i in _FLOATS:
            attribute.i = TensorProto.DOUBLE
        elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in _FLOATS:
            attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float64)))
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            values = helper.get_attribute_value(attribute)
            attribute.CopyFrom(
                helper.make_attribute("value", numpy_helper.from_array(np.asarray(values, dtype=np.float64)))
            )
    return copy


def to_tf32(value: Any, *, cut_off: bool = False) -> Any:
    """Return float64 values as TF32 has them: ten bits after the leading one, rounded to nearest, or cut off."""
    mantissa, exponent = np.frexp(value)
    scaled = mantissa * 2.0**11
    return np.ldexp(np.trunc(scaled) if cut_off else np.rint(scaled), exponent - 11)
