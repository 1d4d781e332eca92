"""The modes of a session, and which one is in force."""

from __future__ import annotations

import os
from enum import StrEnum

MODE_VARIABLE = "ORTLOCK_MODE"


class Mode(StrEnum):
    """How far ortlock goes.

    ``observe`` changes nothing and reports; ``pin`` pins all that can be pinned and reports what is not guaranteed;
    ``strict`` pins and raises :class:`ortlock.NotReproducibleError` for anything that is not guaranteed.
    """

    OBSERVE = "observe"
    PIN = "pin"
    STRICT = "strict"


def resolve_mode(mode: str | None) -> Mode:
    """Return the mode in force: the argument, else ``ORTLOCK_MODE``, else ``pin``.

    Raises:
        ValueError: the argument or the variable names no mode.
    """
    source, value = ("mode", mode) if mode is not None else (MODE_VARIABLE, os.environ.get(MODE_VARIABLE) or Mode.PIN)
    try:
        return Mode(value)
    except ValueError:
        names = ", ".join(repr(str(known)) for known in Mode)
        raise ValueError(f"{source}={value!r} is no mode of ortlock; choose one of {names}.") from None
