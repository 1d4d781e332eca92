"""The caller's SessionOptions: read, copied, and left as they were."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnxruntime.capi import _pybind_state

from ortlock import NotReproducibleError, ReproducibleSession
from ortlock.session import options as session_options
from tests.cpu.session_models import CPU, add_model, feeds, model

MODEL = add_model()
MODES = ("observe", "pin", "strict")
ENTRY = "session.record_ep_graph_assignment_info"


def attributes(options: Any) -> dict[str, Any]:
    names = [name for name in dir(options) if not name.startswith("_") and not callable(getattr(options, name))]
    assert "intra_op_num_threads" in names
    return {name: getattr(options, name) for name in names}


def pinned_threads(session: Any) -> tuple[str, str]:
    state = next(state for state in session.report().settings if state.key == "intra_op_num_threads")
    return state.value, state.origin


@pytest.mark.parametrize("mode", MODES)
def test_callers_options_stay_as_they_were(mode: str) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    before = attributes(options)
    session = ReproducibleSession(MODEL, options, mode=mode)
    session.set_providers([CPU])
    assert attributes(options) == before
    assert session_options.config_entry(options, ENTRY) is None


@pytest.mark.parametrize("mode", ["pin", "strict"])
def test_pins_are_in_the_session(mode: str) -> None:
    session = ReproducibleSession(MODEL, onnxruntime.SessionOptions(), mode=mode)
    threads = session.get_session_options().intra_op_num_threads
    assert threads > 0
    assert pinned_threads(session) == (str(threads), "pinned")


def test_observe_pins_nothing() -> None:
    session = ReproducibleSession(MODEL, onnxruntime.SessionOptions(), mode="observe")
    assert session.get_session_options().intra_op_num_threads == 0
    assert pinned_threads(session) == ("0", "default")


def test_own_thread_count_is_kept() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 3
    session = ReproducibleSession(MODEL, options, mode="strict")
    assert session.get_session_options().intra_op_num_threads == 3
    assert pinned_threads(session) == ("3", "user")


def test_default_options_of_onnxruntime_stay_as_they_were() -> None:
    before = attributes(_pybind_state.get_default_session_options())
    ReproducibleSession(MODEL, mode="pin")
    assert attributes(_pybind_state.get_default_session_options()) == before


@settings(max_examples=40, deadline=None)
@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            "enable_cpu_mem_arena": st.booleans(),
            "enable_mem_pattern": st.booleans(),
            "execution_mode": st.sampled_from(list(onnxruntime.ExecutionMode.__members__.values())),
            "execution_order": st.sampled_from(list(onnxruntime.ExecutionOrder.__members__.values())),
            "graph_optimization_level": st.sampled_from(list(onnxruntime.GraphOptimizationLevel.__members__.values())),
            "inter_op_num_threads": st.integers(0, 3),
            "intra_op_num_threads": st.integers(0, 3),
            "log_severity_level": st.integers(2, 4),
            "log_verbosity_level": st.integers(0, 2),
            "logid": st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8),
            "optimized_model_filepath": st.sampled_from(["", "/nowhere/at/all.onnx"]),
            "profile_file_prefix": st.sampled_from(["", "/nowhere/at/all"]),
            "use_deterministic_compute": st.booleans(),
        },
    ),
    entries=st.dictionaries(st.sampled_from(["session.a", "b", ENTRY]), st.sampled_from(["0", "1", "long " * 9])),
)
def test_clone_is_equal_and_independent(values: dict[str, Any], entries: dict[str, str]) -> None:
    original = onnxruntime.SessionOptions()
    session_options.apply(original, values, entries)
    copied = session_options.clone(original)
    assert attributes(copied) == attributes(original) == attributes(original) | values
    assert {key: copied.get_session_config_entry(key) for key in entries} == entries
    copied.intra_op_num_threads = 4
    copied.add_session_config_entry("only.in.the.copy", "1")
    assert original.intra_op_num_threads == values.get("intra_op_num_threads", 0)
    assert session_options.config_entry(original, "only.in.the.copy") is None


def test_clone_keeps_dimension_overrides() -> None:
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 7)
    session = ReproducibleSession(MODEL, options)
    assert session.get_inputs()[0].shape == [7]


def test_tiny_model_is_a_model() -> None:
    onnx.checker.check_model(onnx.load_from_string(session_options.TINY_MODEL))
    session = onnxruntime.InferenceSession(session_options.TINY_MODEL)
    (y,) = session.run(None, {"x": np.array([5], np.float32)})
    assert y == [5]


def test_profiling_leaves_one_file(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ReproducibleSession(MODEL, options)
    session.run(None, feeds())
    file = Path(session.end_profiling())
    assert list(tmp_path.iterdir()) == [file]
    assert '"add' in file.read_text()
    assert options.enable_profiling is True


def test_options_that_cannot_be_copied_are_borrowed() -> None:
    # The copier's own model is no ORT-format model, so this entry makes copying fail; the session is refused alike.
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    before = attributes(options)
    with pytest.raises(Exception, match="ORT model verification failed") as stock:
        onnxruntime.InferenceSession(MODEL, options)
    with pytest.raises(type(stock.value), match="ORT model verification failed"):
        ReproducibleSession(MODEL, options)
    assert attributes(options) == before


def test_ort_format_model(tmp_path: Path) -> None:
    file = tmp_path / "model.ort"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(file)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(MODEL, options)
    forced = onnxruntime.SessionOptions()
    forced.add_session_config_entry("session.load_model_format", "ORT")
    for made in (onnxruntime.SessionOptions(), forced):
        session = ReproducibleSession(str(file), made)
        assert session.run(["s"], feeds())[0].tolist() == [3, 5]
        assert session.get_session_options().intra_op_num_threads > 0
        assert made.intra_op_num_threads == 0
        assert session.report().nodes_known_by in ("assignment", "unknown")


def test_borrowed_options_are_put_back_after_an_error() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("kept", "old")
    before = attributes(options)
    inside = []

    def use() -> None:
        with session_options.borrowed(options, {"intra_op_num_threads": 5}, {"kept": "new", "absent": "new"}):
            inside.append((options.intra_op_num_threads, options.get_session_config_entry("kept")))
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        use()
    assert inside == [(5, "new")]
    assert attributes(options) == before
    assert options.get_session_config_entry("kept") == "old"
    assert session_options.config_entry(options, "absent") is None


@pytest.fixture(scope="module")
def custom_ops(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the custom-op library with")
    library = tmp_path_factory.mktemp("custom") / "custom_op.so"
    source = Path(__file__).with_name("data") / "custom_op.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return str(library)


def custom_model() -> bytes:
    node = helper.make_node("AddOne", ["x"], ["y"], name="one more", domain="ortlock.test")
    return model([node], domains=["ortlock.test"])


@pytest.mark.parametrize("mode", ["observe", "pin"])
def test_custom_operators(custom_ops: str, mode: str) -> None:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(custom_ops)
    before = attributes(options)
    session = ReproducibleSession(custom_model(), options, mode=mode)
    assert session.run(None, {"x": np.array([3], np.float32)})[0].tolist() == [4]
    assert (session.get_session_options().intra_op_num_threads > 0) is (mode == "pin")
    assert attributes(options) == before
    # What cannot be removed again was not added.
    assert session_options.config_entry(options, ENTRY) is None
    session.set_providers([CPU])
    assert session.run(None, {"x": np.array([4], np.float32)})[0].tolist() == [5]


def test_custom_operators_are_refused_in_strict(custom_ops: str) -> None:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(custom_ops)
    with pytest.raises(NotReproducibleError, match="AddOne"):
        ReproducibleSession(custom_model(), options, mode="strict")


def test_one_options_object_in_many_threads(custom_ops: str) -> None:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(custom_ops)
    before = attributes(options)
    results: list[Any] = []
    origins = set()

    def work() -> None:
        for _ in range(5):
            session = ReproducibleSession(custom_model(), options)
            results.append(session.run(None, {"x": np.array([1], np.float32)})[0].tolist())
            origins.add(pinned_threads(session)[1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[2.0]] * 20
    # Nobody took what another session had pinned for a moment for the caller's own value.
    assert origins == {"pinned"}
    assert attributes(options) == before


@pytest.mark.skipif(not hasattr(onnxruntime.SessionOptions, "add_provider"), reason="this ONNX Runtime lacks it")
@pytest.mark.parametrize("mode", MODES)
def test_providers_registered_with_the_options(mode: str) -> None:
    options = onnxruntime.SessionOptions()
    options.add_provider(CPU, {})
    assert options.has_providers()
    before = attributes(options)
    session = ReproducibleSession(MODEL, options, mode=mode)
    assert session.run(["s"], feeds())[0].tolist() == [3, 5]
    assert (session.get_session_options().intra_op_num_threads > 0) is (mode != "observe")
    assert attributes(options) == before
    with pytest.warns(UserWarning, match="already been configured with providers"):
        assert ReproducibleSession(MODEL, options, [CPU], mode=mode).get_providers() == [CPU]
