"""The outputs themselves beside the golden digests of a lockfile: one .npz file, its arrays named DIGEST/OUTPUT.

DIGEST is the golden digest of the outputs, without ``sha256:``, so what the file holds can be checked by the lockfile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortlock.compare.metrics import Difference, difference
from ortlock.digest import digest
from ortlock.errors import GoldenOutputsError, LockfileError
from ortlock.lockfile.atomic import replacing
from ortlock.lockfile.files import locked
from ortlock.npz import NpzError, read_npz

Arrays = Mapping[str, NDArray[Any]]
"""Outputs by name."""

_ALGORITHM = "sha256:"

_WRITE = "Write it together with the lockfile: ortlock verify MODEL --lock FILE --golden --golden-outputs FILE.npz."


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """One output against the golden one."""

    name: str
    difference: Difference


class GoldenOutputs:
    """What a file of golden outputs holds.

    Raises:
        GoldenOutputsError: it cannot be read, or is another kind of file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held: dict[str, dict[str, NDArray[Any]]] = {}
        """Outputs by their golden digest and name."""
        try:
            arrays = read_npz(path)
        except NpzError as error:
            raise GoldenOutputsError(path, f"it cannot be read: {error}.", _WRITE) from error
        for key, array in arrays.items():
            found, separator, name = key.partition("/")
            if not separator:
                reason = f"it holds no golden outputs: an array is named {key!r}, not DIGEST/OUTPUT."
                raise GoldenOutputsError(path, reason, "Give another path.")
            self.held.setdefault(_ALGORITHM + found, {})[name] = array

    def of(self, golden: str, now: Arrays) -> Arrays:
        """Return the outputs with a golden digest.

        Args:
            golden: the digest that the lockfile holds.
            now: what the model gives for the same inputs.

        Raises:
            GoldenOutputsError: the file has none, lacks an output, or holds others than the lockfile says.
        """
        found = self.held.get(golden)
        if found is None:
            raise GoldenOutputsError(self.path, f"it holds no outputs with the golden digest {_short(golden)}.", _WRITE)
        if missing := [name for name in now if name not in found]:
            reason = f"it lacks the output {', '.join(missing)} of the golden digest {_short(golden)}."
            raise GoldenOutputsError(self.path, reason, _WRITE)
        if digest([found[name] for name in now], list(now)) == golden:
            return {name: found[name] for name in now}
        for name, value in now.items():
            if _kind(found[name]) != _kind(value):
                reason = f"output {name} is {_kind(found[name])}, and the model gives {_kind(value)}."
                raise GoldenOutputsError(self.path, reason, _WRITE)
        reason = f"its outputs are not those with the digest {_short(golden)} that the lockfile holds."
        raise GoldenOutputsError(self.path, reason, _WRITE)


def write_outputs(path: Path, new: Mapping[str, Arrays], kept: Collection[str]) -> None:
    """Write outputs by their golden digests to a file, and keep those that it holds for the digests in ``kept``.

    Raises:
        GoldenOutputsError: the file cannot be written, or what is there is another kind of file; it is left as it is.
    """
    try:
        with locked(path):
            before = GoldenOutputs(path).held if path.exists() else {}
            held = {**{key: value for key, value in before.items() if key in kept}, **new}
            arrays: dict[str, Any] = {
                f"{key.removeprefix(_ALGORITHM)}/{name}": array
                for key, outputs in sorted(held.items())
                for name, array in outputs.items()
            }
            with replacing(path) as file:
                np.savez(file, **arrays)
    except LockfileError as error:
        raise GoldenOutputsError(path, error.reason, error.remedy) from error
    except OSError as error:
        remedy = "Check that its folder is there, can be written to and has room. The previous file is as it was."
        raise GoldenOutputsError(path, f"it cannot be written: {error.strerror}.", remedy) from error


def run_for_arrays(session: Any, feed: Mapping[str, Any], path: Path) -> Arrays:
    """Return the outputs of one run by name.

    Args:
        session: what is run.
        feed: its inputs.
        path: the file that they go to, or come from, for errors.

    Raises:
        GoldenOutputsError: an output is no array of numbers.
    """
    names = [value.name for value in session.get_outputs()]
    found = dict(zip(names, session.run(None, feed), strict=True))
    for name, value in found.items():
        if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "fiubc":
            reason = f"output {name} is no array of numbers, and an .npz file holds nothing else."
            raise GoldenOutputsError(path, reason, "Leave --golden-outputs out; digests can be had of every output.")
    return {name: np.asarray(value) for name, value in found.items()}


def differences(golden: Arrays, now: Arrays) -> tuple[OutputDifference, ...]:
    """Return how far each output is from the golden one."""
    return tuple(OutputDifference(name, difference(golden[name], value)) for name, value in now.items())


def check_verified(path: Path, values: Arrays, verified: str) -> None:
    """Check that outputs are those whose digest was verified.

    Raises:
        GoldenOutputsError: they are others.
    """
    if digest(list(values.values()), list(values)) != verified:
        reason = f"one more run gave other bits than the verified {_short(verified)}. Nothing was written."
        raise GoldenOutputsError(path, reason, "Verify with more --runs.")


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _short(text: str) -> str:
    return f"{text[:23]}..."
