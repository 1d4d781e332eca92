"""Wording of texts for people."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and what it counts, e.g. ``1 input`` or ``2 inputs``; ``plural`` if it is not the noun with s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"
