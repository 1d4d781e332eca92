"""What has been measured of operators, condensed from the operator sweeps, and the operators that are registered."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from ortlock.operators.rows import FOLDER
from ortlock.words import counted

MEASURED: Final = FOLDER / "measured.json"
REGISTERED: Final = FOLDER / "registered_cuda.json"


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sweep."""

    file: str
    """Its result file, in benchmarks/results."""
    provider: str
    device: str
    onnxruntime: str
    date: str


class Counted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all cases of an operator gave under one setting."""

    distinct: int
    """Different results among the runs of the worst case."""
    differ: int
    """Cases with more than one."""


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The cases of one operator on one provider that fall under one row of the table."""

    source: int
    """Position in the list of sources."""
    provider: str
    domain: str
    operator: str
    when: str | None = None
    """The row's condition."""
    cases: int
    runs: int
    """Of each case and setting."""
    types: tuple[str, ...]
    stock: Counted
    """ONNX Runtime's defaults."""
    deterministic: Counted
    """With ``use_deterministic_compute``."""
    differing: tuple[str, ...] = ()
    """Names of the cases that differ under one of the settings."""

    @property
    def varied(self) -> bool:
        """Whether any run of any case differed from another."""
        return bool(self.stock.differ or self.deterministic.differ)


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``measured.json``."""

    sources: tuple[Source, ...]
    operators: tuple[Measurement, ...]


class Registered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator of which a provider has a kernel."""

    domain: str
    name: str
    types: tuple[str, ...]
    """Element types of any of its inputs and outputs; none where they were not read."""


def read_measured(path: Path = MEASURED) -> Measured:
    """Return what has been measured."""
    return msgspec.json.decode(path.read_bytes(), type=Measured)


@cache
def measured() -> Measured:
    """Return what has been measured, read once."""
    return read_measured()


@cache
def measurements() -> dict[tuple[str, str, str], tuple[Measurement, ...]]:
    """Return the measurements by provider, domain and name of the operator."""
    found: dict[tuple[str, str, str], list[Measurement]] = {}
    for one in measured().operators:
        found.setdefault((one.provider, one.domain, one.operator), []).append(one)
    return {key: tuple(members) for key, members in found.items()}


@cache
def registered_on_cuda() -> tuple[Registered, ...]:
    """Return the operators that ONNX Runtime's CUDA provider registers."""
    return msgspec.json.decode(REGISTERED.read_bytes(), type=tuple[Registered, ...])


def in_words(one: Measurement) -> str:
    """Return a measurement as a sentence."""
    source = measured().sources[one.source]
    where = f"{source.device}, ORT {source.onnxruntime}"
    cases = f"{counted(one.cases, 'case')} of {counted(one.runs, 'run')} ({', '.join(one.types)})"
    if not one.varied:
        return f"{where}: {cases}, 1 distinct of {one.runs} in each, with use_deterministic_compute and without."
    return (
        f"{where}: {cases}; {_differing(one.stock, one.runs)} in stock, "
        f"{_differing(one.deterministic, one.runs)} with use_deterministic_compute."
    )


def _differing(counted: Counted, runs: int) -> str:
    if not counted.differ:
        return "none differs"
    return f"{counted.differ} differ{'s' if counted.differ == 1 else ''}, up to {counted.distinct} distinct of {runs}"
