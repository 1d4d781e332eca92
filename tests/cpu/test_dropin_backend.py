"""ONNX's own node test cases: a ReproducibleSession does what InferenceSession does, to the byte and to the word."""

from __future__ import annotations

import contextlib
import io
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.backend.test.loader import load_model_tests

from ortlock import ReproducibleSession

CHUNKS = 24
MODES = ("observe", "pin")


@cache
def cases() -> list[Any]:
    with warnings.catch_warnings():
        # The cases overflow and divide by zero on purpose while they are made.
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind="node"))


def load(case: Any) -> tuple[bytes, list[list[Any]]]:
    """Return the model and the inputs of each data set; older onnx packages keep them in files."""
    if case.model is not None:
        return case.model.SerializeToString(), [list(inputs) for inputs, _ in case.data_sets]
    folder = Path(case.model_dir)
    data = (folder / "model.onnx").read_bytes()
    inputs = onnx.load_from_string(data).graph.input
    sets = []
    for data_set in sorted(folder.glob("test_data_set_*")):
        files = sorted(data_set.glob("input_*.pb"), key=lambda file: int(file.stem.removeprefix("input_")))
        sets.append([_value(file.read_bytes(), inputs[index].type) for index, file in enumerate(files)])
    return data, sets


def _value(data: bytes, kind: Any) -> Any:
    if kind.HasField("sequence_type"):
        sequence = onnx.SequenceProto.FromString(data)
        return onnx.numpy_helper.to_list(sequence)
    if kind.HasField("optional_type"):
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))


def exact(value: Any) -> Any:
    """Return a value that is equal for equal types, shapes and bytes only."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist() if value.dtype == object else value.tobytes()
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    return value


def behaviour(make: Any, data: bytes, sets: list[list[Any]]) -> tuple[Any, str]:
    """Return the outputs, or the error's type and text, and what was printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            session = make(data)
            names = [value.name for value in session.get_inputs()]
            result: Any = [exact(session.run(None, dict(zip(names, inputs, strict=False)))) for inputs in sets]
        except Exception as error:
            result = (type(error), str(error))
    return result, printed.getvalue()


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    # Many cases use operators that the CPU provider lacks; each would log a line.
    onnxruntime.set_default_logger_severity(4)
    yield
    onnxruntime.set_default_logger_severity(2)


def test_every_node_case_is_there() -> None:
    assert len(cases()) > 1000


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_same_as_stock(chunk: int) -> None:
    differing = []
    ran = 0
    for case in cases()[chunk::CHUNKS]:
        data, sets = load(case)
        stock = behaviour(onnxruntime.InferenceSession, data, sets)
        ran += isinstance(stock[0], list)
        for mode in MODES:
            ours = behaviour(lambda model, mode=mode: ReproducibleSession(model, mode=mode), data, sets)
            # A case that does not repeat in stock sessions (it draws random numbers) proves nothing here.
            if ours != stock and behaviour(onnxruntime.InferenceSession, data, sets) == stock:
                differing.append((case.name, mode, stock, ours))
    assert not differing, differing[0]
    # Older ONNX Runtimes refuse many cases of a newer onnx package.
    assert ran > len(cases()) / CHUNKS / 4
