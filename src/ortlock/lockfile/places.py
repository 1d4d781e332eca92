"""Where in a JSON text things stand, so that an error can be told with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

Place = tuple[str | int, ...]
"""Keys of objects and positions in arrays, from the outside in."""

_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*"|[{}\[\],])\s*', re.DOTALL)
"""What gives a JSON text its shape, and the space behind it."""


def line_of(text: str, place: Place) -> int:
    """Return the line of a place in a valid JSON text, of its key if it has one; of what it is in if it is not there.

    Lines count from 1.
    """
    nearest: tuple[int, int] = (0, 0)
    for found, position in _places(text):
        if found == place[: len(found)] and len(found) > nearest[0]:
            nearest = (len(found), position)
            if found == place:
                break
    return _line(text, nearest[1])


def first_duplicate(text: str) -> tuple[str, int]:
    """Return the first key of a valid JSON text that comes a second time in its object, and the line where it does.

    Raises:
        ValueError: no key does.
    """
    seen: set[Place] = set()
    for place, position in _places(text):
        if place in seen:
            return str(place[-1]), _line(text, position)
        seen.add(place)
    raise ValueError("no key comes twice")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _places(text: str) -> Iterator[tuple[Place, int]]:
    """Yield the keys of objects and the items of arrays, and where they begin, in the order of the text."""
    # For each object or array that is open: the key, or the position, that it has come to.
    reached: list[str | int] = []
    key_follows = False
    for match in _TOKEN.finditer(text):
        token = match[1]
        if token in ("}", "]"):
            reached.pop()
            key_follows = False
        elif token in ("{", "["):
            reached.append("" if token == "{" else -1)
        if token in ("{", "[", ","):
            last = reached[-1]
            key_follows = isinstance(last, str)
            if isinstance(last, int):
                reached[-1] = last + 1
                yield tuple(reached), match.end()
        elif key_follows:
            reached[-1] = json.loads(token)
            key_follows = False
            yield tuple(reached), match.start()
