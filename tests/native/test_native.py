"""The interposer against stand-ins for cuDNN and for ONNX Runtime's CUDA provider, plain and under sanitizers.

The cases are C++ (``tests/native/*.cpp``); each runs in a process of its own. What is loaded, patched and resolved
lasts as long as a process, so no case could follow another in one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = ("none", "address", "thread")


def _tool(name: str) -> str:
    """Find a build tool beside this Python, where pip puts it, else on the path."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.fail(f"{name} is needed to build the native tests; it comes with the extra 'test'")
    return found


def _build(sanitizer: str, folder: Path) -> Path:
    options = [
        "-DORTLOCK_BUILD_MODULE=OFF",
        "-DORTLOCK_BUILD_TESTS=ON",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        f"-DORTLOCK_SANITIZER={'' if sanitizer == 'none' else sanitizer}",
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
    ]
    for command in (
        [_tool("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options],
        [_tool("cmake"), "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return folder / "tests" / "native" / "native_tests"


@pytest.fixture(scope="module", params=SANITIZERS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The test program, built with one sanitizer."""
    sanitizer: str = request.param
    return sanitizer, _build(sanitizer, tmp_path_factory.mktemp(f"native_{sanitizer}"))


def _case_names() -> list[str]:
    """Names of the cases, read from their sources so that collecting needs no build."""
    names = []
    for source in sorted(Path(__file__).parent.glob("test_*.cpp")):
        for line in source.read_text().splitlines():
            if line.startswith("CASE("):
                names.append(line[len("CASE(") : line.index(")")])
    return names


def test_every_case_is_collected(runner: tuple[str, Path]) -> None:
    listed = subprocess.run([str(runner[1])], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(listed) == sorted(_case_names())
    assert len(listed) > 30


@pytest.mark.parametrize("case", _case_names())
def test_case(runner: tuple[str, Path], case: str) -> None:
    sanitizer, program = runner
    done = subprocess.run([str(program), case], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{sanitizer}: {done.stdout}\n{done.stderr}"
    assert done.stdout.endswith("ok\n")
