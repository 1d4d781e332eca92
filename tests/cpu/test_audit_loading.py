"""Models that ONNX Runtime does not load: the audit says so, and no session of theirs holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortlock import audit, models
from ortlock.audit import Verdict
from ortlock.cli import main

SIZE = 300
"""Of a side of the weights: 360 kB, which are left out when the model is read."""


def identity(element: int = TensorProto.FLOAT, opset: int = 16, ir_version: int = 8) -> onnx.ModelProto:
    value = (helper.make_tensor_value_info(name, element, ["n"]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [next(value)], [next(value)])
    return helper.make_model(graph, ir_version=ir_version, opset_imports=[helper.make_opsetid("", opset)])


def product(weights: onnx.TensorProto | onnx.SparseTensorProto) -> onnx.ModelProto:
    """Return x [n,SIZE] times the weights ``w``."""
    sparse = isinstance(weights, onnx.SparseTensorProto)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [] if sparse else [weights],
        sparse_initializer=[weights] if sparse else [],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 16)])


def weights() -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones((SIZE, SIZE), np.float32), "w")


def external(path: Path) -> Path:
    """Write the product with its weights in a file beside it; return that file."""
    onnx.save_model(product(weights()), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    return path.parent / "w.bin"


UNLOADABLE = {
    "opset": (identity(opset=99), "Opset 99 is under development"),
    "ir": (identity(ir_version=99), "Unsupported model IR version: 99"),
    "type": (identity(TensorProto.COMPLEX128), "tensor(complex128) is not currently registered or supported"),
    "unknown input": (product(weights()), "Node input 'w' is not a graph input"),
}
UNLOADABLE["unknown input"][0].graph.ClearField("initializer")


def flat(text: str) -> str:
    """Return a text without line ends: where they are depends on how long the path is."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", UNLOADABLE)
def test_model_that_cannot_be_loaded(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, expected = UNLOADABLE[name]
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(Exception, match=r"ONNXRuntimeError"):
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert main(["audit", str(path), "--json"]) == 2
    shown = capsys.readouterr()
    values = json.loads(shown.out)
    assert not shown.err
    assert values["verdict"] == "unknown"
    assert expected in values["load_problem"]
    assert "onnxruntime_src" not in values["load_problem"]
    assert "ONNXRuntimeError" not in values["load_problem"]
    assert main(["audit", str(path)]) == 2
    shown = capsys.readouterr()
    assert "cannot tell: ONNX Runtime cannot load it" in flat(shown.out)
    assert f"cannot be loaded: {values['load_problem']}" in flat(shown.out)
    assert "strict would" not in flat(shown.out)
    for mode in ("observe", "pin"):
        assert audit(path, mode=mode).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("cut", [True, False], ids=["cut short", "missing"])
def test_external_data_that_is_not_all_there(cut: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    file = external(path)
    assert main(["audit", str(path)]) == 0
    assert "cannot be loaded" not in capsys.readouterr().out
    if cut:
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    expected = f"the tensor ends at byte {4 * SIZE**2}, the file at byte" if cut else "there is no such file"
    assert main(["audit", str(path)]) == 2
    shown = flat(capsys.readouterr().out)
    assert "cannot tell: ONNX Runtime cannot load it" in shown
    assert f"cannot be loaded: external data of w in {file}: {expected}" in shown
    assert main(["audit", str(path), "--json"]) == 2
    values = json.loads(capsys.readouterr().out)
    assert (values["verdict"], values["load_problem"]) == ("unknown", None)
    assert expected in values["files"][0]["problem"]


def test_what_is_known_of_nodes_is_still_told() -> None:
    model = identity(opset=99)
    model.graph.node[0].op_type = "RandomNormalLike"
    found = audit(model.SerializeToString())
    assert (found.verdict, found.counts) == (Verdict.UNKNOWN, {"stateful": 1})


def test_custom_operators_are_unknown_and_not_said_not_to_load() -> None:
    """A library of custom operators may bring them: the audit has none."""
    model = identity()
    model.graph.node[0].op_type, model.graph.node[0].domain = "Mystery", "mine"
    model.opset_import.append(helper.make_opsetid("mine", 1))
    found = audit(model.SerializeToString())
    assert (found.verdict, found.load_problem) == (Verdict.UNKNOWN, None)
    # What does not depend on the library is told all the same.
    model.ir_version = 99
    problem = audit(model.SerializeToString()).load_problem
    assert problem is not None
    assert "IR version: 99" in problem


def sparse() -> Any:
    values = numpy_helper.from_array(np.ones(SIZE**2, np.float32), "w")
    indices = numpy_helper.from_array(np.arange(SIZE**2), "")
    return helper.make_sparse_tensor(values, indices, [SIZE, SIZE])


LOADABLE = {
    "weights": product(weights()).SerializeToString(),
    "sparse weights": product(sparse()).SerializeToString(),
    "demo": models.demo_model(),
    "residual": models.residual_net(),
    "depthwise": models.depthwise_net(),
    "branches": models.branches(),
    "biased": models.biased_conv(),
}


@pytest.mark.parametrize("name", LOADABLE)
def test_model_without_its_weights_is_loaded(name: str) -> None:
    found = audit(LOADABLE[name])
    assert found.loads
    assert found.verdict is Verdict.HOLDS
