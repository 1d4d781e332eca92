"""What came out for each setting, and what a session has to set."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ortlock.errors import NotReproducibleError


class Origin(StrEnum):
    """Where the value in force comes from."""

    DEFAULT = "default"
    USER = "user"
    PINNED = "pinned"
    OVERRIDDEN = "overridden"
    ENVIRONMENT = "environment"
    UNSUPPORTED = "not in this version"
    NOT_PINNED = "could not be pinned"


@dataclass(frozen=True, slots=True)
class SettingState:
    """One setting of one session."""

    key: str
    kind: str
    provider: str | None
    value: str
    """In force; empty where nothing is set or this version does not have the setting."""
    requested: str | None
    """The caller's own value."""
    origin: Origin
    note: str
    breaks: bool
    """With the value in force the same bits are not promised for ``operators``; the note says what happens."""
    operators: tuple[str, ...] = ()
    """Operator types whose bits are at stake; empty: any."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "key": self.key,
            "kind": str(self.kind),
            "provider": self.provider,
            "value": self.value,
            "requested": self.requested,
            "origin": str(self.origin),
            "note": self.note,
            "breaks": self.breaks,
            "operators": list(self.operators),
        }


@dataclass(frozen=True)
class Resolution:
    """What to set for a session, and what to say about it."""

    attributes: dict[str, Any] = field(default_factory=dict)
    """``SessionOptions`` attributes to set."""
    config_entries: dict[str, str] = field(default_factory=dict)
    """Session configuration entries to add."""
    provider_options: dict[str, dict[str, str]] = field(default_factory=dict)
    """By provider name, to merge over the caller's."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables to set, or with None to unset, only while the session is created."""
    states: tuple[SettingState, ...] = ()
    warnings: tuple[str, ...] = ()
    """One text for each cause, for :class:`ortlock.ReproducibilityWarning`. Empty in observe and strict."""
    refusals: tuple[NotReproducibleError, ...] = ()
    """Strict: what to raise, the first of them first."""
