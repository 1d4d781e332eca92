"""The audit: what it says of a model, from the file alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortlock import ModelFileError, audit, models
from ortlock.audit import Action, OperatorAudit, Verdict
from ortlock.cli import main
from ortlock.operators import duplicate_indices
from ortlock.operators.weightless import parse_without_weights, read_without_weights

OPSETS = [helper.make_opsetid("", 16)]


def build(
    nodes: list[Any],
    inits: list[Any] | None = None,
    functions: list[Any] | None = None,
    inputs: dict[str, int] | None = None,
) -> onnx.ModelProto:
    """Return a model of an input x [4,3] and further ones of any shape, by element type."""
    more = [helper.make_tensor_value_info(name, element, None) for name, element in (inputs or {}).items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3]), *more],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        inits or [],
    )
    opsets = [*OPSETS, helper.make_opsetid("f", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=functions or [])


SCATTERED = {"i": TensorProto.INT64, "u": TensorProto.FLOAT}
"""The inputs of a ScatterND besides x."""


def scatter(name: str = "adder", **attributes: Any) -> Any:
    return helper.make_node("ScatterND", ["x", "i", "u"], ["y"], name=name, **attributes)


def found(operators: tuple[OperatorAudit, ...], op_type: str) -> OperatorAudit:
    (one,) = [operator for operator in operators if operator.op_type == op_type]
    return one


def test_actions_by_mode_and_status() -> None:
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"]),
        helper.make_node("ReduceSum", ["a"], ["b"], name="sum"),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("RandomNormalLike", ["c"], ["d"], name="noise"),
        helper.make_node("Mystery", ["d"], ["e"], domain="f"),
        scatter(reduction="add"),
    ]
    inputs = {**SCATTERED, "image": TensorProto.FLOAT, "w": TensorProto.FLOAT}
    result = audit(build(nodes, inputs=inputs).SerializeToString())
    assert result.loads
    expected = {
        "ScatterND": ("report", "report", "move"),
        "RandomNormalLike": ("report", "report", "refuse"),
        "Mystery": ("report", "report", "refuse"),
        "ReduceSum": ("report", "pin", "pin"),
        "Conv": ("report", "plan", "plan"),
        "Relu": ("run", "run", "run"),
    }
    names = {
        "report": Action.REPORT,
        "refuse": Action.REFUSE,
        "move": Action.MOVE,
        "pin": Action.PIN,
        "plan": Action.PLAN,
        "run": Action.RUN,
    }
    assert [operator.name for operator in result.operators] == [
        "ScatterND",
        "RandomNormalLike",
        "f.Mystery",
        "ReduceSum",
        "Conv",
        "Relu",
    ]
    for operator in result.operators:
        assert list(operator.actions.values()) == [names[word] for word in expected[operator.op_type]]
    assert [node.label for node in found(result.operators, "Mystery").nodes] == ["Mystery #4"]
    assert result.verdict is Verdict.VIOLATED
    assert result.counts == {
        "nondeterministic": 1,
        "stateful": 1,
        "unknown": 1,
        "deterministic with a setting": 1,
        "deterministic": 2,
    }


@pytest.mark.parametrize(
    ("op_type", "observe", "pin", "strict", "cpu"),
    [
        ("Relu", "holds", "holds", "holds", "holds"),
        ("GlobalAveragePool", "holds", "holds", "holds", "holds"),
        ("ReduceMean", "violated", "holds", "holds", "holds"),
        ("Conv", "unknown", "holds", "holds", "holds"),
        ("RandomNormalLike", "violated", "violated", "violated", "violated"),
        ("Mystery", "unknown", "unknown", "unknown", "unknown"),
    ],
)
def test_verdict(op_type: str, observe: str, pin: str, strict: str, cpu: str) -> None:
    image = {"image": TensorProto.FLOAT}
    inputs = {"Conv": ["image", "image"], "GlobalAveragePool": ["image"]}.get(op_type, ["x"])
    data = build([helper.make_node(op_type, inputs, ["y"])], inputs=image).SerializeToString()
    verdicts = [str(audit(data, mode=mode).verdict) for mode in ("observe", "pin", "strict")]
    assert verdicts == [observe, pin, strict]
    assert audit(data, "cpu").verdict == cpu


def test_paths_of_subgraphs_and_functions() -> None:
    def branch(nodes: list[Any]) -> Any:
        return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])

    deepest = branch([scatter("Scatter_3", reduction="add"), scatter("", reduction="add")])
    loop = helper.make_node("Loop", ["n"], ["y"], name="loop1", body=deepest)
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch([loop]), else_branch=branch([loop]))
    body = [helper.make_node("Inner", ["a"], ["b"], domain="f", name="call2")]
    functions = [
        helper.make_function("f", "Outer", ["a"], ["b"], body, OPSETS),
        helper.make_function("f", "Inner", ["a"], ["b"], [scatter("deep", reduction="add")], OPSETS),
        helper.make_function("f", "Unused", ["a"], ["b"], [scatter("dead", reduction="add")], OPSETS),
    ]
    nodes = [choice, scatter("top", reduction="add"), helper.make_node("Outer", ["x"], ["z"], domain="f", name="call")]
    result = audit(build(nodes, functions=functions).SerializeToString())
    assert [node.label for node in found(result.operators, "ScatterND").nodes] == [
        "If #0/else_branch/loop1/body: Scatter_3",
        "If #0/else_branch/loop1/body: ScatterND #1",
        "If #0/then_branch/loop1/body: Scatter_3",
        "If #0/then_branch/loop1/body: ScatterND #1",
        "top",
        "function f.Inner: deep",
    ]
    assert found(result.operators, "Outer").status == "deterministic"
    node = found(result.operators, "ScatterND").nodes[1]
    assert (node.name, node.path, node.index) == ("", ("If #0/else_branch", "loop1/body"), 1)


def test_attribute_that_a_call_sets_is_not_known() -> None:
    node = scatter("open")
    node.attribute.append(onnx.AttributeProto(name="reduction", type=onnx.AttributeProto.STRING, ref_attr_name="how"))
    function = helper.make_function("f", "Mine", ["x", "i", "u"], ["y"], [node], OPSETS, ["how"])
    call = helper.make_node("Mine", ["x", "i", "u"], ["y"], domain="f", how="max")
    result = audit(build([call], functions=[function]).SerializeToString())
    assert found(result.operators, "ScatterND").status == "nondeterministic"


ROWS = {
    "different": ([[0], [2], [1]], False),
    "same": ([[0], [2], [0]], True),
    "same from the back": ([[0], [3], [-1]], True),
    "different from the back": ([[0], [3], [-2]], False),
    "all from the back": ([[-1], [-2]], False),
    "pairs": ([[0, 1], [1, 0], [0, 2]], False),
    "same pairs": ([[0, 1], [1, 0], [0, 1]], True),
}


@pytest.mark.parametrize(("indices", "expected"), ROWS.values(), ids=ROWS)
def test_duplicate_rows(indices: list[list[int]], expected: bool) -> None:
    model = build([scatter()], [numpy_helper.from_array(np.array(indices), "i")])
    assert duplicate_indices(model, model.graph.node[0]) is expected
    # Without the size of what is written to, indices from both ends cannot be compared.
    model.graph.input[0].type.tensor_type.ClearField("shape")
    unclear = len({index[0] < 0 for index in indices}) == 2
    assert duplicate_indices(model, model.graph.node[0]) is (None if unclear else expected)


@pytest.mark.parametrize(
    ("indices", "axis", "expected"),
    [
        ([[0, 1, 2], [1, 2, 0]], 0, False),
        ([[0, 1, 2], [0, 2, 0]], 0, True),
        ([[0, 1, 2], [1, 2, 0]], 1, False),
        ([[0, 1, 1], [1, 2, 0]], -1, True),
        ([[3, 1, 2], [-1, 2, 0]], 0, True),
        ([[2, 1, 0], [-1, 2, 0]], 0, True),
        ([[2, 1, 0], [-1, 2, 1]], 0, False),
    ],
)
def test_duplicate_elements(indices: list[list[int]], axis: int, expected: bool) -> None:
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], axis=axis)
    constant = helper.make_node("Constant", [], ["i"], value=numpy_helper.from_array(np.array(indices, np.int32)))
    model = build([constant, node])
    assert duplicate_indices(model, model.graph.node[1]) is expected


def test_indices_that_are_no_constant_are_not_told() -> None:
    indices = numpy_helper.from_array(np.array([[0], [0]]), "i")
    fed = build([scatter()], [indices])
    fed.graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, [2, 1]))
    computed = build([helper.make_node("Shape", ["x"], ["i"]), scatter()])
    shadowed = build([scatter()], [indices])
    inner = helper.make_graph([helper.make_node("Shape", ["x"], ["i"])], "b", [], [])
    shadowed.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    outside = build([scatter()], [indices])
    outside.graph.initializer[0].data_location = TensorProto.EXTERNAL
    for model in (fed, computed, shadowed, outside):
        node = next(node for node in model.graph.node if node.op_type == "ScatterND")
        assert duplicate_indices(model, node) is None


def test_scatter_with_constant_indices_is_judged_by_them() -> None:
    def judged(indices: list[list[int]], provider: str, **attributes: Any) -> OperatorAudit:
        model = build([scatter(**attributes)], [numpy_helper.from_array(np.array(indices), "i")])
        return found(audit(model.SerializeToString(), provider).operators, "ScatterND")

    for provider in ("cuda", "cpu"):
        once = judged([[0], [1]], provider)
        assert (once.status, once.basis) == ("deterministic", "by construction")
        assert "no duplicates" in once.reason
        twice = judged([[0], [0]], provider)
        assert twice.status == "nondeterministic"
        assert "duplicate indices, undefined in ONNX" in twice.reason
    assert judged([[0], [1]], "cuda", reduction="add").status == "nondeterministic"


def test_weights_are_left_out_and_the_rest_is_kept() -> None:
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.ones((300, 300)), "k"))],
        "b",
        [],
        [helper.make_tensor_value_info("k", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(np.ones((200, 200), np.float32), "deep")],
    )
    model = build(
        [helper.make_node("If", ["c"], ["k"], then_branch=inner, else_branch=inner)],
        [
            numpy_helper.from_array(np.ones((512, 512), np.float32), "w"),
            numpy_helper.from_array(np.arange(20_000), "i"),
            numpy_helper.from_array(np.arange(3, dtype=np.float32), "small"),
        ],
    )
    data = model.SerializeToString()
    slim = parse_without_weights(data)
    assert slim.ByteSize() < 0.1 * len(data)
    tensors = {tensor.name: tensor for tensor in slim.graph.initializer}
    assert list(tensors["w"].dims) == [512, 512]
    assert not tensors["w"].raw_data
    assert numpy_helper.to_array(tensors["i"]).tolist() == list(range(20_000))
    assert numpy_helper.to_array(tensors["small"]).tolist() == [0, 1, 2]
    # Put back, it is the same model.
    for tensor, whole in zip(slim.graph.initializer, model.graph.initializer, strict=True):
        tensor.raw_data = whole.raw_data
    for slim_graph, graph in zip(slim.graph.node[0].attribute, model.graph.node[0].attribute, strict=True):
        assert not slim_graph.g.initializer[0].raw_data
        slim_graph.g.CopyFrom(graph.g)
    assert slim == model


def test_every_model_of_ours_is_read_as_onnx_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.depthwise_net())
    slim, whole = read_without_weights(path), onnx.load(str(path))
    assert [node.SerializeToString() for node in slim.graph.node] == [
        node.SerializeToString() for node in whole.graph.node
    ]
    assert [tensor.name for tensor in slim.graph.initializer] == [tensor.name for tensor in whole.graph.initializer]


def in_a_process(values: str, path: Path) -> list[str]:
    """Return values of an audit in a process of its own, and the most memory that the process held, in MB."""
    code = (
        "import sys, ortlock\n"
        "found = ortlock.audit(sys.argv[1])\n"
        "held = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')]\n"
        f"print({values}, int(held[0]) // 1024)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    ).stdout.split()


def test_external_data_of_3_gb_is_not_loaded(tmp_path: Path) -> None:
    elements, count = 100_000_000, 8
    model = build([helper.make_node("Relu", ["x"], ["y"])])
    for number in range(count):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[elements])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", number * elements * 4), ("length", elements * 4)):
            tensor.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(tensor)
    path, weights = tmp_path / "big.onnx", tmp_path / "w.bin"
    path.write_bytes(model.SerializeToString())
    with weights.open("wb") as file:
        file.truncate(elements * count * 4)
    verdict, problems, megabytes = in_a_process("found.verdict, len(found.files)", path)
    assert (verdict, problems) == ("holds", "0")
    assert int(megabytes) < 300

    with weights.open("r+b") as file:
        file.truncate(elements * count * 4 - 1)
    (short,) = audit(path).files
    assert (short.tensor, short.file, short.count) == ("w7", str(weights), 1)
    assert short.problem == "the tensor ends at byte 3200000000, the file at byte 3199999999"
    weights.unlink()
    (missing,) = audit(path).files
    assert (missing.tensor, missing.count, missing.problem) == ("w0", 8, "there is no such file")
    assert audit(path).verdict is Verdict.UNKNOWN


def test_one_file_of_nearly_2_gb_is_not_loaded(tmp_path: Path) -> None:
    """The weights are a hole in the file: nothing of them is read."""
    size = 1_900_000_000
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4])
    graph = build([helper.make_node("Relu", ["x"], ["y"])]).graph.SerializeToString()

    def field(number: int, length: int) -> bytes:
        value, out = length, [number << 3 | 2]
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    raw = field(9, size)
    head = tensor.SerializeToString() + raw
    initializer = field(5, len(head) + size)
    start = b"\x08\x08" + field(7, len(graph) + len(initializer) + len(head) + size) + graph + initializer + head
    path = tmp_path / "whole.onnx"
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size)
    counts, megabytes = in_a_process("found.counts['deterministic']", path)
    assert counts == "1"
    assert int(megabytes) < 300


WHOLE = models.conv_net(2)
DAMAGED = {
    "truncated.onnx": (WHOLE[: len(WHOLE) // 2], "needs"),
    "text.onnx": (b"this is a note, not a model\n", "text file"),
    "lfs.onnx": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "empty.onnx": (b"", "empty"),
    "noise.onnx": (b"\xff" * 100, "damaged, or no ONNX model"),
    "graphless.onnx": (b"\x08\x08", "holds no graph"),
    "model.ort": (b"\x18\x00\x00\x00ORTM" + b"\x00" * 64, ".ort format"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_one_clear_error(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, expected = DAMAGED[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as raised:
        audit(path)
    assert raised.value.path == str(path)
    assert expected in str(raised.value)
    assert raised.value.remedy
    assert main(["audit", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"ortlock: {raised.value}"


def test_no_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, expected in ((tmp_path / "absent.onnx", "There is no such file."), (tmp_path, "It is a folder")):
        assert main(["audit", str(path)]) == 2
        assert f"{path}: {expected}" in capsys.readouterr().err


def test_every_truncation_is_an_error_or_reads_less() -> None:
    data = build([helper.make_node("Relu", ["x"], ["y"])], [numpy_helper.from_array(np.ones(3), "w")])
    whole = data.SerializeToString()
    for length in range(len(whole)):
        try:
            parse_without_weights(whole[:length])
        except ModelFileError:
            continue
        # What follows the graph is the opsets: a cut between two fields leaves a shorter message.
        assert length > data.graph.ByteSize()


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ValueError, match="provider='gpu'"):
        audit(WHOLE, "gpu")
    with pytest.raises(
        ValueError, match=r"^mode='hard' is no mode of ortlock; choose one of 'observe', 'pin', 'strict'"
    ):
        audit(WHOLE, mode="hard")


@pytest.mark.parametrize(("model", "kind"), [(None, "None"), (3, "int"), (onnx.ModelProto(), "ModelProto")])
def test_what_is_no_model_is_refused(model: Any, kind: str) -> None:
    with pytest.raises(TypeError) as raised:
        audit(model)
    assert str(raised.value) == f"model: give the path of an ONNX model, or its bytes, not {kind}."


@pytest.mark.parametrize(("op_type", "status"), [("Relu", 0), ("RandomNormalLike", 1), ("Mystery", 2)])
def test_command(op_type: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(build([helper.make_node(op_type, ["x"], ["y"], name="only")]).SerializeToString())
    assert main(["audit", str(path), "--json"]) == status
    values = json.loads(capsys.readouterr().out)
    assert values == audit(path).to_dict()
    assert values["operators"][0]["nodes"] == [{"label": "only", "name": "only", "path": [], "index": 0}]
    assert main(["audit", str(path), "--provider", "cpu"]) == status
    shown = capsys.readouterr().out
    assert op_type in shown
    assert "the report of a session judges the nodes that really run" in shown
    assert ("remedy:" in shown) == (status > 0)
    assert str(audit(path)).splitlines()[0].startswith(f"{path} on CUDAExecutionProvider: strict would")


def test_versions_that_cannot_move_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build([scatter(reduction="add")], inputs=SCATTERED).SerializeToString()
    assert audit(data).verdict is Verdict.HOLDS
    monkeypatch.setattr(onnxruntime, "__version__", "1.27.0")
    result = audit(data)
    assert found(result.operators, "ScatterND").actions["strict"] is Action.REFUSE
    assert result.verdict is Verdict.VIOLATED


def test_names_are_text_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    names = ["[/]", "[red]bold[/red]", "a\x1b[31mb"]
    nodes = [scatter(name, reduction="add") for name in names]
    for number, node in enumerate(nodes[:-1]):
        node.output[0] = f"y{number}"
    path.write_bytes(build(nodes, inputs=SCATTERED).SerializeToString())
    assert main(["audit", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "[/], [red]bold[/red], a\\x1b[31mb" in shown
    assert "\x1b" not in shown
