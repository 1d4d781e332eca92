"""Runs sessions in a process of its own and prints what came out as JSON, for evidence.py.

Reads one JSON object from standard input: ``{"import_first": [modules], "stock_first": job or null, "jobs": [job]}``.
A job is ``{"name", "model": {"build": function of ortlock.models, "args": {}} or {"path": file}, "input": {"shape",
"dtype"} or {"photo": size}, "side": "stock", "observe", "pin" or "strict", "sessions", "runs", "provider",
"provider_options", "threads"}``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def model_of(spec: dict[str, Any]) -> bytes:
    """Return the bytes of a job's model."""
    if "path" in spec:
        return Path(spec["path"]).read_bytes()
    # Loaded by file: the package itself must not be imported where a job asks for being too late.
    source = importlib.util.find_spec("ortlock")
    assert source is not None
    assert source.submodule_search_locations is not None
    for folder in source.submodule_search_locations:
        path = Path(folder) / "models.py"
        if path.exists():
            spec_ = importlib.util.spec_from_file_location("_models", path)
            assert spec_ is not None
            assert spec_.loader is not None
            module = importlib.util.module_from_spec(spec_)
            spec_.loader.exec_module(module)
            built: bytes = getattr(module, spec["build"])(**spec.get("args", {}))
            return built
    raise FileNotFoundError("ortlock.models")


def input_of(spec: dict[str, Any]) -> Any:
    """Return a job's input: seeded normal numbers, or a photo as PP-OCR takes it."""
    if "photo" in spec:
        from sklearn.datasets import load_sample_image

        height, width = spec["photo"]
        photo = load_sample_image("china.jpg")[:height, :width, ::-1].astype(np.float32) / 255
        mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        return np.ascontiguousarray(((photo - mean) / deviation).transpose(2, 0, 1)[None], np.float32)
    return np.random.default_rng(0).standard_normal(spec["shape"]).astype(spec["dtype"])


def make(job: dict[str, Any], data: bytes) -> Any:
    """Return a session of a job's side."""
    providers: list[Any] = [(job["provider"], dict(job.get("provider_options", {}))), "CPUExecutionProvider"]
    if job["provider"] == "CPUExecutionProvider":
        providers = ["CPUExecutionProvider"]
    if job["side"] == "stock":
        return onnxruntime.InferenceSession(data, providers=providers)
    from ortlock import ReproducibleSession

    return ReproducibleSession(data, providers=providers, mode=job["side"])


def perform(job: dict[str, Any]) -> dict[str, Any]:
    """Return digests (one list a session), deviation from a constant if asked for, warnings, report and error."""
    result: dict[str, Any] = {"name": job["name"], "side": job["side"], "digests": [], "error": None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            data, x = model_of(job["model"]), input_of(job["input"])
            for _ in range(job.get("sessions", 1)):
                session = make(job, data)
                name = session.get_inputs()[0].name
                outputs = run_all(session, name, x, job)
                result["digests"].append([_digest(out) for out in outputs])
                result["providers"] = session.get_providers()
                if "constant" in job:
                    off = [float(np.abs(out[0].astype(np.float64) - job["constant"]).max()) for out in outputs]
                    result["deviations"] = off
            if job["side"] != "stock":
                report = session.report()
                result["verdict"] = str(report.verdict)
                result["reasons"] = [f"{reason.subject}: {reason.text}" for reason in report.reasons]
                result["plans"] = [
                    {"operation": p.operation, "engine": p.engine, "status": p.status, "notes": p.numerical_notes}
                    for p in report.plans
                ]
                result["calls"] = report.calls
                result["style"] = report.interposer.style
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
    result["warnings"] = [f"{entry.category.__name__}: {entry.message}" for entry in caught]
    return result


def run_all(session: Any, name: str, x: Any, job: dict[str, Any]) -> list[Any]:
    """Run as often as the job says, from as many threads."""
    runs, threads = job.get("runs", 1), job.get("threads", 1)
    if threads == 1:
        return [session.run(None, {name: x}) for _ in range(runs)]
    outputs: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(runs):
                outputs.append(session.run(None, {name: x}))
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return outputs


def _digest(outputs: list[Any]) -> str:
    state = hashlib.sha256()
    for array in outputs:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:16]


def _torch_convolution() -> str:
    import torch

    x = torch.ones(1, 8, 16, 16, device="cuda")
    return f"{torch.nn.functional.conv2d(x, torch.ones(8, 8, 3, 3, device='cuda')).sum().item():.0f}"


def main() -> None:
    """Do what standard input says."""
    asked = json.load(sys.stdin)
    notes: dict[str, Any] = {}
    if asked.get("torch") == "before":
        notes["torch"] = _torch_convolution()
    if asked.get("stock_first"):
        notes["stock_first"] = perform(asked["stock_first"])
    results = [perform(job) for job in asked["jobs"]]
    if asked.get("torch") == "after":
        notes["torch"] = _torch_convolution()
    if asked.get("state"):
        from ortlock import native

        state = native.state()
        notes["state"] = {"style": state.style, "resolved_before": state.resolved_before, "calls": state.calls}
        if asked.get("torch"):
            notes["torch_again"] = _torch_convolution()
            notes["calls_of_torch"] = sum(native.state().calls.values()) - sum(state.calls.values())
    print(json.dumps({"notes": notes, "results": results, "onnxruntime": onnxruntime.__version__}))


if __name__ == "__main__":
    main()
