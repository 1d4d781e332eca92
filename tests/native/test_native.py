"""The interposer against stand-ins for cuDNN and for ONNX Runtime's CUDA provider, plain and under sanitizers.

The cases are C++ (``tests/native/*.cpp``); each runs in a process of its own. What is loaded, patched and resolved
lasts as long as a process, so no case could follow another in one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .building import build

SANITIZERS = ("none", "address", "thread")


@pytest.fixture(scope="module", params=SANITIZERS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The test program, built with one sanitizer."""
    sanitizer: str = request.param
    folder = build(tmp_path_factory.mktemp(f"native_{sanitizer}"), "" if sanitizer == "none" else sanitizer)
    return sanitizer, folder / "native_tests"


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
