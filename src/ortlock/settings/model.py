"""What a setting is: the row type of :mod:`ortlock.settings.table`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"

NEWEST_CHECKED = (1, 31)
"""Newest ONNX Runtime whose CUDA provider was read. Newer ones may have dropped a provider option, and ONNX Runtime
refuses options that it does not know, so nothing is pinned there by provider option unless the caller gave it."""


class Kind(StrEnum):
    """Where a setting is given."""

    SESSION_OPTION = "session option"
    CONFIG_ENTRY = "config entry"
    PROVIDER_OPTION = "provider option"
    ENVIRONMENT = "environment variable"


class OwnValue(StrEnum):
    """What happens to a value of the caller's that is not safe."""

    KEEP = "kept"
    """No value is known to break reproducibility by itself, so the caller's stays."""
    WARN = "kept with a warning"
    """Not reproducible, and nothing can be put in its place: ``pin`` keeps it and warns, ``strict`` refuses."""
    OVERRIDE = "overridden"
    """Not reproducible or wrong: ``pin`` replaces it and warns, ``strict`` refuses."""


class Support(StrEnum):
    """Whether an ONNX Runtime version has a setting."""

    YES = "yes"
    MAYBE = "maybe"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Setting:
    """One option that can change the bits of an output."""

    key: str
    kind: Kind
    provider: str | None
    """The execution provider it belongs to; None: every session."""
    effect: str
    """What it does to the bits."""
    since: str
    """First ONNX Runtime version known to have it; ``<=1.19``: older than what was checked; empty: not ORT's own."""
    default: str
    evidence: str
    """The measurement or the source that says so."""
    absent: str | None = None
    """Newest checked version that does not have it; between this one and ``since`` nothing was checked."""
    until: str | None = None
    """Last version that has it."""
    pinned: str | None = None
    """Value in pin and strict where the caller gave none; None: left alone and recorded."""
    own_value: OwnValue = OwnValue.KEEP
    safe_values: frozenset[str] = frozenset()
    """Values of the caller's, normalised, that need neither warning nor override."""
    domain: frozenset[str] | None = None
    """All values, normalised, that ONNX Runtime accepts; others are left for it to refuse in its own words."""
    unless: tuple[str, str] | None = None
    """Another option of the same provider and its normalised value under which every value is safe."""
    operators: tuple[str, ...] = ()
    """Operator types whose bits are at stake; empty: any."""
    remedy: str = ""

    @property
    def replacement(self) -> str | None:
        """What an unsafe value is replaced with; None: the environment variable is unset."""
        if self.kind is Kind.ENVIRONMENT:
            return None
        return self.pinned if self.pinned is not None else self.default

    def support(self, version: tuple[int, int]) -> Support:
        """Return whether the ONNX Runtime ``version`` (major, minor) has the setting."""
        if self.until is not None and version > parse_version(self.until):
            return Support.NO
        if self.since and not self.since.startswith("<=") and version < parse_version(self.since):
            unchecked = self.absent is not None and version > parse_version(self.absent)
            return Support.MAYBE if unchecked else Support.NO
        if self.kind is Kind.PROVIDER_OPTION and version > NEWEST_CHECKED:
            return Support.MAYBE
        return Support.YES


def parse_version(text: str) -> tuple[int, int]:
    """Return (major, minor) of ``1.31.1``, ``1.32.0.dev20260101``, ``1.31``; (0, 0) where there is no number."""
    match = re.match(r"\D*(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def normalise(value: object) -> str:
    """Return an option value of any type in the form that values are compared in: booleans are ``1`` and ``0``."""
    name = getattr(value, "name", None)
    text = (name if isinstance(name, str) else str(value)).strip()
    match text.lower():
        case "1" | "true" | "on" | "yes":
            return "1"
        case "0" | "false" | "off" | "no" | "":
            return "0"
    return text
