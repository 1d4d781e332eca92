"""csrc/cudnn/abi.h against cuDNN's own headers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .building import cudnn_wheels

ABI = Path(__file__).resolve().parents[2] / "csrc" / "cudnn" / "abi.h"


def _headers() -> str:
    """Text of the headers of the ``nvidia-cudnn-cu13`` wheel."""
    include = cudnn_wheels() / "cudnn" / "include"
    return "\n".join(path.read_text() for path in sorted(include.glob("*_v9.h")))


@pytest.fixture(scope="module")
def values() -> dict[str, int]:
    """Every enumerator of cuDNN's headers with an explicit value."""
    found = re.findall(r"\b(CUDNN_[A-Za-z0-9_]+)\b(?:\s+CUDNN_DEPRECATED_ENUM)?\s*=\s*(\d+)", _headers())
    return {name: int(value) for name, value in found}


def test_constants(values: dict[str, int]) -> None:
    ours = re.findall(r"constexpr (?:int|Status) (CUDNN_\w+) = (\d+);", ABI.read_text())
    assert len(ours) > 70
    assert {name: int(value) for name, value in ours} == {name: values[name] for name, _ in ours}


@pytest.mark.parametrize(
    ("array", "prefix"),
    [("kNumericalNotes", "CUDNN_NUMERICAL_NOTE_"), ("kBehaviorNotes", "CUDNN_BEHAVIOR_NOTE_")],
)
def test_note_names(values: dict[str, int], array: str, prefix: str) -> None:
    body = re.search(rf"{array}\[\] = \{{(.*?)\}};", ABI.read_text(), re.DOTALL)
    assert body is not None
    ours = re.findall(r'"(\w+)"', body[1])
    theirs = {value: name.removeprefix(prefix) for name, value in values.items() if name.startswith(prefix)}
    assert ours == [theirs[number] for number in range(values[f"{prefix}TYPE_COUNT"])]


def test_result_structure_of_a_search(values: dict[str, int]) -> None:
    text = _headers()
    fields = re.search(r"typedef struct cudnnConvolutionFwdAlgoPerfStruct \{(.*?)\}", text, re.DOTALL)
    assert fields is not None
    assert [line.split()[-1].rstrip(";") for line in fields[1].strip().splitlines()] == [
        "algo",
        "status",
        "time",
        "memory",
        "determinism",
        "mathType",
        "reserved[3]",
    ]
