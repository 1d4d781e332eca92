"""``ortlock doctor``: what is here, what can be pinned, whether interception works, what to do if not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from ortlock.cli.options import (
    CPU,
    CUDA,
    DOES_NOT_HOLD,
    HOLDS,
    json_option,
    preload_cuda_libraries,
    show_json,
    show_table,
)


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Say what is here, what can be pinned, whether cuDNN can be intercepted, and what to do if not."""
    import onnxruntime

    from ortlock import native
    from ortlock.environment import environment
    from ortlock.policy import Mode
    from ortlock.settings import resolve

    offered = onnxruntime.get_available_providers()
    cause = None
    if CUDA in offered:
        preload_cuda_libraries()
        native.load_cuda_provider()
        cause = _why_not()
    state = native.state()
    usable = CUDA in offered and state.loaded and cause is None
    surroundings = environment(cuda=usable, cudnn_path=state.cudnn_path if usable else None).to_dict()
    providers = [CUDA, CPU] if CUDA in offered else [CPU]
    settings = resolve(
        Mode.PIN, onnxruntime.SessionOptions(), providers, [{}, {}], os.environ, onnxruntime.__version__
    ).states
    advice = list(_advice(offered, usable, cause, state))
    works = not (usable and (not state.attached or state.late or state.faults))
    if as_json:
        show_json(
            {
                "works": works,
                "available_providers": offered,
                "cuda_usable": usable,
                "cuda_problem": cause,
                "interposer": asdict(state),
                "environment": surroundings,
                "settings": [setting.to_dict() for setting in settings],
                "advice": advice,
            }
        )
    else:
        show_table("Environment", ("what", "value"), list(_flatten(surroundings)))
        show_table("Interception", ("what", "value"), [(k, v) for k, v in asdict(state).items() if v not in ({}, ())])
        rows = [
            (setting.key, setting.kind, setting.value, setting.origin)
            for setting in settings
            if setting.origin != "default" and setting.value
        ]
        show_table(
            "Settings in mode pin, those that are not ONNX Runtime's defaults",
            ("setting", "kind", "value", "origin"),
            rows,
        )
        for line in advice:
            print(line)
    return HOLDS if works else DOES_NOT_HOLD


def _why_not() -> str | None:
    """Return why CUDA cannot be used although this ONNX Runtime has the provider; None if it can."""
    import numpy as np
    import onnxruntime

    try:
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    except Exception as error:
        return " ".join(str(error).split())
    return None


def _advice(offered: list[str], usable: bool, cause: str | None, state: Any) -> Iterator[str]:
    if CUDA not in offered:
        yield (
            "CUDA: this onnxruntime has no CUDA provider. Sessions run on the CPU, where ortlock pins the number of "
            "threads. For a GPU: pip uninstall onnxruntime, then pip install 'ortlock[cuda13]' (or [cuda12])."
        )
        return
    if not usable:
        yield f"CUDA: the provider cannot be used here: {cause or 'its library could not be loaded'}"
        yield (
            "      Look at nvidia-smi for the driver; CUDA and cuDNN libraries come with pip install 'ortlock[cuda13]' "
            "(or [cuda12]) and are found after onnxruntime.preload_dlls()."
        )
        return
    if not state.attached:
        yield f"cuDNN: calls cannot be intercepted: {'; '.join(state.faults) or 'no slot was found'}"
    elif state.late:
        yield "cuDNN: a CUDA session ran before ortlock was imported. Import ortlock first, in a new process."
    else:
        yield f"cuDNN: intercepted ({state.style}, {state.slots} slots). Everything is in place."


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}.")
        elif isinstance(value, list | tuple):
            if value:
                yield name, " ".join(str(item) for item in value)
        elif value is not None:
            yield name, value
