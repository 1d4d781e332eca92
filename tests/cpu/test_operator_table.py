"""The operator table: its form, what it covers, and whether it agrees with what was measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ortlock.operators import Basis, OperatorStatus, lookup
from ortlock.operators.docs import document, main
from ortlock.operators.knowledge import knowledge_of
from ortlock.operators.measurements import measured, measurements, registered_on_cuda
from ortlock.operators.rows import PROVIDERS, TableError, families, index, parse, rows, rows_of

Status = OperatorStatus
ROOT = Path(__file__).resolve().parents[2]
CUDA = PROVIDERS["cuda"]

ROW = """
[[row]]
operators = "Relu"
provider = "cuda"
status = "deterministic"
basis = "by construction"
reason = "One thread."
"""
HEADER = 'title = "T"\nabout = "A"\n'


def test_every_registered_operator_has_a_row() -> None:
    registered = {("cuda", one.domain, one.name) for one in registered_on_cuda()}
    assert len(registered) == len(registered_on_cuda()) == 261
    assert registered - rows().keys() == set()
    assert ("cuda", "com.microsoft", "SparsePagedAttention") in registered
    relu = next(one for one in registered_on_cuda() if one.name == "Relu")
    assert {"float16", "float32", "float64"} <= set(relu.types)


def test_every_measured_operator_has_a_row_with_its_condition() -> None:
    assert measurements().keys() - rows().keys() == set()
    for one in measured().operators:
        conditions = {row.when for row in rows()[one.provider, one.domain, one.operator]}
        assert one.when in conditions, one


def test_measurements_do_not_contradict_the_rows() -> None:
    """A claim with a differing run beside it is wrong; cuDNN's plans are chosen by the interposer, not by stock."""
    checked = 0
    for key, members in rows().items():
        for row in members:
            for one in measurements().get(key, ()):
                if one.when != row.when or row.through_cudnn:
                    continue
                checked += 1
                assert one.runs >= 12, one
                if row.status is Status.DETERMINISTIC:
                    assert not one.varied, f"{one.operator} is said to be deterministic: {one.differing}"
                if row.status is Status.SETTING and row.setting == "use_deterministic_compute":
                    assert one.deterministic.differ == 0, f"{one.operator} differs with the setting: {one.differing}"
                    assert one.deterministic.distinct == 1
                if row.status in (Status.NONDETERMINISTIC, Status.STATEFUL):
                    assert one.varied, f"{one.operator} is said to vary and never did"
    assert checked > 400


def test_measurements_agree_with_themselves() -> None:
    keys = [(one.provider, one.domain, one.operator, one.when) for one in measured().operators]
    assert len(set(keys)) == len(keys)
    for one in measured().operators:
        assert measured().sources[one.source].provider == one.provider
        for counted in (one.stock, one.deterministic):
            assert (counted.distinct > 1) == (counted.differ > 0), one
            assert counted.differ <= len(one.differing) <= one.cases


def test_what_nobody_measured_is_unknown() -> None:
    exempt = 0
    for key, members in rows().items():
        for row in members:
            knowledge = knowledge_of(row, key[2])
            if row.status not in (Status.DETERMINISTIC, Status.SETTING):
                assert knowledge.status is row.status
            elif any(one.when == row.when for one in measurements().get(key, ())):
                assert knowledge.status is row.status
                assert "of 12 runs" in knowledge.evidence
            elif row.computes and not row.through_cudnn:
                assert knowledge.status is Status.UNKNOWN
                assert knowledge.basis is Basis.NONE
                assert knowledge.reason.endswith("nobody has measured it.")
            else:
                exempt += 1
    assert exempt > 10


def test_only_what_computes_nothing_goes_without_a_measurement() -> None:
    exempt = {name for members in rows().values() for row in members if not row.computes for name in row.names}
    control = {"If", "Loop", "Scan"}
    passing_on = {
        "Constant",
        "Flatten",
        "Identity",
        "MemcpyFromHost",
        "MemcpyToHost",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
    }
    describing = {"Shape", "Size"}
    containers = {name for name in exempt if name.startswith(("Sequence", "Optional"))}
    assert len(containers) == 9
    assert exempt == control | passing_on | describing | containers


def test_evidence_says_what_was_measured() -> None:
    mean = lookup("ReduceMean", "", CUDA, {})
    assert mean.setting == "use_deterministic_compute"
    assert mean.evidence.startswith("NVIDIA H200, ORT 1.31.1: 13 cases of 12 runs (")
    assert mean.evidence.endswith(
        "; 5 differ, up to 12 distinct of 12 in stock, none differs with use_deterministic_compute."
    )
    relu = lookup("Relu", "", CUDA, {})
    assert relu.evidence.endswith("1 distinct of 12 in each, with use_deterministic_compute and without.")
    conv = lookup("ConvTranspose", "", CUDA, {})
    assert conv.through_cudnn
    assert "8 differ, up to 12 distinct of 12 in stock" in conv.evidence


def test_conditions_have_evidence_of_their_own() -> None:
    adding = lookup("ScatterND", "", CUDA, {"reduction": "add"})
    plain = lookup("ScatterND", "", CUDA, {})
    largest = lookup("ScatterND", "", CUDA, {"reduction": "max"})
    assert (adding.when, plain.when, largest.when) == ("reduction is add or mul", "reduction is none", None)
    assert "12 cases of 12 runs" in adding.evidence
    assert "8 differ, up to 12 distinct" in plain.evidence
    assert "1 distinct of 12 in each" in largest.evidence


def test_what_to_do_with_them() -> None:
    assert lookup("ScatterElements", "", CUDA, {"reduction": "add"}).placement == "cpu"
    assert lookup("ScatterElements", "", CUDA, {"reduction": "max"}).placement is None
    einsum = lookup("Einsum", "", CUDA, {"equation": "ij->j"})
    assert einsum.placement == "cpu"
    assert einsum.rewrite is not None
    assert einsum.rewrite.startswith("ReduceSum")
    group = lookup("GroupNorm", "com.microsoft", CUDA, {})
    assert group.placement is None  # the CPU provider has no kernel
    assert group.rewrite is not None
    assert "ReduceMean" in group.rewrite
    assert lookup("ScatterND", "", PROVIDERS["cpu"], {}).setting == "intra_op_num_threads"


def test_where_to_run_it_is_where_it_is_deterministic() -> None:
    """The CPU provider must have the operator, deterministic, or by a setting of its own."""
    for (provider, domain, operator), members in rows().items():
        for row in members:
            if provider == "cuda" and row.placement == "cpu":
                there = lookup(operator, domain, PROVIDERS["cpu"], {})
                assert there.status is Status.DETERMINISTIC or there.setting is not None, operator


def test_one_operator_at_a_time_gives_the_same_as_the_whole_table() -> None:
    assert all(rows_of(key) == members for key, members in rows().items())
    assert rows_of(("cuda", "", "NobodyKnows")) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("reason", "resaon"), "resaon"),
        (('"cuda"', '"tensorrt"'), "tensorrt"),
        (('"deterministic"', '"fine"'), "fine"),
        (('"by construction"', '"none"'), "does not go with basis"),
        (('"One thread."', '""'), "length >= 1"),
        (('"deterministic"', '"deterministic with a setting"'), "without a setting"),
        (('"deterministic"', '"stateful"'), "without a remedy"),
        (('operators = "Relu"', 'operators = "Relu"\nwhen = "it rains"'), "unknown condition 'it rains'"),
        (('operators = "Relu"', 'operators = "Relu"\nort = "1.31"'), "regex"),
        (('operators = "Relu"', 'operators = "Relu"\nplacement = "cpu"'), "neither placement nor rewrite"),
        (('operators = "Relu"', 'operators = "Relu Abs Relu"'), "an operator twice: Relu"),
        (('operators = "Relu"', 'operators = "Relu'), "line"),
        (('provider = "cuda"', 'provider = "cpu"\nthrough_cudnn = true'), "cuDNN"),
        (("title", "heading"), "heading"),
    ],
)
def test_malformed_rows_are_refused(change: tuple[str, str], message: str) -> None:
    good = HEADER + ROW
    assert parse("good.toml", good).row[0].names == ("Relu",)
    with pytest.raises(TableError, match=f"bad.toml: .*{message}"):
        parse("bad.toml", good.replace(*change, 1))


def test_rows_that_none_reaches_are_refused() -> None:
    once = parse("a.toml", HEADER + ROW)
    twice = parse("a.toml", HEADER + ROW + ROW)
    never = parse("a.toml", HEADER + ROW.replace("provider", 'when = "float16 or bfloat16"\nprovider'))
    with pytest.raises(TableError, match=r"a\.toml: a row of Relu comes after one that covers it"):
        index({"a.toml": twice})
    with pytest.raises(TableError, match=r"b\.toml: Relu is in a\.toml as well"):
        index({"a.toml": once, "b.toml": once})
    with pytest.raises(TableError, match=r"a\.toml: Relu has no row for the case that no condition holds"):
        index({"a.toml": never})


def test_versions_of_a_row() -> None:
    row = parse("a.toml", HEADER + ROW.replace("provider", 'ort = ">=1.20 <1.31"\nprovider')).row[0]
    assert [row.concerns(version) for version in ((1, 19), (1, 20), (1, 30), (1, 31), (2, 0), None)] == [
        False,
        True,
        True,
        False,
        False,
        True,
    ]


def test_remedies_name_what_to_do() -> None:
    for members in rows().values():
        for row in members:
            if row.placement:
                assert "CPU provider" in row.remedy or row.status is Status.UNKNOWN


def test_the_page_is_what_the_table_says() -> None:
    assert (ROOT / "docs" / "operators.md").read_text("utf-8") == document()


def test_the_page_has_every_operator_and_family() -> None:
    text = document()
    assert all(f"## {family.title}\n" in text for family in families().values())
    words = set(text.replace("|", " ").split())
    assert {key[2] for key in rows()} - {word.strip(",") for word in words} == set()


def test_the_page_is_written_to_a_file_or_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "operators.md")]) == 0
    assert (tmp_path / "operators.md").read_text("utf-8") == document()
    assert main([]) == 0
    assert capsys.readouterr().out == document()
    assert main(["a", "b"]) == 2


def test_measured_json_is_what_the_sweeps_say() -> None:
    script = ROOT / "benchmarks" / "operator_evidence.py"
    if not (ROOT / "benchmarks" / "results").is_dir():
        pytest.skip("the sweeps' results are not in a source distribution")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
