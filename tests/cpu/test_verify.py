"""Runs under stress, golden digests, and what a report makes of them."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession

from ortlock import ReproducibleSession, models
from ortlock.cli import main
from ortlock.configuration import Configuration, Source
from ortlock.lanes.lane import LaneSession
from ortlock.localise import SessionMaker
from ortlock.lockfile import read
from ortlock.report import Status, Verdict
from ortlock.verify import NAMES, Budget, Evidence, StressResult, Subject, verify
from ortlock.verify.stress import together
from ortlock.verify.subject import inputs_digest
from tests.cpu.planted import CPU, OBSERVE, FaultyMaker, chain, serialized

FEED = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}
IMAGES = [{"x": models.seeded_input((1, 3, size, size))} for size in (24, 32)]
ON_CPU = {"again", "fresh session", "shuffled shapes", "threads", "busy", "poisoned memory", "fresh process"}


def stress(found: Evidence, name: str) -> StressResult:
    return next(one for one in found.stresses if one.name == name)


def net() -> Subject:
    return Subject(SessionMaker(OBSERVE, Source(data=models.conv_net(2))), IMAGES, threads=3)


def test_every_stress_that_this_machine_has_is_run() -> None:
    found = verify(net(), budget=Budget(runs=4))
    assert found.status is Status.HOLDS
    ran = {one.name: one for one in found.stresses if one.runs}
    assert {name for name in ran if "=" not in name} == ON_CPU
    assert {"enable_mem_pattern=False", "enable_cpu_mem_arena=False"} < set(ran)
    assert all(one.runs >= 4 and one.distinct == 1 and one.status is Status.HOLDS for one in ran.values())
    assert stress(found, "threads").runs == 6  # three threads, both inputs
    skipped = stress(found, "memory limit")
    assert (skipped.status, skipped.note, skipped.distinct) == (Status.UNKNOWN, "needs the CUDA provider", 0)
    assert found.inputs == tuple(inputs_digest(feed) for feed in IMAGES)
    assert found.localised is None
    assert "no output differed" in found.summary()


@pytest.mark.parametrize(("mode", "asked"), [("pin", None), ("strict", 2)])
def test_every_lane_runs(mode: str, asked: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    run = InferenceSession.run

    def noted(self: InferenceSession, *arguments: Any, **options: Any) -> Any:
        used.append(f"{id(self._sess)} {threading.get_ident()}")
        return run(self, *arguments, **options)

    monkeypatch.setattr(InferenceSession, "run", noted)
    count = asked or 3
    configuration = Configuration(((CPU, {}),), mode, lanes=asked)
    subject = Subject(SessionMaker(configuration, Source(data=models.conv_net(2))), IMAGES, threads=2)
    plain = replace(configuration, lanes=None).open(Source(data=models.conv_net(2)))
    found = verify(subject, own=plain, budget=Budget(runs=1), stresses=("lanes",))
    lanes = stress(found, "lanes")
    # Every lane and two threads, both inputs.
    assert (lanes.status, lanes.runs, lanes.distinct) == (Status.HOLDS, 2 * (count + 2), 1)
    assert lanes.note == f"lanes that ran: {count}"
    assert found.outputs == tuple(plain.digest(run(plain, None, image)) for image in IMAGES)
    meeting = used[2 : 2 + 2 * count]
    assert len({one.split()[0] for one in meeting}) == count
    assert len({one.split()[1] for one in meeting}) == count


def test_a_lane_with_other_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = InferenceSession.run

    def wrong(self: InferenceSession, *arguments: Any, **options: Any) -> Any:
        return [value + isinstance(self, LaneSession) for value in run(self, *arguments, **options)]

    monkeypatch.setattr(InferenceSession, "run", wrong)
    session = ReproducibleSession(chain(3), providers=[CPU])
    found = session.verify(FEED, runs=1, stresses=("again", "lanes"))
    assert [(one.status, one.distinct) for one in found.stresses] == [(Status.HOLDS, 1), (Status.VIOLATED, 2)]


def test_a_lane_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortlock.verify.lanes._SECONDS_TO_MEET", 0.1)

    def refuse(self: LaneSession, *arguments: Any) -> None:
        raise RuntimeError("no room")

    session = ReproducibleSession(chain(3), providers=[CPU])
    monkeypatch.setattr(LaneSession, "__init__", refuse)
    found = stress(session.verify(FEED, runs=1, stresses=("lanes",)), "lanes")
    assert (found.status, found.runs) == (Status.HOLDS, 7)
    assert found.note.startswith("lanes that ran: 1; asked for; without CUDA they need no streams; lane ")
    assert found.note.endswith(" could not be made: no room")


def test_observe_has_no_lanes() -> None:
    found = verify(net(), budget=Budget(runs=1), stresses=("again", "lanes"))
    lanes = stress(found, "lanes")
    assert (lanes.status, lanes.runs, lanes.note) == (Status.UNKNOWN, 0, "mode observe has no lanes")
    assert found.status is Status.HOLDS
    maker = FaultyMaker(chain(3), "t1", steady=True)
    found = verify(Subject(maker, [FEED]), budget=Budget(runs=1), stresses=("lanes",))
    assert stress(found, "lanes").note == "needs sessions of ONNX Runtime"


def test_sessions_like_one_have_its_lanes() -> None:
    session = ReproducibleSession(chain(3), providers=[CPU], lanes=2)
    made = Configuration.from_dict(Configuration.of(session).to_dict())
    assert made.lanes == 2
    lanes = made.open(Source(data=chain(3))).report().lanes
    assert lanes is not None
    assert lanes.count == 2
    assert Configuration.of(ReproducibleSession(chain(3), providers=[CPU])).lanes is None


def test_one_shape_cannot_be_shuffled() -> None:
    found = verify(Subject(net().maker, IMAGES[:1]), budget=Budget(runs=1), stresses=("shuffled shapes",))
    assert stress(found, "shuffled shapes").note == "needs inputs of two shapes or more"
    assert found.status is Status.UNKNOWN


def test_a_fault_is_found_and_its_node_named() -> None:
    model = chain(60)
    found = verify(Subject(FaultyMaker(model, "t33"), [FEED]), budget=Budget(runs=10), data=model)
    assert found.status is Status.VIOLATED
    again = stress(found, "again")
    assert (again.status, again.runs, again.distinct) == (Status.VIOLATED, 1, 2)
    assert stress(found, "threads").note == "not reached"
    assert found.localised is not None
    assert found.localised.node is not None
    assert found.localised.node.name == "n33"
    assert "first node that differs: n33 (Add)" in str(found)
    assert found.to_dict()["localised"]["node"]["index"] == 33


def test_a_rare_fault_needs_runs() -> None:
    model = chain(4)
    found = verify(Subject(FaultyMaker(model, "t1", one_in=15), [FEED]), budget=Budget(runs=100), stresses=("again",))
    assert found.status is Status.VIOLATED
    assert 1 < stress(found, "again").runs < 100


def test_without_early_stop_every_stress_is_run() -> None:
    model = chain(4)
    names = ("again", "threads")
    subject = Subject(FaultyMaker(model, "t1"), [FEED], threads=2)
    found = verify(subject, budget=Budget(runs=6), stresses=names, early_stop=False)
    assert [(one.runs, one.distinct) for one in found.stresses] == [(6, 7), (6, 7)]


def test_a_budget_in_seconds_ends() -> None:
    found = verify(net(), budget=Budget(seconds=0.2), stresses=("again", "threads"))
    assert found.seconds < 5
    assert all(one.runs >= 2 for one in found.stresses)


def test_a_run_that_fails_where_it_should_not_is_no_evidence() -> None:
    class Failing(FaultyMaker):
        def original(self) -> Any:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        verify(Subject(Failing(chain(2), "t0"), [FEED]))


def test_a_search_that_fails_leaves_the_evidence() -> None:
    found = verify(Subject(FaultyMaker(chain(3), "t1"), [FEED]), budget=Budget(runs=5), data=b"no model")
    assert (found.status, found.localised) == (Status.VIOLATED, None)
    assert found.note.startswith("The node could not be looked for: the model cannot be read as ONNX")
    assert found.note in str(found)


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    verify(net(), budget=Budget(runs=2), stresses=("again",), progress=lambda *values: told.append(values))
    assert told == [("again", 2, 2)]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="there is no stress 'heat'; there are again, "):
        verify(net(), stresses=("heat",))
    with pytest.raises(ValueError, match="at least one set of inputs"):
        verify(Subject(net().maker, []))
    assert "again" in NAMES


BAD_COUNTS: tuple[Any, ...] = (0, -1, 1.5, True, "2")


@pytest.mark.parametrize("value", BAD_COUNTS)
def test_counts_that_are_none(value: Any) -> None:
    session = ReproducibleSession(chain(2), providers=[CPU])
    told = f"={value!r}: give a whole number".replace(".", r"\.")
    for name in ("runs", "threads"):
        with pytest.raises(ValueError, match=f"^{name}{told}"):
            session.verify(FEED, **{name: value})
    for name in ("runs", "sessions"):
        with pytest.raises(ValueError, match=f"^{name}{told}"):
            session.localise(FEED, **{name: value})
    with pytest.raises(ValueError, match=f"^runs{told}"):
        session.measure_placement(FEED, runs=value)


def test_times_and_threads_out_of_range() -> None:
    session = ReproducibleSession(chain(2), providers=[CPU])
    for seconds in (0, -1, float("nan"), float("inf"), True, "1"):
        with pytest.raises(ValueError, match=f"^seconds={seconds!r}: give a number of seconds above 0"):
            session.verify(FEED, seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^threads=1025: give a whole number from 1 to 1024"):
        session.verify(FEED, threads=1025)
    with pytest.raises(ValueError, match="one run has none to be compared with"):
        session.localise(FEED, runs=1, sessions=1)
    found = session.verify(FEED, runs=np.int64(2), threads=np.int64(2), stresses=("again", "threads"))  # type: ignore[arg-type]
    assert [one.runs for one in found.stresses] == [2, 2]


@pytest.mark.parametrize(
    ("inputs", "kind"), [(None, "None"), (FEED["x"], "ndarray"), ("x", "str"), (3, "int"), ([FEED["x"]], "ndarray")]
)
def test_inputs_that_are_no_feed(inputs: Any, kind: str) -> None:
    session = ReproducibleSession(chain(2), providers=[CPU])
    calls = (session.verify, session.localise, session.batch_invariance, session.measure_placement)
    for call in calls:
        given = "list" if isinstance(inputs, list) and call != session.verify else kind
        with pytest.raises(
            TypeError, match=rf"^inputs: a feed is a mapping from input names to values.* not {given}\.$"
        ):
            call(inputs)
    with pytest.raises(TypeError, match="3 is no name"):
        session.verify({3: FEED["x"]})  # type: ignore[dict-item]


def test_stresses_as_one_text() -> None:
    session = ReproducibleSession(chain(2), providers=[CPU])
    with pytest.raises(TypeError, match=r"^stresses='again': give a list of names: \['again'\]\.$"):
        session.verify(FEED, stresses="again")


def test_threads_that_cannot_be_started_leave_none_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = threading.active_count(), threading.Thread.start
    started: list[threading.Thread] = []

    def second_fails(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", second_fails)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        together(net(), ReproducibleSession(models.conv_net(2), providers=[CPU]))
    started[0].join(30)
    assert threading.active_count() == before


def test_a_session_verifies_itself_and_reports_it() -> None:
    session = ReproducibleSession(models.conv_net(2), providers=[CPU], mode="strict")
    found = session.verify(IMAGES, runs=2, threads=2)
    assert found.status is Status.HOLDS
    assert session.digest(session.run(None, IMAGES[0])) == found.outputs[0]
    report = session.report()
    assert report.verdict is Verdict.BITWISE
    assert report.evidence == (found,)
    assert [reason.code for reason in report.scope("process").reasons] == ["evidence"]
    assert report.to_dict()["evidence"][0]["status"] == "holds"
    assert found.summary() in str(report)
    assert found.summary() in report.to_markdown()
    json.dumps(report.to_dict())


def test_what_varies_violates_the_report() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"], name="draw")]
    session = ReproducibleSession(serialized(nodes, ["n"]), providers=[CPU], mode="observe")
    found = session.verify(FEED, runs=2)
    assert found.status is Status.VIOLATED
    assert found.localised is not None
    assert found.localised.node is not None
    assert (found.localised.node.name, found.localised.node.status) == ("draw", "stateful")
    report = session.report()
    assert "evidence-differs" in [reason.code for reason in report.reasons]
    assert session.localise(FEED).node == found.localised.node


def test_nan_inputs_are_compared_as_bits() -> None:
    session = ReproducibleSession(chain(3), providers=[CPU])
    found = session.verify({"x": np.array([np.nan, np.inf, -0.0], np.float32)}, runs=2)
    assert found.status is Status.HOLDS
    assert inputs_digest({"x": np.array([0.0])}) != inputs_digest({"x": np.array([-0.0])})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "net.onnx"
    found.write_bytes(models.conv_net(2))
    return found


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    quick = ("--provider", "cpu", "--runs", "1", "--stress", "again")
    status = main(["verify", *map(str, (*arguments, *quick))])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_golden_digests_are_written_and_checked(capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path) -> None:
    lock = tmp_path / "net.lock.json"
    shapes = ("--shapes", "x:1x3x16x16,x:1x3x24x24")
    status, out, err = call(capsys, path, "--lock", lock, "--golden", *shapes)
    assert (status, err) == (0, "")
    assert f"{lock}: 2 golden digests written" in out
    held = read(lock)
    assert held is not None
    (section,) = held.environments.values()
    assert sorted(golden.inputs["x"] for golden in section.golden.values()) == [
        "float32[1,3,16,16]",
        "float32[1,3,24,24]",
    ]
    before = lock.read_bytes()
    status, out, _ = call(capsys, path, "--lock", lock, *shapes, "--json")
    assert status == 0
    assert [one["status"] for one in json.loads(out)["golden"]] == ["holds", "holds"]
    assert lock.read_bytes() == before
    # Recording choices afterwards keeps them.
    session = ReproducibleSession(path, providers=[CPU], lockfile=lock, lock_mode="update")
    session.save_lockfile()
    assert read(lock) == held
    status, out, _ = call(capsys, path, "--lock", lock, "--shapes", "x:1x3x20x20")
    assert status == 2
    assert "holds no golden digest for these inputs in this environment; write it with --golden." in out
    # One digest that is another.
    entry = next(iter(section.golden.values()))
    lock.write_text(lock.read_text().replace(entry.outputs, f"sha256:{'0' * 64}"))
    status, out, _ = call(capsys, path, "--lock", lock, *shapes)
    assert status == 1
    assert "violated: other bits than the golden ones" in out
    assert "holds: the golden bits" in out


def test_golden_bits_of_another_number_of_threads_cannot_be_judged(
    capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "net.lock.json"
    call(capsys, path, "--lock", lock, "--golden", "--dim", "size=16")
    raw = json.loads(lock.read_text())
    (section,) = raw["environments"].values()
    (entry,) = section["golden"].values()
    entry["threads"] = {"intra_op_num_threads": "61"}
    lock.write_text(json.dumps(raw))
    # The same bits are the same bits.
    assert call(capsys, path, "--lock", lock, "--dim", "size=16")[0] == 0
    entry["outputs"] = f"sha256:{'0' * 64}"
    lock.write_text(json.dumps(raw))
    status, out, _ = call(capsys, path, "--lock", lock, "--dim", "size=16")
    assert status == 2
    assert "the golden ones came with intra_op_num_threads=61" in out


def test_a_damaged_golden_digest_is_told_with_its_line(
    capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "net.lock.json"
    call(capsys, path, "--lock", lock, "--golden", "--dim", "size=16")
    text = lock.read_text().replace('"outputs": "sha256:', '"outputs": "md5:')
    lock.write_text(text)
    line = next(number for number, one in enumerate(text.splitlines(), 1) if '"md5:' in one)
    status, _, err = call(capsys, path, "--lock", lock, "--dim", "size=16")
    assert status == 2
    assert f"line {line}: " in err
    assert lock.read_text() == text


def test_no_golden_digest_is_written_of_what_varies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, lock = tmp_path / "draw.onnx", tmp_path / "lock.json"
    path.write_bytes(serialized([helper.make_node("RandomNormalLike", ["x"], ["y"], name="draw")], ["n"]))
    status, out, _ = call(capsys, path, "--lock", lock, "--golden")
    assert status == 1
    assert "first node that differs: draw (RandomNormalLike)" in out
    assert "no golden digest written" in out


def test_bad_input_is_one_clear_line(capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.npz"
    image = np.zeros((1, 3, 16, 16), np.float32)
    for arrays, said in (
        ({"z": image}, f"ortlock: --inputs {file}: holds no x; it holds z."),
        (
            {"x": image.astype(np.float64)},
            f"ortlock: --inputs {file}: x is float64, the model takes float32. Write it with "
            "array.astype(numpy.float32).",
        ),
        (
            {"x": image[0]},
            f"ortlock: --inputs {file}: x has the shape [3, 16, 16], the model takes [1, 3, size, size]. "
            "Give an array of that shape.",
        ),
        (
            {"x": image[:, :2]},
            f"ortlock: --inputs {file}: x has the shape [1, 2, 16, 16], the model takes [1, 3, size, size]. "
            "Give an array of that shape.",
        ),
    ):
        np.savez(file, **arrays)
        status, out, err = call(capsys, path, "--inputs", file)
        assert (status, out, err) == (2, "", f"{said}\n")
    np.savez(file, x=np.full_like(image, np.nan))
    assert call(capsys, path, "--inputs", file)[0] == 0


def test_lockfile_of_another_model(capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path) -> None:
    lock, other = tmp_path / "lock.json", tmp_path / "other.onnx"
    call(capsys, path, "--lock", lock, "--golden", "--dim", "size=16")
    other.write_bytes(models.conv_net(3))
    status, out, err = call(capsys, other, "--lock", lock, "--dim", "size=16")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "it is for another model: net.onnx" in err
    status, _, err = call(capsys, path, "--golden")
    assert (status, err) == (2, "ortlock: --golden writes to a lockfile; give --lock FILE too.\n")


def test_sessions_are_made_with_the_callers_placement_and_random_ops() -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], seed=3.0)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 5]) for name in ("x", "y")]
    graph = helper.make_graph([node], "noise", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    session = ReproducibleSession(model, providers=[CPU], mode="strict", random_ops="restart", placement="off")
    made = Configuration.from_dict(Configuration.of(session).to_dict())
    assert (made.random_ops, made.placement) == ("restart", "off")
    x = np.zeros((4, 5), np.float32)
    evidence = session.verify({"x": x}, runs=4, stresses=("again", "fresh session", "fresh process"))
    assert evidence.status is Status.HOLDS
    (drawn,) = made.open(Source(data=model)).run(None, {"x": x})
    np.testing.assert_array_equal(drawn, session.run(None, {"x": x})[0])
    assert Configuration.of(ReproducibleSession(model, providers=[CPU], mode="observe")).placement is None
