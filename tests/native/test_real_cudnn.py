"""The hooks against the real cuDNN, planning for an NVIDIA H200 that need not be present.

The engines that are expected are those that an H200 with cuDNN 9.19 itself chose for the same operations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from .building import build, cudnn_wheels

WORKER = Path(__file__).with_name("real_cudnn_worker.py")
OBSERVE, PIN, STRICT = 0, 1, 2
MODE_B = 1  # what ONNX Runtime calls EXHAUSTIVE

# small shape, weights, large shape: as a ConvTranspose with kernel 4, stride 2, padding 1
TRANSPOSED = {
    "128x28x28": ([1, 128, 28, 28], [128, 64, 4, 4], [1, 64, 56, 56]),
    "512x7x7": ([1, 512, 7, 7], [512, 256, 4, 4], [1, 256, 14, 14]),
    "64x112x112": ([1, 64, 112, 112], [64, 3, 4, 4], [1, 3, 224, 224]),
}
FIRST_CHOICE = 25  # nondeterministic, for each of them
SEEN_ON_GPU = {"128x28x28": 65, "512x7x7": 2, "64x112x112": 58}  # from cuDNN's heuristic mode A


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cudnn_wheels()
    return build(tmp_path_factory.mktemp("real_cudnn"))


def plan(stand_ins: Path, cases: Sequence[Any]) -> dict[str, Any]:
    """Run the cases in one new process."""
    wheels = cudnn_wheels()
    libraries = [str(stand_ins / "driver"), *(str(path) for path in sorted(wheels.glob("*/lib")))]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    done = subprocess.run(
        [sys.executable, str(WORKER), str(stand_ins), str(wheels), json.dumps(cases)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_choices_match_those_of_the_gpu(stand_ins: Path) -> None:
    cases = [[policy, False, MODE_B, *shapes, 2, 1] for shapes in TRANSPOSED.values() for policy in (None, PIN, STRICT)]
    answer = plan(stand_ins, cases)
    engines = [result["engine"] for result in answer["results"]]
    expected = [engine for name in TRANSPOSED for engine in (FIRST_CHOICE, SEEN_ON_GPU[name], SEEN_ON_GPU[name])]
    assert engines == expected
    assert all(result["events"] == 0 for result in answer["results"])
    assert answer["state"]["faults"] == []
    assert answer["state"]["style"] == "dlsym"
    assert answer["state"]["cudnn_version"] // 10000 == 9


def test_records_name_operation_engine_and_knobs(stand_ins: Path) -> None:
    records = plan(stand_ins, [[STRICT, False, MODE_B, *TRANSPOSED["128x28x28"], 2, 1]])["results"][0]["records"]
    by_status = {entry["status"]: entry for entry in records["plans"]}
    assert set(by_status) == {"refused", "used"}
    for entry in by_status.values():
        assert entry["operation"] == "ConvolutionBackwardData"
        assert entry["tensors"] == ["dy f32[1,128,28,28]", "w f32[128,64,4,4]", "dx f32[1,64,56,56]"]
        assert entry["attributes"] == "pad=1,1 stride=2,2 dilation=1,1 compute=f32"
    assert by_status["refused"]["knobs"] == [[2, 2], [3, 0]]
    assert by_status["refused"]["numerical_notes"] == ["NONDETERMINISTIC"]
    assert by_status["used"]["numerical_notes"] == ["TENSOR_CORE"]
    assert [knob for knob, _ in by_status["used"]["knobs"]] == sorted(knob for knob, _ in by_status["used"]["knobs"])
    assert len(by_status["used"]["knobs"]) > 2
    assert by_status["used"]["workspace_bytes"] > 0


def test_observe_lets_the_first_choice_through(stand_ins: Path) -> None:
    result = plan(stand_ins, [[OBSERVE, False, MODE_B, *TRANSPOSED["128x28x28"], 2, 1]])["results"][0]
    assert result["engine"] == FIRST_CHOICE
    assert result["events"] == 1
    assert [entry["status"] for entry in result["records"]["plans"]] == ["let through"]


def test_forward_convolutions_keep_the_choice_of_stock(stand_ins: Path) -> None:
    cases = [
        [policy, True, mode, [1, 64, size, size], [64, 64, 3, 3], [1, 64, size, size], 1, 1]
        for size in (56, 28, 14)
        for mode in (MODE_B, 3)
        for policy in (None, STRICT)
    ]
    engines = [result["engine"] for result in plan(stand_ins, cases)["results"]]
    assert engines[0::2] == engines[1::2]
    assert min(engines) >= 0


def test_the_same_choices_in_another_process_and_order(stand_ins: Path) -> None:
    cases = [[PIN, False, MODE_B, *shapes, 2, 1] for shapes in TRANSPOSED.values()]
    forwards = [(result["engine"], result["records"]) for result in plan(stand_ins, cases)["results"]]
    backwards = [(result["engine"], result["records"]) for result in plan(stand_ins, cases[::-1])["results"]]
    assert forwards == backwards[::-1]


def used(result: dict[str, Any]) -> dict[str, Any]:
    """The one choice that a case made."""
    (plan,) = (entry for entry in result["records"]["plans"] if entry["status"] == "used")
    return dict(plan)


def test_a_lockfile_built_by_hand_is_replayed(stand_ins: Path) -> None:
    case = [STRICT, False, MODE_B, *TRANSPOSED["128x28x28"], 2, 1]
    chosen = used(plan(stand_ins, [case])["results"][0])
    assert (chosen["engine"], chosen["source"], len(chosen["key"])) == (65, "ranking", 32)
    # Another engine that this cuDNN has for the operation; the key comes from another process.
    other, first = [chosen["key"], 2, []], [chosen["key"], FIRST_CHOICE, [[2, 2], [3, 0]]]
    same = [chosen["key"], chosen["engine"], chosen["knobs"]]
    results = plan(
        stand_ins,
        [
            [*case, [True, [same]]],
            [*case, [True, [other]]],
            [*case, [True, [first]]],
            [*case, [True, [["0" * 32, 65, []]]]],
            [PIN, *case[1:], [True, [first]]],
        ],
    )["results"]
    assert [result["engine"] for result in results[:2]] == [65, 2]
    assert [used(result)["source"] for result in results[:2]] == ["lockfile", "lockfile"]
    assert used(results[0])["knobs"] == chosen["knobs"]
    assert used(results[0])["workspace_bytes"] == chosen["workspace_bytes"]
    assert [result["queries"] for result in results] == [0, 0, 1, 0, 0]  # the pin session shares what strict refused
    # A nondeterministic engine does not run because a file says so, nor one in place of what a file lacks.
    assert [result["engine"] for result in results[2:]] == [-6, -6, 65]
    causes = [[failure["cause"] for failure in result["records"]["failures"]] for result in results[2:]]
    assert causes == [["locked choice cannot be made"], ["not in the lockfile"], []]


def test_keys_are_the_same_in_every_process_and_tell_operations_apart(stand_ins: Path) -> None:
    cases = [[PIN, False, MODE_B, *shapes, 2, 1] for shapes in TRANSPOSED.values()]
    cases.append([PIN, True, MODE_B, [1, 64, 56, 56], [64, 64, 3, 3], [1, 64, 56, 56], 1, 1])
    forwards = [used(result)["key"] for result in plan(stand_ins, cases)["results"]]
    backwards = [used(result)["key"] for result in plan(stand_ins, cases[::-1])["results"]]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == len(cases)


def test_engines_with_tensor_cores_are_passed_over_where_the_provider_does(stand_ins: Path) -> None:
    case = [STRICT, True, MODE_B, [1, 64, 56, 56], [64, 64, 3, 3], [1, 64, 56, 56], 1, 1]
    usual, without = (used(result) for result in plan(stand_ins, [case, "avoid tensor cores", case])["results"])
    assert "TENSOR_CORE" in usual["numerical_notes"]
    assert "TENSOR_CORE" not in without["numerical_notes"]
    assert without["key"] != usual["key"]
