"""Models and makers with a planted fault, for the tests of what finds faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortlock.configuration import Configuration, Source
from ortlock.localise import SessionMaker

CPU = "CPUExecutionProvider"
OBSERVE = Configuration(((CPU, {}),), "observe")

Array = np.ndarray[Any, Any]


def chain(length: int, size: int | str = "n") -> bytes:
    """Return a chain of ``length`` nodes named ``n0``, ``n1``, ... with outputs ``t0``, ``t1``, ...; ``x`` to ``y``.

    No node loses what makes two inputs differ: each adds to its input, or changes its sign.
    """
    nodes, x = [], "x"
    for index in range(length):
        inputs = [x, "step"] if index % 2 else [x]
        nodes.append(helper.make_node("Add" if index % 2 else "Neg", inputs, [f"t{index}"], name=f"n{index}"))
        x = f"t{index}"
    nodes.append(helper.make_node("Identity", [x], ["y"], name="last"))
    return serialized(nodes, [size], {"step": np.float32(0.25)})


def serialized(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    weights: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 13,
) -> bytes:
    """Return a model of one input ``x`` of ``shape``."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())


_NOISE = "planted_noise"


def planted(model: bytes, tensor: str) -> bytes:
    """Return the model with an input that is added to a tensor where the node that computes it hands it on."""
    changed = onnx.load_model_from_string(model)
    names = [name for node in changed.graph.node for name in node.output]
    if tensor not in names:
        return model
    for index, node in enumerate(changed.graph.node):
        if tensor in node.output:
            raw = f"{tensor}_as_computed"
            node.output[list(node.output).index(tensor)] = raw
            changed.graph.node.insert(index + 1, helper.make_node("Add", [raw, _NOISE], [tensor]))
            break
    changed.graph.input.append(helper.make_tensor_value_info(_NOISE, TensorProto.FLOAT, []))
    return bytes(changed.SerializeToString())


class NoisyRunner:
    """A session of a planted model that feeds the noise."""

    def __init__(self, session: Any, draw: Callable[[], float]) -> None:
        self._session, self._draw = session, draw
        self._planted = _NOISE in [value.name for value in session.get_inputs()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, output_names: Any, input_feed: Mapping[str, Any]) -> Any:
        if not self._planted:
            return self._session.run(output_names, input_feed)
        return self._session.run(output_names, {**input_feed, _NOISE: np.array(self._draw(), np.float32)})


@dataclass
class FaultyMaker:
    """Makes sessions in which one node's output varies from run to run."""

    model: bytes
    tensor: str
    one_in: int = 1
    size: float = 1e-3
    steady: bool = False
    """The fault is the same in every run."""
    hidden: bool = False
    """The fault is gone once tensors are exposed."""
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    provider: str = CPU
    made: int = 0

    def original(self) -> NoisyRunner:
        return self._runner(self.model, optimised=True)

    def derived(self, model: bytes, *, optimised: bool) -> Any:
        if self.hidden:
            return SessionMaker(OBSERVE, Source(data=model)).derived(model, optimised=optimised)
        return self._runner(model, optimised=optimised)

    def optimise(self) -> bytes | None:
        return None

    def _runner(self, model: bytes, *, optimised: bool) -> NoisyRunner:
        self.made += 1
        changed = planted(model, self.tensor)
        session = OBSERVE.open_derived(changed, Source(data=changed), optimised=optimised)
        return NoisyRunner(session, self._draw)

    def _draw(self) -> float:
        if self.steady:
            return self.size
        return self.random.uniform(0.5, 1) * self.size if self.random.integers(self.one_in) == 0 else 0.0
