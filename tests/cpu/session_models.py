"""Small models and helpers for the tests of sessions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

Array = np.ndarray[Any, Any]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    shape: Sequence[int | str] = (1,),
    domains: Sequence[str] = (),
) -> bytes:
    """Return a serialized float32 model that every supported ONNX Runtime can read."""

    def values(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

    graph = helper.make_graph(list(nodes), "g", values(inputs), values(outputs))
    opsets = [helper.make_opsetid("", 13), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return bytes(helper.make_model(graph, ir_version=7, opset_imports=opsets).SerializeToString())


def add_model() -> bytes:
    """Two inputs, two outputs: ``s = a + b`` and ``p = a * b``, any length."""
    nodes = [helper.make_node("Add", ["a", "b"], ["s"], name="add"), helper.make_node("Mul", ["a", "b"], ["p"])]
    return model(nodes, ("a", "b"), ("s", "p"), ("n",))


def random_model() -> bytes:
    """A node whose generator keeps a state."""
    return model([helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise", seed=1.0)])


def feeds(*values: float) -> dict[str, Array]:
    a = np.array(values or (1.0, 2.0), np.float32)
    return {"a": a, "b": a + 1}


class Failing:
    """Stands before a session of ONNX Runtime's and fails the first ``times`` runs."""

    def __init__(self, real: Any, error: Exception, times: int = 1_000_000) -> None:
        self.real, self.error, self.times = real, error, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _fail(self) -> None:
        if self.times:
            self.times -= 1
            raise self.error

    def run(self, *arguments: Any) -> Any:
        self._fail()
        return self.real.run(*arguments)

    def run_with_ort_values(self, *arguments: Any) -> Any:
        self._fail()
        return self.real.run_with_ort_values(*arguments)


def exact_outputs(outputs: Sequence[Array]) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Return what is equal for equal types, shapes and bytes only."""
    return [(output.dtype.str, output.shape, output.tobytes()) for output in outputs]


@dataclass(frozen=True)
class Outcome:
    """What a call did: its value or its error, what it printed and what it warned of."""

    value: Any
    error: tuple[type[BaseException], str] | None
    printed: str
    warned: tuple[tuple[type[Warning], str], ...]


def outcome(
    call: Callable[[], Any], capsys: pytest.CaptureFixture[str], *, ignore: type[Warning] | None = None
) -> Outcome:
    """Call and tell everything that a caller can see."""
    capsys.readouterr()
    value, error = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = call()
        except Exception as raised:
            error = (type(raised), str(raised))
    warned = tuple(
        (entry.category, str(entry.message)) for entry in caught if not (ignore and issubclass(entry.category, ignore))
    )
    return Outcome(value, error, capsys.readouterr().out, warned)


def version() -> tuple[int, int]:
    """Return major and minor of the ONNX Runtime under test."""
    major, minor, *_ = onnxruntime.__version__.split(".")
    return int(major), int(minor)
