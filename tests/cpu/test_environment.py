"""The environment record, with and without NVIDIA's libraries."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlock.environment import Environment, Gpu, cpu_info, cudnn_version_text, environment, loaded_libraries

GPU = Gpu(0, "GPU", "9.0", 132, "580.1", "13.0", "13.0", "9.19.0", "13.1.0", "13.1.0")


def test_without_cuda_the_driver_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object, **named: object) -> None:
        raise AssertionError("a library was opened")

    monkeypatch.setattr(ctypes, "CDLL", forbidden)
    found = environment(cuda=False)
    assert found.gpu is None
    assert found.onnxruntime == onnxruntime.__version__
    assert found.onnxruntime_build is not None
    assert "build type" in found.onnxruntime_build
    assert found.cpu.machine == platform.machine()
    assert 1 <= found.cpu.physical <= found.cpu.logical
    assert found.python == f"{platform.python_implementation()} {platform.python_version()}"


def test_a_broken_onnxruntime_is_missing_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = environment(cuda=False)
    assert (found.onnxruntime, found.onnxruntime_build) == (None, None)
    assert any(text.startswith("onnxruntime: ") for text in found.missing)


def test_without_a_driver_the_gpu_is_all_none_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, *arguments: object, **named: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    monkeypatch.setattr("ortlock.environment._read", lambda path: None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = environment(3, cuda=True)
    assert found.gpu == Gpu(3, *[None] * 9)
    assert "gpu: libcuda.so.1: cannot open shared object file" in found.missing
    assert "cudnn: libcudnn.so is not loaded in this process" in found.missing
    assert any(text.startswith("driver: ") for text in found.missing)


def test_to_dict_is_json() -> None:
    found = replace(environment(cuda=False), gpu=GPU, variables=(("NVIDIA_TF32_OVERRIDE", "0"),))
    values = json.loads(json.dumps(found.to_dict()))
    assert list(values) == [*Environment.__dataclass_fields__, "fingerprint"]
    assert values["gpu"]["sm_count"] == 132
    assert values["variables"] == {"NVIDIA_TF32_OVERRIDE": "0"}
    assert values["fingerprint"] == found.fingerprint()


def test_variables_of_the_libraries_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "ORT_DISABLE_FLASH_ATTENTION"):
        monkeypatch.delenv(name, raising=False)
    before = environment(cuda=False)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("ORT_DISABLE_FLASH_ATTENTION", "1")
    after = environment(cuda=False)
    assert set(after.variables) - set(before.variables) == {("NVIDIA_TF32_OVERRIDE", "0")}
    assert after.fingerprint() != before.fingerprint()


def test_fingerprint_depends_on_what_decides_bits_alone() -> None:
    base = replace(environment(cuda=False), gpu=GPU, ortlock="1")
    assert len(base.fingerprint()) == 16
    same = [
        replace(base, python="CPython 9"),
        replace(base, os="Linux 9"),
        replace(base, cpu=replace(base.cpu, logical=999, physical=999)),
        replace(base, gpu=replace(GPU, device_id=1)),
        replace(base, missing=("x",)),
    ]
    assert {other.fingerprint() for other in same} == {base.fingerprint()}
    others = [
        replace(base, ortlock="2"),
        replace(base, onnxruntime="0.1"),
        replace(base, onnxruntime_build="x"),
        replace(base, libc="musl"),
        replace(base, cpu=replace(base.cpu, model="x")),
        replace(base, cpu=replace(base.cpu, isa=("mmx",))),
        replace(base, gpu=None),
        *(replace(base, gpu=Gpu(**{**asdict(GPU), name: None})) for name in asdict(GPU) if name != "device_id"),
    ]
    assert len({base.fingerprint(), *(other.fingerprint() for other in others)}) == len(others) + 1


def test_cpu_info_of_x86_and_arm() -> None:
    x86 = "processor\t: 0\nmodel name\t: AMD EPYC 9\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nmodel name\t: other\n"
    assert cpu_info(x86) == ("AMD EPYC 9", frozenset({"fpu", "avx2", "fma"}))
    assert cpu_info("processor : 0\nFeatures\t: fp asimd sve\n") == (None, frozenset({"fp", "asimd", "sve"}))
    assert cpu_info("") == (None, frozenset())


@settings(deadline=None)
@given(st.text())
def test_cpu_info_takes_any_text(text: str) -> None:
    name, flags = cpu_info(text)
    assert name is None or name.strip() == name != ""
    assert "" not in flags


def test_loaded_libraries_in_order_once_each() -> None:
    maps = """\
7f00-7f01 r--p 00000000 08:01 1    /opt/a/libcudnn.so.9
7f01-7f02 r-xp 00001000 08:01 1    /opt/a/libcudnn.so.9
7f02-7f03 r--p 00000000 08:01 2    /opt/a/libcudnn_graph.so.9
7f03-7f04 r--p 00000000 08:01 3    /opt/with space/libcublasLt.so.13
7f04-7f05 r--p 00000000 08:01 4    /usr/lib/libcuda.so.580.65.06
7f05-7f06 r--p 00000000 08:01 5    /opt/b/libcudnn.so.9
7f06-7f07 rw-p 00000000 00:00 0    [heap]
"""
    assert loaded_libraries(maps) == {
        "libcudnn.so": ["/opt/a/libcudnn.so.9", "/opt/b/libcudnn.so.9"],
        "libcublasLt.so": ["/opt/with space/libcublasLt.so.13"],
        "libcuda.so": ["/usr/lib/libcuda.so.580.65.06"],
    }
    assert loaded_libraries("") == {}


@settings(deadline=None)
@given(st.integers(9, 99), st.integers(0, 99), st.integers(0, 99))
def test_cudnn_version_since_9(major: int, minor: int, patch: int) -> None:
    assert cudnn_version_text(major * 10_000 + minor * 100 + patch) == f"{major}.{minor}.{patch}"


def test_cudnn_version_up_to_8() -> None:
    assert cudnn_version_text(8907) == "8.9.7"


LIBRARIES = {
    "libcuda.so.1": """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal == 0 ? 0 : 101; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Test GPU", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : -1; return 0; }
""",
    "libcudart.so.13": "int cudaRuntimeGetVersion(int *version) { *version = 13010; return 0; }",
    "libcudnn.so.9": "unsigned long cudnnGetVersion(void) { return 91900; }",
    "libcublas.so.13": "int cublasGetProperty(int part, int *value) { *value = part + 10; return 0; }",
    "libcublasLt.so.13": "int cublasLtGetProperty(int part, int *value) { return 7; }",
}
PROBE = """
import ctypes, json, sys
from ortlock.environment import environment
for path in sys.argv[2:]:
    ctypes.CDLL(path)
print(json.dumps(environment(int(sys.argv[1]), cuda=True).to_dict()))
"""


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C compiler")
    root = tmp_path_factory.mktemp("nvidia")
    for name, source in LIBRARIES.items():
        command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", str(root / name), "-"]
        subprocess.run(command, input=source, text=True, check=True)
    return root


def probe(root: Path, device: int, *loaded: str) -> dict[str, object]:
    paths = [str(root / name) for name in loaded]
    found = subprocess.run(
        [sys.executable, "-c", PROBE, str(device), *paths],
        env={**os.environ, "LD_LIBRARY_PATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    values: dict[str, object] = json.loads(found.stdout)
    return values


def test_loaded_libraries_are_asked(nvidia: Path) -> None:
    values = probe(nvidia, 0, "libcudart.so.13", "libcudnn.so.9", "libcublas.so.13", "libcublasLt.so.13")
    gpu = values["gpu"]
    assert isinstance(gpu, dict)
    del gpu["driver"]  # Of the real driver, where there is one.
    assert gpu == {
        "device_id": 0,
        "name": "Test GPU",
        "compute_capability": "9.0",
        "sm_count": 132,
        "cuda_driver": "13.0",
        "cuda_runtime": "13.1",
        "cudnn": "9.19.0",
        "cublas": "10.11.12",
        "cublas_lt": None,
    }
    missing = values["missing"]
    assert isinstance(missing, list)
    assert "cublas_lt: cublasLtGetProperty returned 7" in missing


def test_a_library_that_is_not_loaded_is_not_opened(nvidia: Path) -> None:
    values = probe(nvidia, 0)
    gpu, missing = values["gpu"], values["missing"]
    assert isinstance(gpu, dict)
    assert isinstance(missing, list)
    assert (gpu["name"], gpu["cudnn"]) == ("Test GPU", None)
    assert "cudnn: libcudnn.so is not loaded in this process" in missing


def test_a_device_that_is_not_there(nvidia: Path) -> None:
    values = probe(nvidia, 7)
    gpu, missing = values["gpu"], values["missing"]
    assert isinstance(gpu, dict)
    assert isinstance(missing, list)
    assert (gpu["name"], gpu["sm_count"], gpu["cuda_driver"]) == (None, None, "13.0")
    assert "gpu: cuDeviceGet of device 7 returned 101" in missing
