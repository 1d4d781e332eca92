"""Digests of outputs: equal for equal outputs, different for any difference."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortlock import digest

ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float64, np.float16, np.int8, np.int64, np.uint16, np.bool_]),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


def _field(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def test_the_documented_encoding() -> None:
    array = np.array([[1, 2, 3]], np.int16)
    parts = [b"y", b"array", b"int16", struct.pack("<2q", 1, 3), array.tobytes()]
    expected = hashlib.sha256(b"".join(_field(part) for part in parts)).hexdigest()
    assert digest([array], ["y"]) == f"sha256:{expected}"


@given(ARRAYS)
def test_layout_and_byte_order_do_not_matter(array: np.ndarray[Any, Any]) -> None:
    expected = digest([array])
    assert digest([np.array(array, order="F")]) == expected
    assert digest([array.astype(array.dtype.newbyteorder(">"))]) == expected
    padded = np.zeros((*array.shape, 2), array.dtype)
    padded[..., 0] = array
    assert digest([padded[..., 0]]) == expected
    assert digest({"0": array}) == expected


@given(ARRAYS, st.data())
def test_one_changed_bit_changes_it(array: np.ndarray[Any, Any], data: st.DataObject) -> None:
    raw = bytearray(array.tobytes())
    if not raw or array.dtype == np.bool_:
        return
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    changed = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
    assert digest([changed]) != digest([array])


def test_what_compares_equal_is_told_apart_by_its_bytes() -> None:
    zeros = np.array([0.0], np.float32), np.array([-0.0], np.float32)
    nans = np.array([0x7FC00000], np.uint32).view(np.float32), np.array([0x7FC00001], np.uint32).view(np.float32)
    assert digest([zeros[0]]) != digest([zeros[1]])
    assert digest([nans[0]]) != digest([nans[1]])


def test_names_shapes_types_and_order_count() -> None:
    a, b = np.arange(6, dtype=np.float32), np.ones(2, np.float32)
    all_different = [
        digest([a]),
        digest([a], ["y"]),
        digest([a.reshape(2, 3)]),
        digest([a.reshape(3, 2)]),
        digest([a.view(np.int32)]),
        digest([a, b]),
        digest([b, a]),
        digest([[a, b]]),
        digest([]),
        digest([None]),
        digest([np.zeros((0, 3), np.float32)]),
        digest([np.zeros((3, 0), np.float32)]),
        digest([{"k": 1.0}]),
        digest([{"k": 2.0}]),
        digest([[["k", 1.0]]]),
        digest([np.array(["a", "bc"], object)]),
        digest([np.array(["ab", "c"], object)]),
    ]
    assert len(set(all_different)) == len(all_different)


NO_OUTPUTS: dict[str, tuple[Any, str]] = {
    "none": (None, "not None."),
    "number": (3, "not int."),
    "array": (np.zeros((2, 3), np.float32), "not ndarray. Put a single output into a list."),
    "text": ("ab", "not str."),
    "set": ({1.0, 2.0}, "not set."),
}


@pytest.mark.parametrize("name", NO_OUTPUTS)
def test_what_is_no_list_of_outputs_is_refused(name: str) -> None:
    """The rows of an array, or the letters of a text, would be taken for outputs."""
    value, told = NO_OUTPUTS[name]
    with pytest.raises(TypeError) as raised:
        digest(value)
    assert str(raised.value) == f"outputs: give the list of outputs that a run returned, {told}"


def test_outputs_in_any_sequence() -> None:
    a, b = np.arange(6, dtype=np.float32), np.ones(2, np.float32)
    assert digest((a, b)) == digest([a, b]) == digest({"0": a, "1": b})


def test_names_that_are_one_text_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^names='ab': give a list of names: \['ab'\]\.$"):
        digest([1.0, 2.0], "ab")


def test_maps_do_not_depend_on_insertion_order() -> None:
    assert digest([[{1: 0.5, 0: 0.25}]]) == digest([[{0: 0.25, 1: 0.5}]])


def test_ort_values_equal_arrays() -> None:
    array = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert digest([onnxruntime.OrtValue.ortvalue_from_numpy(array)]) == digest([array])


def test_types_that_numpy_lacks() -> None:
    bits = np.array([[0x3F80, 0x4000], [0, 0x8000]], np.uint16)
    make = getattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type", None)
    if make is None:
        pytest.skip("this ONNX Runtime makes no bfloat16 values from Python")
    bfloat16 = 16
    assert digest([make(bits, bfloat16)]) == digest([make(bits.copy(), bfloat16)])
    assert digest([make(bits, bfloat16)]) != digest([make(bits + 1, bfloat16)])
    assert digest([make(bits, bfloat16)]) != digest([bits])


def test_sparse_tensors() -> None:
    def sparse(value: float, index: int) -> Any:
        return onnxruntime.SparseTensor.sparse_coo_from_numpy(
            np.array([3, 3], np.int64), np.array([value], np.float32), np.array([index], np.int64), _cpu()
        )

    assert digest([sparse(1, 2)]) == digest([sparse(1, 2)])
    assert len({digest([sparse(1, 2)]), digest([sparse(1, 3)]), digest([sparse(2, 2)])}) == 3


def _cpu() -> Any:
    return onnxruntime.OrtDevice.make("cpu", 0)


def test_errors() -> None:
    with pytest.raises(ValueError, match="1 output but 2 names"):
        digest([np.ones(1)], ["a", "b"])
    with pytest.raises(TypeError, match="no defined digest"):
        digest([object()])
