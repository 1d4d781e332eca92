"""Wording."""

from __future__ import annotations

import pytest

from ortlock.words import counted


@pytest.mark.parametrize(
    ("number", "words", "expected"),
    [
        (1, ("input",), "1 input"),
        (0, ("input",), "0 inputs"),
        (2, ("golden digest",), "2 golden digests"),
        (1, ("axis", "axes"), "1 axis"),
        (3, ("axis", "axes"), "3 axes"),
    ],
)
def test_counted(number: int, words: tuple[str, ...], expected: str) -> None:
    assert counted(number, *words) == expected
