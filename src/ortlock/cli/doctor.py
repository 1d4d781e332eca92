"""``ortlock doctor``: what is here, what can be pinned, whether interception works, what to do if not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from ortlock.cli.options import (
    BAD_INPUT,
    CPU,
    CUDA,
    DOES_NOT_HOLD,
    HOLDS,
    cuda_problem,
    json_option,
    nothing_but_json,
    show_json,
    show_table,
)


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Say what is here, what can be pinned, whether cuDNN can be intercepted, and what to do if not.

    Exit status 2 if ONNX Runtime has a CUDA provider that cannot be used here: nothing can be told of it then.
    """
    import onnxruntime

    from ortlock import native
    from ortlock.environment import environment
    from ortlock.policy import Mode
    from ortlock.settings import resolve

    offered = onnxruntime.get_available_providers()
    with nothing_but_json(as_json):
        cause = cuda_problem() if CUDA in offered else None
    state = native.state()
    usable = CUDA in offered and state.loaded and cause is None
    surroundings = environment(cuda=usable, cudnn_path=state.cudnn_path if usable else None).to_dict()
    providers = [CUDA, CPU] if CUDA in offered else [CPU]
    settings = resolve(
        Mode.PIN, onnxruntime.SessionOptions(), providers, [{}, {}], os.environ, onnxruntime.__version__
    ).states
    advice = list(_advice(offered, usable, cause, state))
    works: bool | None = None
    if CUDA not in offered or usable:
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
    return BAD_INPUT if works is None else HOLDS if works else DOES_NOT_HOLD


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
        yield (
            "cuDNN: a CUDA session ran in this process before ortlock was there. In a new process, make the first "
            "ReproducibleSession before any other CUDA session."
        )
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
