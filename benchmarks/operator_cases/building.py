"""How a case is described and made: seeded inputs and a model of the one operator."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

Array = NDArray[Any]
MS = "com.microsoft"
# fp32 and fp16, as most CUDA kernels are registered.
FLOATS = ("float32", "float16")
WIDE_FLOATS = ("float32", "float16", "bfloat16")
_BFLOAT16 = "bfloat16"


class Draw:
    """Seeded numbers of the case's type; bfloat16 is drawn as float32 and cast inside the model."""

    def __init__(self, seed: str, dtype: str) -> None:
        self.random = np.random.default_rng(zlib.crc32(seed.encode()))
        self.dtype = np.dtype("float32" if dtype == _BFLOAT16 else dtype)

    def own(self, values: Array) -> Array:
        """Return the values in the case's type, as whole numbers for an integer type."""
        if self.dtype == bool:
            return np.asarray(values > 0)
        if self.dtype.kind in "iu":
            low = 0 if self.dtype.kind == "u" else -100
            return np.rint(np.clip(np.nan_to_num(values, posinf=5, neginf=-5) * 20.0, low, 100)).astype(self.dtype)
        return values.astype(self.dtype)


@dataclass(frozen=True)
class Spec:
    """One input, not drawn yet."""

    shape: tuple[int, ...]
    make: Callable[[Draw], Array]
    dtype: str | None = None
    """None: the case's own type."""
    constant: bool = False
    """An initializer of the model rather than an input."""


def x(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Spec:
    """Return normal numbers of the case's type."""
    return Spec(shape, lambda draw: draw.own(draw.random.standard_normal(shape) * scale + shift))


def wide(*shape: int) -> Spec:
    """Return numbers of very different sizes, so that a sum shows the order of its terms."""

    def make(draw: Draw) -> Array:
        sizes = draw.random.uniform(-3, 1, shape)
        return draw.own(draw.random.standard_normal(shape) * np.power(10.0, sizes))

    return Spec(shape, make)


def near_one(*shape: int) -> Spec:
    """Return numbers close to one, whose long product neither vanishes nor overflows."""
    return Spec(shape, lambda draw: draw.own(1 + draw.random.standard_normal(shape) * 1e-3))


def positive(*shape: int, low: float = 0.1, high: float = 2.0) -> Spec:
    """Return positive numbers."""
    return Spec(shape, lambda draw: draw.own(draw.random.uniform(low, high, shape)))


def ties(*shape: int, values: int = 5) -> Spec:
    """Return numbers of which only a few are different."""
    return Spec(shape, lambda draw: draw.own(draw.random.integers(0, values, shape).astype(np.float64)))


def special(*shape: int) -> Spec:
    """Return normal numbers among which NaN, both infinities, negative zero and subnormals are strewn."""

    def make(draw: Draw) -> Array:
        values = draw.random.standard_normal(shape)
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, 6e-8])
        flat = values.reshape(-1)
        places = draw.random.integers(0, flat.size, max(6, flat.size // 50))
        flat[places] = odd[draw.random.integers(0, len(odd), places.size)]
        return draw.own(values)

    return Spec(shape, make)


def f32(*shape: int, scale: float = 1.0, shift: float = 0.0, dtype: str = "float32") -> Spec:
    """Return normal numbers of a type of their own, whatever the case's is."""

    def make(draw: Draw) -> Array:
        return (draw.random.standard_normal(shape) * scale + shift).astype(dtype)

    return Spec(shape, make, dtype)


def ints(low: int, high: int, *shape: int, dtype: str = "int64") -> Spec:
    """Return whole numbers from ``low`` up to but not ``high``: many are equal where there are more than values."""
    return Spec(shape, lambda draw: draw.random.integers(low, high, shape).astype(dtype), dtype)


def bits(*shape: int) -> Spec:
    """Return random booleans."""
    return Spec(shape, lambda draw: draw.random.integers(0, 2, shape).astype(bool), "bool")


def permutation(size: int, *shape: int) -> Spec:
    """Return each index below ``size`` once, in random order."""
    return Spec(shape or (size,), lambda draw: draw.random.permutation(size).reshape(shape or (size,)), "int64")


def given(values: ArrayLike, dtype: str | None = "int64") -> Spec:
    """Return these values; of the case's type where ``dtype`` is None."""
    array = np.asarray(values)
    return Spec(array.shape, lambda draw: array.astype(dtype or draw.dtype), dtype)


def const(values: ArrayLike, dtype: str | None = "int64") -> Spec:
    """Return these values as an initializer."""
    return fixed(given(values, dtype))


def fixed(spec: Spec) -> Spec:
    """Return the same input as an initializer."""
    return Spec(spec.shape, spec.make, spec.dtype, constant=True)


@dataclass(frozen=True)
class Case:
    """One operator with the types and shapes of one measurement."""

    name: str
    operator: str
    domain: str
    dtype: str
    inputs: tuple[Spec | None, ...]
    opset: int
    outputs: tuple[str, ...] | int
    attributes: dict[str, Any] = field(default_factory=dict)
    sequence: int = 0
    """How many of the first inputs make up a sequence, which the operator takes in their place."""
    captured: int = 0
    """How many of the last inputs are for the operator's subgraphs only."""

    def types(self) -> str:
        """Return the inputs' element types in words."""
        return ", ".join(dict.fromkeys(spec.dtype or self.dtype for spec in self.inputs if spec)) or self.dtype

    def shapes(self) -> str:
        """Return the inputs' shapes in words."""
        words = ("x".join(map(str, spec.shape)) or "scalar" if spec else "-" for spec in self.inputs)
        return ", ".join(words) or "no inputs"

    def build(self) -> tuple[bytes, dict[str, Array]]:
        """Return the model and its inputs."""
        draw = Draw(self.name, self.dtype)
        nodes: list[Any] = []
        before: list[Any] = []
        feeds: dict[str, Array] = {}
        infos, weights, names = [], [], []
        for position, spec in enumerate(self.inputs):
            if spec is None:
                names.append("")
                continue
            name, array = f"x{position}", np.asarray(spec.make(draw), order="C")
            if spec.constant:
                weights.append(numpy_helper.from_array(array, name))
            else:
                infos.append(helper.make_tensor_value_info(name, _element(array.dtype.name), array.shape))
                feeds[name] = array
            if self.dtype == _BFLOAT16 and spec.dtype is None:
                before.append(helper.make_node("Cast", [name], [f"{name}_bf16"], to=TensorProto.BFLOAT16))
                name = f"{name}_bf16"
            names.append(name)
        if self.sequence:
            before.append(helper.make_node("SequenceConstruct", names[: self.sequence], ["parts"]))
            names[: self.sequence] = ["parts"]
        del names[len(names) - self.captured :]
        types = self._output_types()
        results = [f"y{i}" if kind != "" else "" for i, kind in enumerate(types)]
        known = {key: value for key, value in self.attributes.items() if value is not None}
        nodes = [
            *before,
            helper.make_node(self.operator, names, results, name="tested", domain=self.domain, **known),
        ]
        asked = [helper.make_empty_tensor_value_info(name) for name in results if name]
        model = self._model(nodes, infos, asked, weights)
        self._type_outputs(model, [kind for kind in types if kind != ""])
        if self.domain == "" and onnx.defs.has(self.operator):
            checked = ModelProto.FromString(model.SerializeToString())
            for info in checked.graph.output:
                # ONNX Runtime needs no shape where none is known; the checker does.
                if info.type.HasField("tensor_type"):
                    info.type.tensor_type.shape.SetInParent()
            onnx.checker.check_model(checked)
        return model.SerializeToString(), feeds

    def _output_types(self) -> list[str | None]:
        if isinstance(self.outputs, int):
            return [None] * self.outputs
        return [self.dtype if kind == "T" else kind for kind in self.outputs]

    def _model(self, nodes: list[Any], infos: list[Any], asked: list[Any], weights: list[Any]) -> ModelProto:
        graph = helper.make_graph(nodes, "sweep", infos, asked, weights)
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, 1))
        # The lowest IR version that knows the opset, so that older versions of ONNX Runtime read the model.
        ir = next(ir for last, ir in ((18, 8), (20, 9), (22, 10), (23, 11), (24, 12), (99, 13)) if self.opset <= last)
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir)

    def _type_outputs(self, model: ModelProto, types: Sequence[str | None]) -> None:
        """Fill in the outputs' types: those that were given, else those that ONNX infers; bfloat16 is cast."""
        if None in types:
            inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
            model.graph.CopyFrom(inferred.graph)
            del model.graph.value_info[:]
        for info, kind in zip(model.graph.output, types, strict=True):
            if kind is not None:
                info.type.tensor_type.elem_type = _element(kind)
            if info.type.tensor_type.elem_type == TensorProto.BFLOAT16:
                cast = helper.make_node("Cast", [info.name], [f"{info.name}_f32"], to=TensorProto.FLOAT)
                model.graph.node.append(cast)
                info.name = f"{info.name}_f32"
                info.type.tensor_type.elem_type = TensorProto.FLOAT


def _element(dtype: str) -> int:
    return TensorProto.BFLOAT16 if dtype == _BFLOAT16 else int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class Group:
    """Collects cases."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def add(
        self,
        operator: str,
        *inputs: Spec | None,
        label: str = "",
        dtypes: Iterable[str] = ("float32",),
        opset: int = 17,
        domain: str = "",
        outputs: Sequence[str] | int | None = None,
        sequence: int = 0,
        captured: int = 0,
        **attributes: Any,
    ) -> None:
        """Add a case for each type.

        Args:
            operator: the operator.
            inputs: its inputs; None for one that is left out.
            label: what tells the case from others of the operator; default: the first input's shape.
            dtypes: the case's own type, one case for each.
            opset: version of ONNX's operators.
            domain: the operator's domain.
            outputs: how many, with types that ONNX infers, or their types, "T" for the case's own and "" for one that
                is left out. Default: one, inferred for ONNX's domain and of the case's own type in others.
            sequence: how many of the first inputs make up a sequence.
            captured: how many of the last inputs are for subgraphs only.
            attributes: the node's attributes; None leaves one out.
        """
        if outputs is None:
            outputs = ("T",) if domain else 1
        kinds = outputs if isinstance(outputs, int) else tuple(outputs)
        first = next((spec.shape for spec in inputs if spec), ())
        label = label or "x".join(map(str, first)) or "scalar"
        for dtype in dtypes:
            short = f"ms.{operator}" if domain else operator
            name = f"{short} {label} {dtype}"
            facts = (name, operator, domain, dtype, tuple(inputs), opset, kinds)
            self.cases.append(Case(*facts, dict(attributes), sequence, captured))

    def ms(self, operator: str, *inputs: Spec | None, **more: Any) -> None:
        """Add a case of com.microsoft for each type."""
        self.add(operator, *inputs, domain=MS, **more)
