"""The pytest plugin, in runs of pytest of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ortlock import GoldenOutputsError, ReproducibleSession, models
from ortlock.cli import main
from ortlock.cli.inputs import input_specs
from ortlock.cli.seeded import seeded_feeds
from ortlock.pytest_plugin import assert_reproducible
from ortlock.report import Status
from ortlock.verify import Evidence
from ortlock.verify.subject import inputs_digest
from tests.cpu.planted import CPU, chain, serialized
from tests.cpu.test_golden_outputs import shifted

pytest_plugins = ("pytester",)

FEED = {"x": np.linspace(-1, 1, 8, dtype=np.float32)}
QUICK = {"runs": 2, "stresses": ("again", "threads")}


def drawing() -> bytes:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="before"),
        helper.make_node("RandomNormalLike", ["a"], ["y"], name="draw"),
    ]
    return serialized(nodes, ["n"])


def test_a_model_that_repeats() -> None:
    found = assert_reproducible(chain(3), FEED, providers=[CPU], **QUICK)  # type: ignore[arg-type]
    assert found.status is Status.HOLDS
    assert found.runs == 6  # two, and one of each of four threads


def test_a_session_that_does_not_names_the_node() -> None:
    session = ReproducibleSession(drawing(), providers=[CPU], mode="observe")
    with pytest.raises(AssertionError) as caught:
        assert_reproducible(session, FEED, **QUICK)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith("not shown to be reproducible\nviolated: ")
    assert "first node that differs: draw (RandomNormalLike)" in text
    with pytest.raises(ValueError, match="the session's own"):
        assert_reproducible(session, FEED, mode="pin")


def test_nothing_compared_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="needs the CUDA provider"):
        assert_reproducible(chain(3), FEED, providers=[CPU], stresses=("memory limit",))


def test_golden_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, lock, inputs = tmp_path / "net.onnx", tmp_path / "lock.json", tmp_path / "in.npz"
    path.write_bytes(models.conv_net(2))
    feed = {"x": models.seeded_input((1, 3, 16, 16))}
    np.savez(inputs, x=feed["x"])
    arguments = ["--lock", str(lock), "--golden", "--inputs", str(inputs), "--provider", "cpu", "--stress", "again"]
    assert main(["verify", str(path), *arguments]) == 0
    capsys.readouterr()
    assert_reproducible(path, feed, lock, providers=[CPU], **QUICK)  # type: ignore[arg-type]
    text = lock.read_text()
    found = next(part for part in text.split('"') if part.startswith("sha256:") and f'"outputs": "{part}"' in text)
    lock.write_text(text.replace(found, f"sha256:{'0' * 64}"))
    with pytest.raises(AssertionError, match=f"other bits than .*lock.json holds\ninputs sha256:.* got {found}"):
        assert_reproducible(path, feed, lock, providers=[CPU], **QUICK)  # type: ignore[arg-type]


def test_golden_digests_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, lock, outputs = tmp_path / "net.onnx", tmp_path / "lock.json", tmp_path / "golden.npz"
    path.write_bytes(chain(2))
    other = {"x": np.zeros(3, np.float32)}

    def check(**more: Any) -> Evidence:
        given: dict[str, Any] = {**QUICK, **more}
        return assert_reproducible(path, other, lock, providers=[CPU], **given)

    ReproducibleSession(path, providers=[CPU], lockfile=lock, lock_mode="record").save_lockfile()
    assert check().status is Status.HOLDS  # a file without golden digests pins choices
    np.savez(outputs)
    with pytest.raises(AssertionError, match=r"^not compared with golden bits of "):
        check(golden_outputs=outputs)
    np.savez(tmp_path / "in.npz", x=FEED["x"])
    given = ["--lock", lock, "--golden", "--inputs", tmp_path / "in.npz", "--provider", "cpu", "--stress", "again"]
    assert main(["verify", str(path), *map(str, given), "--runs", "1"]) == 0
    with pytest.raises(AssertionError) as caught:
        check()
    told, inputs, remedy = str(caught.value).splitlines()
    assert told == f"not compared with golden bits of {lock}"
    assert inputs.startswith(f"inputs {inputs_digest(other)}: it holds no golden digest for them in this environment")
    assert remedy == f"  write it: ortlock verify {path} --inputs FILE.npz --lock {lock} --golden"
    # Nor can bits be judged that came with another number of threads.
    held = json.loads(lock.read_text())
    (section,) = held["environments"].values()
    (golden,) = section["golden"].values()
    golden.update(outputs=f"sha256:{'0' * 64}", threads={"intra_op_num_threads": "999"})
    lock.write_text(json.dumps(held))
    with pytest.raises(
        AssertionError, match=r"^other bits than .*\n.*\n  other bits, but with .*; the golden ones came"
    ):
        assert_reproducible(path, FEED, lock, providers=[CPU], **QUICK)  # type: ignore[arg-type]


def test_golden_outputs(tmp_path: Path) -> None:
    path, lock, outputs = files = tmp_path / "net.onnx", tmp_path / "lock.json", tmp_path / "golden.npz"
    path.write_bytes(models.conv_net(2))
    given = ["--lock", lock, "--golden", "--golden-outputs", outputs, "--dim", "size=16", "--provider", "cpu"]
    assert main(["verify", str(path), *map(str, given), "--stress", "again", "--runs", "1"]) == 0
    session = ReproducibleSession(path, providers=[CPU], lockfile=lock)
    (feed,) = seeded_feeds(input_specs(session), 0, {"size": 16}, {})
    assert_reproducible(path, feed, lock, providers=[CPU], golden_outputs=outputs, **QUICK)  # type: ignore[arg-type]
    shifted(files)
    told = r"holds\ninputs sha256:.*\n  output y: equal 99\.98%, max abs \S+, mean abs \S+, max rel \S+, max ULP 1$"
    with pytest.raises(AssertionError, match=told):
        assert_reproducible(path, feed, lock, providers=[CPU], golden_outputs=outputs, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="golden_outputs goes with the golden digests of a lockfile"):
        assert_reproducible(path, feed, providers=[CPU], golden_outputs=outputs)
    outputs.write_bytes(b"no archive")
    with pytest.raises(GoldenOutputsError, match="cannot be read"):
        assert_reproducible(session, feed, golden_outputs=outputs)


def test_fixture_and_marker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import numpy as np
        import pytest

        FEED = {{"x": np.ones(8, np.float32)}}

        @pytest.mark.reproducible(runs=3, stresses=("again",), providers=["{CPU}"], mode="observe")
        def test_holds(assert_reproducible):
            assert assert_reproducible({chain(2)!r}, FEED).runs == 3
            assert assert_reproducible({chain(2)!r}, FEED, runs=5).runs == 5

        @pytest.mark.reproducible(runs=3, providers=["{CPU}"], mode="observe")
        def test_varies(assert_reproducible):
            assert_reproducible({drawing()!r}, FEED)

        @pytest.mark.reproducible(speed=3)
        def test_misspelt(assert_reproducible):
            pass
        """
    )
    done = pytester.runpytest("--strict-markers")
    done.assert_outcomes(passed=1, failed=1, errors=1)
    done.stdout.fnmatch_lines_random(
        ["*first node that differs: draw (RandomNormalLike)*", "*'speed'* is not understood*"]
    )


def test_a_marked_test_that_checks_nothing_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import numpy as np
        import pytest
        from ortlock import pytest_plugin

        FEED = {{"x": np.ones(8, np.float32)}}
        HOW = dict(runs=1, stresses=("again",), providers=["{CPU}"])

        @pytest.fixture
        def checked(assert_reproducible):
            assert_reproducible({chain(2)!r}, FEED)

        @pytest.mark.reproducible(**HOW)
        def test_through_another_fixture(checked):
            pass

        @pytest.mark.reproducible
        def test_without_the_fixture():
            pass

        @pytest.mark.reproducible
        def test_not_called(assert_reproducible):
            pass

        @pytest.mark.reproducible(runs=100)
        def test_imported():
            pytest_plugin.assert_reproducible({chain(2)!r}, FEED, **HOW)

        @pytest.mark.reproducible
        def test_skipped():
            pytest.skip("not here")

        @pytest.mark.reproducible(**HOW)
        class TestMarkedAsAWhole:
            def test_one_that_needs_nothing(self):
                pass
        """
    )
    done = pytester.runpytest("--strict-markers")
    done.assert_outcomes(passed=2, failed=3, skipped=1)
    done.stdout.fnmatch_lines(["marked reproducible, and nothing was checked: *"] * 3)
