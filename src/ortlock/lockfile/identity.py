"""Which environment a choice was made in, and how two of them differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from ortlock.environment import Environment
from ortlock.settings import CUDA, Kind, SettingState

RULE = "1"
"""The rule by which ortlock chooses among cuDNN's candidates (docs/architecture.md); counts up when it changes."""

Identity = Mapping[str, str | None]

_LONG = 60
"""Characters from which on a value is shown in part."""

# By machine: they decide about the CPU provider's bits, which the report judges, not about the choices on the GPU.
_BY_MACHINE = frozenset({"intra_op_num_threads", "inter_op_num_threads"})


def identity(environment: Environment, settings: Iterable[SettingState]) -> dict[str, str | None]:
    """Return what decides about the choices of a session, as flat text values.

    On CUDA these are the versions of the GPU's software, the GPU itself and the settings; on the CPU the processor.
    """
    values: dict[str, str | None] = {
        "ortlock rule": RULE,
        "onnxruntime": environment.onnxruntime,
        "onnxruntime build": environment.onnxruntime_build,
    }
    gpu = environment.gpu
    if gpu is None:
        values["cpu"] = environment.cpu.model
        values["cpu instruction sets"] = " ".join(environment.cpu.isa)
        values["libc"] = environment.libc
    else:
        values["gpu"] = gpu.name
        values["compute capability"] = gpu.compute_capability
        values["multiprocessors"] = None if gpu.sm_count is None else str(gpu.sm_count)
        values["driver"] = gpu.driver
        values["cuda runtime"] = gpu.cuda_runtime
        values["cudnn"] = gpu.cudnn
        values["cublas"] = gpu.cublas
        values["cublasLt"] = gpu.cublas_lt
    values["machine"] = environment.cpu.machine
    for name, value in environment.variables:
        values[f"variable {name}"] = value
    for state in settings:
        if state.kind == Kind.ENVIRONMENT or state.key in _BY_MACHINE or not state.value:
            continue
        if state.provider in (None, CUDA):
            values[f"setting {state.key}"] = state.value
    return values


def fingerprint(values: Identity) -> str:
    """Return 16 hexadecimal digits that stand for an identity."""
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()[:16]


def describe_difference(here: Identity, recorded: Iterable[Identity]) -> str:
    """Return how this environment differs from the nearest one that was recorded, for people."""
    others = list(recorded)
    if not others:
        return "it holds no environment yet"
    nearest = min((_difference(here, other) for other in others), key=len)
    count = "the environment" if len(others) == 1 else f"the nearest of {len(others)} environments"
    return f"{count} in it differs in " + "; ".join(nearest)


def _difference(here: Identity, other: Identity) -> list[str]:
    names = sorted({*here, *other}, key=lambda name: (name.startswith("setting"), name))
    return [
        f"{name}: {_shown(other, here, name)} in the file, {_shown(here, other, name)} here"
        for name in names
        if here.get(name) != other.get(name)
    ]


def _shown(values: Identity, others: Identity, name: str) -> str:
    value = values.get(name)
    if value is None:
        return "nothing"
    if len(value) < _LONG:
        return value
    # Of a long value the words that the other one lacks.
    known = (others.get(name) or "").split()
    own = [word for word in value.split() if word not in known]
    return f"... {' '.join(own)}" if own else f"{value[:_LONG]}..."
