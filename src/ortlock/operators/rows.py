"""The operator table: its files, their form, and the rows of one operator."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from ortlock.operators.conditions import CONDITIONS

FOLDER: Final = Path(__file__).with_name("table")
PROVIDERS: Final = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}


class OperatorStatus(StrEnum):
    """How an operator's outputs repeat."""

    DETERMINISTIC = "deterministic"
    SETTING = "deterministic with a setting"
    NONDETERMINISTIC = "nondeterministic"
    STATEFUL = "stateful"
    UNKNOWN = "unknown"


class Basis(StrEnum):
    """What a statement rests on."""

    CONSTRUCTION = "by construction"
    EVIDENCE = "by evidence"
    NONE = "none"


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Provider = Literal["cuda", "cpu"]
_Domain = Literal["", "com.microsoft", "com.ms.internal.nhwc", "com.microsoft.nchwc", "ai.onnx.ml", "org.pytorch.aten"]
_Versions = Annotated[str, msgspec.Meta(pattern=r"^(>=|<)\d+\.\d+( <\d+\.\d+)?$")]
# Statuses that claim something of a run, which needs a measurement.
CLAIMS: Final = frozenset({OperatorStatus.DETERMINISTIC, OperatorStatus.SETTING})
_NEEDS_REMEDY = frozenset({OperatorStatus.SETTING, OperatorStatus.NONDETERMINISTIC, OperatorStatus.STATEFUL})


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of a group of operators that share a mechanism, on one provider."""

    operators: _Text
    """Their names, separated by blanks."""
    provider: _Provider
    status: OperatorStatus
    basis: Basis
    reason: _Text
    domain: _Domain = ""
    when: str | None = None
    """Name of a condition; None: in every other case."""
    ort: _Versions | None = None
    """Versions of ONNX Runtime that it concerns, such as ``>=1.20 <1.31``; None: all."""
    remedy: str = ""
    setting: str | None = None
    """Key of the setting that makes it deterministic."""
    evidence: str = ""
    """Measured elsewhere than in the sweep, or documented."""
    through_cudnn: bool = False
    """Whether the interposer sees to it, plan by plan, whatever stock ONNX Runtime does."""
    computes: bool = True
    """False: it only runs, passes on or describes what others computed, so that nothing need be measured."""
    placement: Literal["cpu"] | None = None
    """Where it runs deterministically instead."""
    rewrite: str | None = None
    """What it can be replaced by."""

    def __post_init__(self) -> None:
        """Check what the types do not say.

        Raises:
            ValueError: a statement that contradicts itself, or an unknown condition.
        """
        if self.when is not None and self.when not in CONDITIONS:
            raise ValueError(f"unknown condition {self.when!r}")
        if (self.status is OperatorStatus.UNKNOWN) != (self.basis is Basis.NONE):
            raise ValueError(f"status {self.status!r} does not go with basis {self.basis!r}")
        if self.status is OperatorStatus.SETTING and self.setting is None:
            raise ValueError(f"status {self.status!r} without a setting")
        if self.status in _NEEDS_REMEDY and not self.remedy:
            raise ValueError(f"status {self.status!r} without a remedy")
        if self.status is OperatorStatus.DETERMINISTIC and (self.placement or self.rewrite):
            raise ValueError("a deterministic operator needs neither placement nor rewrite")
        if self.through_cudnn and self.provider != "cuda":
            raise ValueError("only the CUDA provider computes through cuDNN")
        names = self.names
        if len(set(names)) != len(names):
            raise ValueError(f"an operator twice: {' '.join(sorted(name for name in names if names.count(name) > 1))}")

    @property
    def names(self) -> tuple[str, ...]:
        """The operators' names."""
        return tuple(self.operators.split())

    @property
    def needs_measurement(self) -> bool:
        """Whether it may only be said of an operator that somebody has measured."""
        return self.status in CLAIMS and self.computes and not self.through_cudnn

    def concerns(self, version: tuple[int, int] | None) -> bool:
        """Return whether it concerns a version of ONNX Runtime; any where the version is not known."""
        if self.ort is None or version is None:
            return True
        parts = re.findall(r"(>=|<)(\d+)\.(\d+)", self.ort)
        return all(
            version >= (int(major), int(minor)) if sign == ">=" else version < (int(major), int(minor))
            for sign, major, minor in parts
        )


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the table."""

    title: _Text
    about: _Text
    row: tuple[Row, ...]


class TableError(ValueError):
    """A file of the table that is not as it must be."""


Key = tuple[str, str, str]
"""Provider (``cuda`` or ``cpu``), domain and name of an operator."""


def parse(name: str, text: str) -> Family:
    """Return a file of the table from its text.

    Raises:
        TableError: names the file and what is wrong.
    """
    try:
        return msgspec.convert(tomllib.loads(text), Family)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TableError(f"{name}: {error}") from error


def index(families: Mapping[str, Family]) -> dict[Key, tuple[Row, ...]]:
    """Return each operator's rows, in the order in which they are tried.

    Raises:
        TableError: an operator in several files, or a row that none can reach.
    """
    found: dict[Key, list[Row]] = defaultdict(list)
    homes: dict[Key, str] = {}
    for name, family in families.items():
        for row in family.row:
            for operator in row.names:
                key: Key = (row.provider, row.domain, operator)
                if homes.setdefault(key, name) != name:
                    raise TableError(f"{name}: {operator} is in {homes[key]} as well")
                if any(earlier.when in (None, row.when) and earlier.ort in (None, row.ort) for earlier in found[key]):
                    raise TableError(f"{name}: a row of {operator} comes after one that covers it")
                found[key].append(row)
    for key, rows in found.items():
        if rows[-1].when is not None:
            raise TableError(f"{homes[key]}: {key[2]} has no row for the case that no condition holds")
    return {key: tuple(rows) for key, rows in found.items()}


@cache
def rows_of(key: Key) -> tuple[Row, ...]:
    """Return the rows of an operator; none where the table does not know it.

    Only the files that mention the operator are parsed: a session needs a few of them, and TOML takes its time.
    """
    for name, text in _texts().items():
        if key[2] in text and (found := _rows_of_family(name).get(key)):
            return found
    return ()


@cache
def _texts() -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.toml"))}


@cache
def _family(name: str) -> Family:
    return parse(name, _texts()[name])


@cache
def _rows_of_family(name: str) -> dict[Key, tuple[Row, ...]]:
    return index({name: _family(name)})


def families() -> dict[str, Family]:
    """Return the whole table, by the files' names, which are in alphabetical order."""
    return {name: _family(name) for name in _texts()}


@cache
def rows() -> dict[Key, tuple[Row, ...]]:
    """Return the rows of all operators.

    Raises:
        TableError: see ``index``.
    """
    return index(families())
