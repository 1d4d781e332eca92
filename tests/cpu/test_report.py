"""From facts to scopes, verdict and the three renderings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ortlock.native import CANNOT_BE_MADE, NOT_LOCKED, InterposerState, PlanFailure, PlanRecord, SessionRecords
from ortlock.operators import Node, NodeList, judge
from ortlock.policy import Mode
from ortlock.report import (
    Event,
    Facts,
    LockFacts,
    ModelIdentity,
    ReproducibilityReport,
    Status,
    Verdict,
    build,
    claims,
    verdict,
)
from ortlock.session.facts import unmet
from ortlock.settings import Origin, SettingState

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
ATTACHED = InterposerState(
    True, True, "dlsym", "/p/provider.so", 1, (), "/p/libcudnn.so.9", 91900, {"cudnnCreate": 2}, ()
)
DETACHED = InterposerState(False, False, "none", None, 0, (), None, 0, {}, ())
USED = PlanRecord(
    api="graph",
    operation="ConvolutionBackwardData",
    tensors=("dy f32[1,128,28,28]", "w f32[128,64,4,4]"),
    attributes="pad=1,1",
    engine=76,
    knobs=((2, 1), (13, 0)),
    math_type=None,
    numerical_notes=("TENSOR_CORE",),
    behavior_notes=(),
    workspace_bytes=4096,
    status="used",
    count=3,
)
THROUGH = replace(USED, engine=25, numerical_notes=("NONDETERMINISTIC",), status="let through")
FAILURE = PlanFailure(USED.operation, USED.tensors, USED.attributes, 2, True)
DETERMINISTIC = SettingState("use_deterministic_compute", "session option", CUDA, "1", None, Origin.PINNED, "", False)
THREADS = SettingState("intra_op_num_threads", "session option", None, "4", None, Origin.PINNED, "", False)


def facts(*op_types: str, provider: str = CUDA, **changes: Any) -> Facts:
    domains_and_names = [op_type.rpartition(":")[::2] for op_type in op_types]
    nodes = tuple(Node(f"n{i}", name, domain, provider, {}) for i, (domain, name) in enumerate(domains_and_names))
    base = Facts(
        mode=Mode.PIN,
        requested_providers=(provider,),
        providers=(provider, CPU) if provider != CPU else (CPU,),
        nodes=NodeList(nodes, "assignment"),
        findings=judge(nodes),
        settings=(DETERMINISTIC,),
        interposer=ATTACHED,
        records=SessionRecords(10, 3, (USED,), ()),
        events=(),
    )
    return replace(base, **changes)


def outcome(given: Facts) -> tuple[Verdict, dict[str, tuple[str, str]], set[str]]:
    scopes = claims(given)
    codes = {r.code for claim in scopes for r in claim.reasons if claim.scope != "machine"}
    return verdict(scopes), {claim.scope: (str(claim.status), claim.basis) for claim in scopes}, codes


def test_convolutions_hold_by_construction_but_not_across_machines() -> None:
    result, scopes, codes = outcome(facts("Conv", "Relu"))
    assert result is Verdict.BITWISE
    assert scopes["process"] == ("holds", "by construction")
    assert scopes["machine"] == ("unknown", "none")
    assert codes == set()


def test_the_weakest_basis_is_told() -> None:
    assert outcome(facts("Conv", "Softmax"))[1]["run"] == ("holds", "by evidence")


def test_without_cudnn_the_machine_scope_can_hold() -> None:
    assert outcome(facts("Relu", "MatMul"))[1]["machine"] == ("holds", "by construction")


def test_threads_taken_from_the_machine_keep_the_machine_scope_open() -> None:
    result, scopes, _ = outcome(facts("Relu", provider=CPU, settings=(THREADS,), interposer=DETACHED))
    assert result is Verdict.BITWISE
    assert scopes["machine"][0] == "unknown"
    own = replace(THREADS, origin=Origin.USER, requested="4")
    assert outcome(facts("Relu", provider=CPU, settings=(own,), interposer=DETACHED))[1]["machine"][0] == "holds"


BROKEN = replace(DETERMINISTIC, breaks=True, origin=Origin.DEFAULT, value="0")
FUSED_BIAS = SettingState("fuse_conv_bias", "provider option", CUDA, "1", "1", Origin.USER, "", True, ("Conv",))
MEMORY = SettingState("gpu_mem_limit", "provider option", CUDA, "1", "1", Origin.USER, "", True)


@pytest.mark.parametrize(
    ("given", "expected", "code"),
    [
        (facts("ScatterND"), Verdict.NOT_GUARANTEED, "operator-unknown"),
        (facts("Mystery"), Verdict.NOT_GUARANTEED, "operator-unknown"),
        (facts("com.microsoft:GroupNorm"), Verdict.VIOLATED, "operator-nondeterministic"),
        (facts("RandomNormal"), Verdict.VIOLATED, "operator-stateful"),
        (facts("ReduceSum", settings=(BROKEN,)), Verdict.VIOLATED, "operator-deterministic"),
        (facts("Conv", settings=(FUSED_BIAS,)), Verdict.VIOLATED, "setting"),
        (facts("Relu", settings=(MEMORY,)), Verdict.NOT_GUARANTEED, "setting"),
        (facts("Conv", interposer=DETACHED), Verdict.NOT_GUARANTEED, "interposer-detached"),
        (
            facts("Conv", interposer=replace(ATTACHED, resolved_before=("cudnnBackendFinalize",))),
            Verdict.NOT_GUARANTEED,
            "interposer-late",
        ),
        (facts("Relu", interposer=replace(ATTACHED, faults=("x",))), Verdict.NOT_GUARANTEED, "interposer-fault"),
        (
            facts("Conv", records=SessionRecords(9, 1, (THROUGH,), (FAILURE,))),
            Verdict.VIOLATED,
            "no-deterministic-plan",
        ),
        (facts("Conv", records=SessionRecords(9, 1, (THROUGH,), ())), Verdict.VIOLATED, "plan-nondeterministic"),
        (
            facts("Conv", records=SessionRecords(9, 1, (replace(USED, numerical_notes=("UNREADABLE",)),), ())),
            Verdict.NOT_GUARANTEED,
            "plan-unreadable",
        ),
        (
            facts("Conv", mode=Mode.OBSERVE, records=SessionRecords(0, 0, (), ())),
            Verdict.NOT_GUARANTEED,
            "plans-unseen",
        ),
        (facts("Relu", nodes=NodeList((), "unknown"), findings=()), Verdict.NOT_GUARANTEED, "nodes-unknown"),
        (facts("Relu", provider="TensorrtExecutionProvider"), Verdict.NOT_GUARANTEED, "provider-unknown"),
        (facts("Relu", providers=(CPU,)), Verdict.NOT_GUARANTEED, "provider-missing"),
        (
            facts("Relu", events=(Event("fallback", "fell back", Status.VIOLATED, "2026-01-01T00:00:00+00:00"),)),
            Verdict.VIOLATED,
            "fallback",
        ),
    ],
)
def test_what_breaks_a_claim(given: Facts, expected: Verdict, code: str) -> None:
    result, scopes, codes = outcome(given)
    assert result is expected
    assert code in codes
    assert scopes["process"][0] != "holds"
    assert scopes["process"][1] == "none"


def test_what_concerns_no_operator_in_use_breaks_nothing() -> None:
    assert outcome(facts("Relu", settings=(FUSED_BIAS,)))[0] is Verdict.BITWISE
    assert outcome(facts("Relu", interposer=DETACHED))[0] is Verdict.BITWISE
    assert outcome(facts("Conv", settings=(BROKEN,)))[0] is Verdict.NOT_GUARANTEED
    assert outcome(facts("Conv", settings=(replace(BROKEN, operators=("ReduceSum",)),)))[0] is Verdict.BITWISE


@pytest.fixture
def report() -> ReproducibilityReport:
    given = facts(
        "Conv",
        "ScatterND",
        records=SessionRecords(10, 3, (USED, replace(THROUGH, status="refused")), (), dropped=2),
        events=(Event("note", "a | b", Status.HOLDS, "2026-01-01T00:00:00+00:00"),),
    )
    return build(given, ModelIdentity("m.onnx", "ab" * 32, 123), {"onnxruntime": "1.31.1", "fingerprint": "f00"})


def test_to_dict_is_json_with_the_documented_keys(report: ReproducibilityReport) -> None:
    values = json.loads(json.dumps(report.to_dict()))
    assert values["schema"] == 1
    assert list(values) == [
        *("schema", "verdict", "mode", "model", "requested_providers", "providers", "scopes", "operators"),
        *("nodes_known_by", "plans", "failures", "calls", "executions", "plans_dropped", "settings", "environment"),
        *("interposer", "events", "lockfile", "placed", "random", "book", "lanes", "evidence", "batch"),
    ]
    assert values["verdict"] == "not guaranteed"
    assert [claim["scope"] for claim in values["scopes"]] == ["run", "session", "process", "machine"]
    assert values["plans"][0]["knobs"] == [[2, 1], [13, 0]]
    assert values["model"] == {"path": "m.onnx", "sha256": "ab" * 32, "size": 123}
    assert values["interposer"]["calls"] == {"cudnnCreate": 2}


def test_text_says_the_verdict_first_and_every_reason(report: ReproducibilityReport) -> None:
    lines = str(report).splitlines()
    assert lines[0] == f"not guaranteed (mode pin, {CUDA}, {CPU})"
    assert lines[1].startswith("  unknown: n1 (ScatterND) on CUDAExecutionProvider: With duplicate indices")
    assert lines[2].startswith("    remedy: ")
    assert (
        "  used: ConvolutionBackwardData dy f32[1,128,28,28] w f32[128,64,4,4] (pad=1,1): engine 76 [2=1,13=0], "
        "TENSOR_CORE"
    ) in lines
    assert "pinned: use_deterministic_compute=1" in lines
    assert "\x1b" not in str(report)


def test_markdown_escapes_cells(report: ReproducibilityReport) -> None:
    text = report.to_markdown()
    assert text.startswith("# Reproducibility: not guaranteed\n")
    assert "a \\| b" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables
    assert "| process | unknown | none |" in tables


def test_reasons_of_other_machines_are_apart() -> None:
    built = build(facts("Conv"), ModelIdentity(None, None, None), {})
    assert built.verdict is Verdict.BITWISE
    assert built.reasons == ()
    assert [reason.code for reason in built.machine_reasons] == ["ranking-by-machine"]
    assert str(built).splitlines()[1].startswith("scopes: run holds (by construction)")
    assert "  on another machine unknown: cuDNN: " in str(built)


def test_scope_by_name(report: ReproducibilityReport) -> None:
    assert report.scope("run").status is Status.UNKNOWN
    with pytest.raises(KeyError, match="no scope 'planet'"):
        report.scope("planet")


REPLAYED = LockFacts("m.lock.json", "replay", "0123456789abcdef", True, 4, 3, 0, 0)


@pytest.mark.parametrize(
    ("lock", "mode", "code", "text"),
    [
        (REPLAYED, Mode.PIN, None, ""),
        (REPLAYED, Mode.STRICT, None, ""),
        (None, Mode.STRICT, "ranking-by-machine", "was not shown"),
        (replace(REPLAYED, applied=False), Mode.PIN, "ranking-by-machine", "was not shown"),
        (replace(REPLAYED, mode="record"), Mode.STRICT, "ranking-by-machine", "was not shown"),
        (replace(REPLAYED, mode="update"), Mode.STRICT, "ranking-by-machine", "was not shown"),
        (replace(REPLAYED, others=2), Mode.PIN, "ranking-by-machine", "2 operations ran choices that are not in m.lo"),
        (replace(REPLAYED, others=2, replayed=0), Mode.PIN, "ranking-by-machine", "2 operations ran choices"),
        (replace(REPLAYED, replayed=0), Mode.PIN, "plans-unseen", "No operation has run yet"),
        (replace(REPLAYED, replayed=0, held=0), Mode.STRICT, None, ""),
    ],
)
def test_a_lockfile_decides_about_other_machines(
    lock: LockFacts | None, mode: Mode, code: str | None, text: str
) -> None:
    built = build(facts("Conv", mode=mode, lock=lock), ModelIdentity(None, None, None), {})
    assert built.verdict is Verdict.BITWISE
    assert built.reasons == ()
    assert [reason.code for reason in built.machine_reasons] == ([code] if code else [])
    assert built.scope("machine").status is (Status.UNKNOWN if code else Status.HOLDS)
    assert text in (built.machine_reasons[0].text if code else "")


def test_a_lockfile_says_nothing_of_what_is_not_cudnns() -> None:
    unused = replace(REPLAYED, applied=False, replayed=0, others=2)
    for given in (facts("Relu", lock=unused), facts("Conv", provider=CPU, lock=unused, interposer=DETACHED)):
        assert outcome(given)[1]["machine"][0] == "holds"
    threads = facts("Conv", lock=REPLAYED, settings=(DETERMINISTIC, THREADS))
    assert outcome(threads)[1]["machine"][0] == "unknown"


@pytest.mark.parametrize("cause", [NOT_LOCKED, CANNOT_BE_MADE])
def test_what_the_lockfile_kept_from_running_is_told(cause: str) -> None:
    failure = PlanFailure(USED.operation, USED.tensors, USED.attributes, 0, False, cause, "ab" * 16)
    given = facts("Conv", mode=Mode.STRICT, lock=REPLAYED, records=SessionRecords(9, 1, (USED,), (failure,)))
    result, scopes, codes = outcome(given)
    assert (result, codes) == (Verdict.NOT_GUARANTEED, {"not-locked"})
    assert scopes["process"] == ("unknown", "none")
    built = build(given, ModelIdentity(None, None, None), {})
    (reason,) = built.reasons
    assert (reason.subject, reason.text) == (f"{USED.operation} {', '.join(USED.tensors)}", f"Refused: {cause}.")
    assert built.to_dict()["failures"][0]["cause"] == cause
    # It did not run, so strict keeps its promise.
    assert unmet(given) is None


def test_the_remedy_for_a_choice_that_cannot_be_made_is_update() -> None:
    failure = PlanFailure(USED.operation, USED.tensors, USED.attributes, 0, False, CANNOT_BE_MADE, "ab" * 16)
    given = facts("Conv", mode=Mode.STRICT, lock=REPLAYED, records=SessionRecords(9, 1, (USED,), (failure,)))
    (reason,) = build(given, ModelIdentity(None, None, None), {}).reasons
    assert "update" in (reason.remedy or "")


@pytest.mark.parametrize(
    ("lock", "line"),
    [
        (
            REPLAYED,
            "m.lock.json (replay, environment 0123456789abcdef, in force): 4 choices held, 3 replayed, 0 others",
        ),
        (
            replace(REPLAYED, mode="record", written=2, others=2),
            "m.lock.json (record, environment 0123456789abcdef, in force): 4 choices held, 3 replayed, 2 others, "
            "2 written",
        ),
        (
            replace(REPLAYED, applied=False, held=0, replayed=0, others=3),
            "m.lock.json (replay, environment 0123456789abcdef, not in force): 0 choices held, 0 replayed, 3 others",
        ),
    ],
)
def test_every_rendering_tells_of_the_lockfile(lock: LockFacts, line: str) -> None:
    built = build(facts("Conv", lock=lock), ModelIdentity(None, None, None), {})
    assert f"lockfile: {line}" in str(built).splitlines()
    assert f"\n## Lockfile\n\n{line}.\n\n" in built.to_markdown()
    values = json.loads(json.dumps(built.to_dict()))["lockfile"]
    assert list(values) == ["path", "mode", "fingerprint", "applied", "held", "replayed", "others", "written"]
    assert LockFacts(**values) == lock


def test_without_a_lockfile_no_rendering_speaks_of_one() -> None:
    built = build(facts("Relu"), ModelIdentity(None, None, None), {})
    assert built.to_dict()["lockfile"] is None
    assert "ockfile" not in str(built) + built.to_markdown()
