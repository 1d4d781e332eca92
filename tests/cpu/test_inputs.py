"""Inputs for commands that run a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ortlock.cli.inputs import InputError, InputSpec, input_specs, load_npz, parse_dims, parse_shapes
from ortlock.cli.seeded import seeded_feeds

IMAGE = InputSpec("x", "tensor(float)", ("batch", 3, "height", "width"))
MASK = InputSpec("mask", "tensor(int64)", ("batch", "length"))


def test_symbolic_dimensions_come_from_dim() -> None:
    feed = seeded_feeds([IMAGE, MASK], 0, {"height": 4, "width": 5, "length": 6, "batch": 2}, {})[0]
    assert feed["x"].shape == (2, 3, 4, 5)
    assert feed["mask"].shape == (2, 6)


def test_an_unset_first_axis_is_one() -> None:
    assert seeded_feeds([IMAGE], 0, {"height": 4, "width": 5}, {})[0]["x"].shape == (1, 3, 4, 5)
    assert seeded_feeds([InputSpec("x", "tensor(float)", (None, 2))], 0, {}, {})[0]["x"].shape == (1, 2)


def test_open_dimensions_are_listed() -> None:
    with pytest.raises(InputError, match=r"no size: height, width. Set them with --dim height=N --dim width=N"):
        seeded_feeds([IMAGE], 0, {}, {})
    # One that is left out needs none.
    optional = InputSpec("o", "optional(tensor(float))", (1, "length"))
    assert set(seeded_feeds([optional], 0, {}, {})[0]) == set()


@pytest.mark.parametrize(
    ("specs", "told"),
    [
        (
            [InputSpec("x", "tensor(float)", (None, None))],
            "no size: axis 1 of input x (without a name). Set them with --shapes x:AxB.",
        ),
        (
            [InputSpec("x", "tensor(float)", (None, 3, None, "?")), InputSpec("m", "tensor(bool)", (1, "seq len"))],
            "no size: seq len, axis 2 of input x (without a name), axis 3 of input x (without a name). "
            "Set them with --dim 'seq len'=N --shapes x:Ax3xBxC.",
        ),
    ],
)
def test_open_dimensions_without_a_name_are_those_of_an_input(specs: list[InputSpec], told: str) -> None:
    with pytest.raises(InputError) as caught:
        seeded_feeds(specs, 0, {}, {})
    assert str(caught.value) == f"these dimensions of the model have {told}"


def test_a_shape_binds_the_dimensions_that_other_inputs_share() -> None:
    mask = InputSpec("mask", "tensor(int64)", ("batch", "height"))
    feeds = seeded_feeds([IMAGE, mask], 0, {}, parse_shapes("x:2x3x8x9,4x3x5x6"))
    assert [feed["mask"].shape for feed in feeds] == [(2, 8), (4, 5)]
    agreeing = parse_shapes("x:2x3x8x9,mask:2x8")
    assert seeded_feeds([IMAGE, mask], 0, {"height": 8, "width": 9}, agreeing)[0]["mask"].shape == (2, 8)


PAIR = [InputSpec(name, "tensor(float)", ("N", 3)) for name in "xz"]


@pytest.mark.parametrize(
    ("specs", "dims", "shapes", "told"),
    [
        (PAIR, {"N": 2}, "x:4x3", "--dim N=2 and --shapes x:4x3 contradict each other: the model's dimension N"),
        (PAIR, {}, "x:2x3,z:4x3", "--shapes x:2x3 and --shapes z:4x3 contradict each other: the model's dimension N"),
        # The input with one shape keeps it for every shape of the other.
        (PAIR, {}, "x:2x3,4x3,z:2x3", "--shapes x:4x3 and --shapes z:2x3 contradict each other"),
    ],
)
def test_a_dimension_has_one_size(specs: list[InputSpec], dims: dict[str, int], shapes: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        seeded_feeds(specs, 0, dims, parse_shapes(shapes))
    text = str(caught.value)
    assert text.startswith(told)
    assert "N would be 2 and 4. " in text or "N would be 4 and 2. " in text


def test_within_one_input_a_shape_is_what_was_asked_for() -> None:
    """Many models name axes alike that need not be, e.g. height and width."""
    square = InputSpec("s", "tensor(float)", ("N", "N"))
    assert seeded_feeds([square], 0, {}, parse_shapes("s:2x4"))[0]["s"].shape == (2, 4)


def test_shapes_in_turn_contradict_nothing() -> None:
    feeds = seeded_feeds(PAIR, 0, {}, parse_shapes("x:2x3,4x3,z:2x3,4x3"))
    assert [(feed["x"].shape, feed["z"].shape) for feed in feeds] == [((2, 3), (2, 3)), ((4, 3), (4, 3))]


def test_a_dimension_that_is_given_twice() -> None:
    assert parse_dims(["N=2", "M=1", "N=2"]) == {"N": 2, "M": 1}
    with pytest.raises(InputError, match=r"--dim N=2 and --dim N=3 contradict each other. Give N one size."):
        parse_dims(["N=2", "N=3"])


def test_several_shapes_make_several_feeds() -> None:
    feeds = seeded_feeds([IMAGE, MASK], 0, {"length": 7}, parse_shapes("x:1x3x8x8,1x3x9x9,mask:1x7"))
    assert [feed["x"].shape for feed in feeds] == [(1, 3, 8, 8), (1, 3, 9, 9)]
    assert [feed["mask"].shape for feed in feeds] == [(1, 7), (1, 7)]


@pytest.mark.parametrize(
    ("dims", "shapes", "text"),
    [
        ({"depth": 1}, "x:1x3x4x4", "no dimension depth; it has batch, height, width"),
        ({}, "y:1x3", "no input y; it has x"),
        ({}, "x:1x3x4", "3 sizes for the 4 axes"),
        ({}, "x:1x4x4x4", "axis 1 is 3 in the model, not 4"),
    ],
)
def test_what_does_not_fit_is_named(dims: dict[str, int], shapes: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        seeded_feeds([IMAGE], 0, dims, parse_shapes(shapes))


@pytest.mark.parametrize("text", ["batch", "=3", "batch=", "batch=00", "batch=-1", "batch=x"])
def test_bad_dims(text: str) -> None:
    with pytest.raises(InputError, match="give NAME=N"):
        parse_dims([text])


@pytest.mark.parametrize("text", ["1x3", "x:", "x:1x", "x:axb", "x:1x3,", ":1x2"])
def test_bad_shapes(text: str) -> None:
    with pytest.raises(InputError, match="give NAME:AxBxC"):
        parse_shapes(text)


_NAMES = st.text("abcdefgh_.:0123456789", min_size=1, max_size=8).filter(lambda name: not name.endswith(":"))


@given(st.dictionaries(_NAMES, st.integers(1, 10**6), max_size=4))
def test_dims_round_trip(dims: dict[str, int]) -> None:
    assert parse_dims([f"{name}={value}" for name, value in dims.items()]) == dims


@given(st.dictionaries(_NAMES, st.lists(st.lists(st.integers(0, 99), min_size=1), min_size=1), min_size=1, max_size=3))
def test_shapes_round_trip(shapes: dict[str, list[list[int]]]) -> None:
    text = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, asked in shapes.items() for shape in asked)
    assert parse_shapes(text) == {name: [tuple(shape) for shape in asked] for name, asked in shapes.items()}


@pytest.mark.parametrize(
    ("type_", "dtype"),
    [("float", "float32"), ("double", "float64"), ("float16", "float16"), ("int64", "int64"), ("uint8", "uint8")],
)
def test_types_and_seeds(type_: str, dtype: str) -> None:
    spec = InputSpec("x", f"tensor({type_})", (50,))
    first, again, other = (seeded_feeds([spec], seed, {}, {})[0]["x"] for seed in (1, 1, 2))
    assert first.dtype == np.dtype(dtype)
    assert first.tobytes() == again.tobytes() != other.tobytes()
    if first.dtype.kind in "iu":
        assert set(first.tolist()) == {0, 1}


def test_booleans_strings_and_optionals() -> None:
    specs = [
        InputSpec("b", "tensor(bool)", (9,)),
        InputSpec("s", "tensor(string)", (2, 2)),
        InputSpec("o", "optional(tensor(float))", (1,)),
    ]
    feed = seeded_feeds(specs, 0, {}, {})[0]
    assert feed["b"].dtype == np.bool_
    assert feed["s"].dtype == object
    assert feed["s"].shape == (2, 2)
    assert "o" not in feed


def _identity(element: int) -> Any:
    values = [helper.make_tensor_value_info(name, element, [6]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.skipif(
    not hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"), reason="this ONNX Runtime cannot make them"
)
@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"])
def test_types_that_numpy_lacks(name: str) -> None:
    element = getattr(TensorProto, name)
    session = _identity(element)
    specs = input_specs(session)
    assert specs == (InputSpec("x", f"tensor({name.lower()})", (6,)),)
    value = seeded_feeds(specs, 0, {}, {})[0]["x"]
    assert (value.data_type(), value.shape()) == (specs[0].type, [6])
    # As numbers, by a model that casts: the bits are those of 0.0 and 1.0.
    cast = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
        "g",
        [helper.make_tensor_value_info("x", element, [6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6])],
    )
    model = helper.make_model(cast, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    caster = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    numbers: Any = caster.run(None, {"x": value})[0]
    assert set(numbers.tolist()) == {0.0, 1.0}


def test_types_that_cannot_be_made_up() -> None:
    with pytest.raises(InputError, match=r"input q is a seq\(tensor\(float\)\), which cannot be made up"):
        seeded_feeds([InputSpec("q", "seq(tensor(float))", ())], 0, {}, {})


def test_npz_files(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.ones((1, 3, 2, 2), np.float32))
    assert load_npz(path, [IMAGE])["x"].shape == (1, 3, 2, 2)
    with pytest.raises(InputError, match="holds no mask; it holds x"):
        load_npz(path, [IMAGE, MASK])
    with pytest.raises(InputError, match="the model has no input x; it has mask"):
        load_npz(_with(tmp_path, x=1, mask=2), [MASK])
    optional = InputSpec("o", "optional(tensor(float))", (1,))
    assert set(load_npz(path, [IMAGE, optional])) == {"x"}


@pytest.mark.parametrize(
    ("type_", "array", "told"),
    [
        ("tensor(float)", np.ones(2), "x is float64, the model takes float32. Write it with array.astype("),
        ("optional(tensor(float))", np.ones(2, np.int32), "x is int32, the model takes float32. Write it with"),
        ("tensor(bfloat16)", np.ones(2, np.uint16), "x is uint16, the model takes tensor(bfloat16), which an .npz"),
        ("tensor(bfloat16)", np.ones(2, np.int32), "x is int32, the model takes tensor(bfloat16), which an .npz"),
        (
            "tensor(float8e5m2)",
            np.ones(2, np.uint8),
            "cannot hold. Leave --inputs out for made-up values, or put a Cast",
        ),
        ("seq(tensor(float))", np.ones(2, np.float32), "cannot hold. Use a model whose inputs are tensors"),
        ("tensor(string)", np.ones(2, np.int32), "x is int32, the model takes text. Write it with array.astype(str)."),
        ("tensor(string)", np.array([b"a", b"b"]), "x is |S1, the model takes text. Write it with array.astype(str)."),
    ],
)
def test_npz_files_of_other_types(tmp_path: Path, type_: str, array: NDArray[Any], told: str) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=array)
    with pytest.raises(InputError) as caught:
        load_npz(path, [InputSpec("x", type_, ())])
    assert str(caught.value).startswith(f"--inputs {path}: x is {array.dtype}, the model takes ")
    assert told in str(caught.value)


def test_npz_files_of_text(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.array([b"a", b"b"]).astype(str))
    feed = load_npz(path, [InputSpec("x", "tensor(string)", (2,))])
    assert feed["x"].tolist() == ["a", "b"]
    with pytest.raises(InputError, match=r"x has the shape \[2\], the model takes \[3\]"):
        load_npz(path, [InputSpec("x", "optional(tensor(string))", (3,))])


@pytest.mark.parametrize("content", ["not a zip", "empty", "one array", "cut short", "missing"])
def test_npz_files_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "in.npz"
    np.savez_compressed(path, x=np.arange(1000.0))
    if content == "not a zip":
        path.write_bytes(b"not a zip")
    elif content == "empty":
        path.write_bytes(b"")
    elif content == "one array":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif content == "cut short":
        path.write_bytes(path.read_bytes()[:-30])
    else:
        path.unlink()
    with pytest.raises(InputError, match=r"in.npz: .*Write it with numpy.savez"):
        load_npz(path, [IMAGE])


def test_text_is_no_npz_file(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    path.write_text("x = 1, 2, 3")
    with pytest.raises(InputError, match=r"in.npz: this is no .npz file. Write it with numpy.savez"):
        load_npz(path, [IMAGE])
    np.savez(path, x=np.array([{}], object))
    with pytest.raises(InputError, match=r"in.npz: x holds objects of Python, not numbers. Write"):
        load_npz(path, [IMAGE])


def test_sizes_of_nothing() -> None:
    spec = InputSpec("x", "tensor(float)", ("batch", 0, 3))
    assert seeded_feeds([spec], 0, {}, {})[0]["x"].shape == (1, 0, 3)
    assert seeded_feeds([spec], 0, parse_dims(["batch=0"]), {})[0]["x"].shape == (0, 0, 3)
    with pytest.raises(InputError, match="axis 1 is 0 in the model, not 2"):
        seeded_feeds([spec], 0, {}, parse_shapes("x:1x2x3"))


@pytest.mark.parametrize("shape", ["1x3x9999999x9999999", "1x3x99999999999999999999x1", "4611686018427387904x3x1024x2"])
def test_shapes_beyond_the_memory(shape: str) -> None:
    with pytest.raises(InputError, match=f"{shape} does not fit in memory; give smaller sizes with --shapes"):
        seeded_feeds([IMAGE], 0, {}, parse_shapes(f"x:{shape}"))


def _with(folder: Path, **arrays: int) -> Path:
    path = folder / "more.npz"
    values: dict[str, Any] = {name: np.array(value) for name, value in arrays.items()}
    np.savez(path, **values)
    return path
