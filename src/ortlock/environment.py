"""What decides the bits besides the model and the inputs: software and hardware versions, as they are in this process.

Library versions are asked of the libraries that are loaded, not of the packages that are installed. What cannot be
read is None, and :attr:`Environment.missing` says why; nothing here raises.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ortlock.settings import SETTINGS, Kind, physical_cores

_ISA = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sve2", "sme"),
)
"""The instruction sets that CPU kernels are chosen by, as /proc/cpuinfo names them."""

_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute: multiprocessors, compute capability.


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor."""

    machine: str
    model: str | None
    isa: tuple[str, ...]
    """Instruction sets that kernels are chosen by."""
    logical: int
    """Logical CPUs that this process may run on."""
    physical: int
    """Physical cores that this process may run on."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU and the NVIDIA libraries loaded in this process. None: could not be read."""

    device_id: int
    name: str | None
    compute_capability: str | None
    sm_count: int | None
    driver: str | None
    cuda_driver: str | None
    """Newest CUDA that the driver supports."""
    cuda_runtime: str | None
    cudnn: str | None
    cublas: str | None
    cublas_lt: str | None


@dataclass(frozen=True, slots=True)
class Environment:
    """One process's environment."""

    ortlock: str | None
    python: str
    os: str
    libc: str | None
    cpu: Cpu
    onnxruntime: str | None
    onnxruntime_build: str | None
    """ONNX Runtime's own build information: commit, build type, flags."""
    gpu: Gpu | None
    """None where CUDA was not asked for."""
    variables: tuple[tuple[str, str], ...]
    """Variables that are set and that NVIDIA's libraries choose kernels by; ONNX Runtime's own are settings."""
    missing: tuple[str, ...]
    """What could not be read, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and the fingerprint, as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        values["variables"] = dict(self.variables)
        values["fingerprint"] = self.fingerprint()
        return values

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits over the fields that decide bits.

        Left out: Python, the kernel, the number of cores (thread counts are settings) and the number of the device.
        """
        deciding: dict[str, Any] = {
            "ortlock": self.ortlock,
            "libc": self.libc,
            "machine": self.cpu.machine,
            "cpu": self.cpu.model,
            "isa": self.cpu.isa,
            "onnxruntime": self.onnxruntime,
            "build": self.onnxruntime_build,
            "gpu": None if self.gpu is None else {**asdict(self.gpu), "device_id": None},
            "variables": self.variables,
        }
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


def environment(device_id: int = 0, *, cuda: bool, cudnn_path: str | None = None) -> Environment:
    """Read the environment of this process.

    Args:
        device_id: CUDA device, as ONNX Runtime counts it.
        cuda: read the GPU too. This initialises the CUDA driver (no context is made); with False it is left alone.
        cudnn_path: the cuDNN that the provider uses, where it is known and several may be loaded.
    """
    missing: list[str] = []
    version, build = _onnxruntime(missing)
    libc = " ".join(part for part in platform.libc_ver() if part) or None
    return Environment(
        ortlock=_package_version("ortlock", missing),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        os=f"{platform.system()} {platform.release()}",
        libc=libc,
        cpu=_cpu(missing),
        onnxruntime=version,
        onnxruntime_build=build,
        gpu=_gpu(device_id, cudnn_path, missing) if cuda else None,
        variables=_variables(),
        missing=tuple(missing),
    )


def _package_version(name: str, missing: list[str]) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        missing.append(f"{name}: not installed as a package")
        return None


def _onnxruntime(missing: list[str]) -> tuple[str | None, str | None]:
    try:
        import onnxruntime
    except Exception as error:  # A broken installation raises whatever the loader finds.
        missing.append(f"onnxruntime: {error}")
        return None, None
    try:
        build = str(onnxruntime.get_build_info()).removeprefix("ORT Build Info: ")
    except Exception as error:
        missing.append(f"onnxruntime_build: {error}")
        build = None
    return str(onnxruntime.__version__), build


def _variables() -> tuple[tuple[str, str], ...]:
    keys = sorted(setting.key for setting in SETTINGS if setting.kind is Kind.ENVIRONMENT and not setting.since)
    return tuple((key, os.environ[key]) for key in keys if key in os.environ)


def _cpu(missing: list[str]) -> Cpu:
    model, flags = cpu_info(_read(Path("/proc/cpuinfo")) or "")
    model = model or platform.processor() or None
    if model is None:
        missing.append("cpu: no model name in /proc/cpuinfo")
    try:
        logical = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        logical = os.cpu_count() or 1
    return Cpu(platform.machine(), model, tuple(name for name in _ISA if name in flags), logical, physical_cores())


def cpu_info(text: str) -> tuple[str | None, frozenset[str]]:
    """Return the model name and the flags in the text of /proc/cpuinfo (x86 and ARM)."""
    name = re.search(r"^model name\s*:[ \t]*(\S.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:[ \t]*(.*)$", text, re.MULTILINE)
    return (name[1].strip() if name else None), frozenset(flags[1].split() if flags else ())


def _gpu(device_id: int, cudnn_path: str | None, missing: list[str]) -> Gpu:
    name, capability, sm_count, cuda_driver = _device(device_id, missing)
    loaded = loaded_libraries(_read(Path("/proc/self/maps")) or "")
    if cudnn_path is not None:
        loaded["libcudnn.so"] = [cudnn_path]

    def ask(field: str, library: str, question: Any) -> str | None:
        paths = loaded.get(library, [])
        if not paths:
            missing.append(f"{field}: {library} is not loaded in this process")
            return None
        # Only libraries that are loaded already: asking must not change what the process runs on.
        answers: list[str] = []
        for path in paths:
            try:
                answer = question(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
            except (OSError, AttributeError) as error:
                missing.append(f"{field}: {error}")
                continue
            if answer not in answers:
                answers.append(answer)
        return ", ".join(answers) or None

    return Gpu(
        device_id=device_id,
        name=name,
        compute_capability=capability,
        sm_count=sm_count,
        driver=_driver_version(loaded, missing),
        cuda_driver=cuda_driver,
        cuda_runtime=ask("cuda_runtime", "libcudart.so", _runtime_version),
        cudnn=ask("cudnn", "libcudnn.so", _cudnn_version),
        cublas=ask("cublas", "libcublas.so", lambda library: _property_version(library, "cublasGetProperty")),
        cublas_lt=ask("cublas_lt", "libcublasLt.so", lambda library: _property_version(library, "cublasLtGetProperty")),
    )


def loaded_libraries(maps: str) -> dict[str, list[str]]:
    """Return the paths of NVIDIA's libraries in the text of /proc/self/maps, by ``libNAME.so``, in order, once each."""
    found: dict[str, list[str]] = {}
    for match in re.finditer(r"(/.*/(lib(?:cudart|cudnn|cublas|cublasLt|cuda)\.so)[0-9.]*)$", maps, re.MULTILINE):
        paths = found.setdefault(match[2], [])
        if match[1] not in paths:
            paths.append(match[1])
    return found


def _device(device_id: int, missing: list[str]) -> tuple[str | None, str | None, int | None, str | None]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        number, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
        asked = driver.cuDriverGetVersion(ctypes.byref(number)) == 0
        cuda = _cuda_version(number.value) if asked and number.value else None
        for step, arguments in (
            ("cuInit", (0,)),
            ("cuDeviceGet", (ctypes.byref(device), device_id)),
            ("cuDeviceGetName", (name, 256, device)),
        ):
            if code := getattr(driver, step)(*arguments):
                missing.append(f"gpu: {step} of device {device_id} returned {code}")
                return None, None, None, cuda
        values = []
        for attribute in (_MAJOR, _MINOR, _SM_COUNT):
            value = ctypes.c_int()
            code = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            values.append(None if code else value.value)
    except (OSError, AttributeError) as error:
        missing.append(f"gpu: {error}")
        return None, None, None, None
    major, minor, sm_count = values
    capability = None if major is None or minor is None else f"{major}.{minor}"
    return name.value.decode(errors="replace"), capability, sm_count, cuda


def _driver_version(loaded: dict[str, list[str]], missing: list[str]) -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            version = pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:  # Not installed, or no driver: the other places are asked.
        pass
    text = _read(Path("/proc/driver/nvidia/version")) or ""
    for path in loaded.get("libcuda.so", []):
        text += f"\n{Path(path).resolve().name} "
    version_match = re.search(r"(?<![\d.])(\d{3}\.\d+(?:\.\d+)?)(?![\d.])", text.replace("libcuda.so.", " "))
    if version_match is None:
        missing.append("driver: neither NVML nor /proc/driver/nvidia/version nor the name of libcuda tells")
        return None
    return version_match[1]


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _runtime_version(library: ctypes.CDLL) -> str:
    version = ctypes.c_int()
    code = library.cudaRuntimeGetVersion(ctypes.byref(version))
    if code:
        raise OSError(f"cudaRuntimeGetVersion returned {code}")
    return _cuda_version(version.value)


def _cudnn_version(library: ctypes.CDLL) -> str:
    function = library.cudnnGetVersion
    function.restype = ctypes.c_size_t
    return cudnn_version_text(function())


def cudnn_version_text(number: int) -> str:
    """Return ``9.19.0`` of 91900; up to cuDNN 8 the major version counts thousands (8907 is ``8.9.7``)."""
    scale = 10_000 if number >= 90_000 else 1_000
    return f"{number // scale}.{number % scale // 100}.{number % 100}"


def _property_version(library: ctypes.CDLL, function: str) -> str:
    parts = []
    for part in range(3):
        value = ctypes.c_int()
        code = getattr(library, function)(part, ctypes.byref(value))
        if code:
            raise OSError(f"{function} returned {code}")
        parts.append(str(value.value))
    return ".".join(parts)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
