"""What a lockfile holds."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from ortlock.native import Choice, PlanRecord

FORMAT: Final = "ortlock lockfile"
VERSION: Final = 1

_Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Digest = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_KnobValue = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_KnobType = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,9}$")]


class LockMode(StrEnum):
    """What a session does with its lockfile.

    ``replay`` runs what is written; ``record`` also writes down what is missing; ``update`` chooses everything anew
    and writes that down.
    """

    REPLAY = "replay"
    RECORD = "record"
    UPDATE = "update"


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that is not known here is an error: written back, it would be lost."""


class LockedChoice(_Strict, frozen=True):
    """What one operation runs."""

    api: Literal["graph", "legacy"]
    """cuDNN's graph API (``engine`` is an engine's global index), or the older one (an algorithm number)."""
    operation: str
    tensors: tuple[str, ...]
    attributes: str
    engine: _Natural
    knobs: dict[_KnobType, _KnobValue]
    """Values by knob type (graph API)."""
    math_type: Annotated[int, msgspec.Meta(ge=0, le=3)] | None
    """``cudnnMathType_t`` (legacy API)."""
    numerical_notes: tuple[str, ...]
    behavior_notes: tuple[str, ...]
    workspace_bytes: _Natural

    @classmethod
    def of(cls, plan: PlanRecord) -> LockedChoice:
        """Return what a lockfile holds of a choice."""
        return cls(
            api="legacy" if plan.api == "legacy" else "graph",
            operation=plan.operation,
            tensors=plan.tensors,
            attributes=plan.attributes,
            engine=plan.engine,
            knobs={str(knob): value for knob, value in plan.knobs},
            math_type=plan.math_type,
            numerical_notes=plan.numerical_notes,
            behavior_notes=plan.behavior_notes,
            workspace_bytes=max(plan.workspace_bytes, 0),
        )

    def native(self, key: str) -> Choice:
        """Return it as the native extension takes it."""
        return Choice(
            key=key,
            legacy=self.api == "legacy",
            engine=self.engine,
            knobs=tuple(sorted((int(knob), value) for knob, value in self.knobs.items())),
            math_type=self.math_type or 0,
            workspace_bytes=self.workspace_bytes,
        )


class Golden(_Strict, frozen=True):
    """What the model gave for one set of inputs."""

    inputs: dict[str, str]
    """Type and shape by name, for people; the key of this entry is the digest of their bytes."""
    outputs: _Digest
    threads: dict[str, str]
    """Settings for the numbers of CPU threads, by which the CPU provider's bits may differ."""


class ModelRecord(_Strict, frozen=True):
    """Which model the file is for."""

    name: str
    """File name when it was recorded, for people."""
    sha256: _Sha256
    """Of the model file's bytes; external data files are not included."""
    size: _Natural
    """Bytes."""


class Section(_Strict, frozen=True, omit_defaults=True):
    """One environment and what runs in it."""

    identity: dict[str, str | None]
    """What decides about the choices: versions, GPU, settings, ortlock's rule."""
    choices: dict[_Key, LockedChoice]
    golden: dict[_Digest, Golden] = {}
    """Digests of outputs by the digest of the inputs; left out of the file where there are none."""


class Lockfile(_Strict, frozen=True):
    """A whole file."""

    format: Literal["ortlock lockfile"]
    version: Literal[1]
    model: ModelRecord
    environments: dict[str, Section]
    """By fingerprint of the identity."""
