"""Building the native tests and the stand-ins with the project's own CMake file."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool(name: str) -> str:
    """Find a build tool beside this Python, where pip puts it, else on the path."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.fail(f"{name} is needed to build the native tests; it comes with the extra 'test'")
    return found


def build(folder: Path, sanitizer: str = "") -> Path:
    """Build everything under tests/native into ``folder``; return where the programs and libraries are."""
    options = [
        "-DORTLOCK_BUILD_MODULE=OFF",
        "-DORTLOCK_BUILD_TESTS=ON",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        f"-DORTLOCK_SANITIZER={sanitizer}",
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
    ]
    for command in (
        [_tool("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options],
        [_tool("cmake"), "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return folder / "tests" / "native"


def cudnn_wheels() -> Path:
    """The folder ``nvidia`` with the wheels nvidia-cudnn-cu13 and nvidia-cublas; skips the test where they are not.

    They are looked for where ``ORTLOCK_CUDNN_WHEELS`` says (a folder made by ``pip install --target``) and among the
    installed packages.
    """
    folders = [Path(os.environ["ORTLOCK_CUDNN_WHEELS"], "nvidia")] if "ORTLOCK_CUDNN_WHEELS" in os.environ else []
    spec = importlib.util.find_spec("nvidia")
    folders += [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        if (folder / "cudnn" / "include").is_dir():
            return folder
    pytest.skip("cuDNN is not installed: pip install --target DIR nvidia-cudnn-cu13 and set ORTLOCK_CUDNN_WHEELS=DIR")
