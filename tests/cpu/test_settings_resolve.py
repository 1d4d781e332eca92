"""What is pinned, overridden, kept or refused, on real SessionOptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortlock.policy import Mode
from ortlock.settings import CPU, CUDA, SETTINGS, Kind, Origin, Resolution, SettingState, probes, resolve

ORT = "1.31.1"
MODES = list(Mode)


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "denormals_flushed", lambda: False)
    monkeypatch.setattr(probes, "physical_cores", lambda: 6)


def options(config: Mapping[str, str] | None = None, **attributes: Any) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    for key, value in (config or {}).items():
        made.add_session_config_entry(key, value)
    for key, value in attributes.items():
        setattr(made, key, value)
    return made


def solve(
    mode: Mode,
    given: Mapping[str, Any] | None = None,
    *,
    made: onnxruntime.SessionOptions | None = None,
    environ: Mapping[str, str] | None = None,
    version: str = ORT,
    providers: tuple[str, ...] = (CUDA, CPU),
) -> Resolution:
    return resolve(mode, made or options(), providers, [given or {}, {}], environ or {}, version)


def state(resolution: Resolution, key: str) -> SettingState:
    [found] = [candidate for candidate in resolution.states if candidate.key == key]
    return found


@pytest.mark.parametrize("mode", [Mode.PIN, Mode.STRICT])
def test_pins_for_cuda(mode: Mode) -> None:
    result = solve(mode)
    assert result.attributes == {"use_deterministic_compute": True, "intra_op_num_threads": 6}
    assert result.config_entries == {"ep.cuda.enable_gemm_auto_tune": "0", "ep.cuda.fpa_intb_gemm": "0"}
    assert result.provider_options == {
        CUDA: {"do_copy_in_default_stream": "1", "tunable_op_enable": "0", "tunable_op_tuning_enable": "0"}
    }
    assert (result.environment, result.warnings, result.refusals) == ({}, (), ())
    assert state(result, "tunable_op_enable").origin is Origin.PINNED
    assert not any(found.breaks for found in result.states)


@pytest.mark.parametrize("mode", [Mode.PIN, Mode.STRICT])
def test_pins_for_the_cpu_alone(mode: Mode) -> None:
    result = resolve(mode, options(), [], [], {}, ORT)
    assert result.attributes == {"intra_op_num_threads": 6}
    assert (result.config_entries, result.provider_options, result.environment) == ({}, {}, {})
    assert not [found.key for found in result.states if found.provider == CUDA]


def test_observe_changes_nothing_and_says_what_breaks() -> None:
    result = solve(Mode.OBSERVE, {"tunable_op_enable": True}, environ={"ORT_CUDA_GEMM_AUTO_TUNE": "1"})
    assert result == Resolution(states=result.states)
    assert {found.key for found in result.states if found.breaks} == {
        "use_deterministic_compute",
        "tunable_op_enable",
        "ORT_CUDA_GEMM_AUTO_TUNE",
    }
    assert "ReduceSum" in state(result, "use_deterministic_compute").operators
    assert state(result, "intra_op_num_threads").value == "0"


@pytest.mark.parametrize(
    ("version", "entries"),
    [
        ("1.19.2", {}),
        ("1.27.0", {}),
        ("1.29.0", {"ep.cuda.enable_gemm_auto_tune": "0", "ep.cuda.fpa_intb_gemm": "0"}),
        ("1.40.0", {"ep.cuda.enable_gemm_auto_tune": "0", "ep.cuda.fpa_intb_gemm": "0"}),
    ],
)
def test_config_entries_by_version(version: str, entries: dict[str, str]) -> None:
    result = solve(Mode.PIN, version=version)
    assert result.config_entries == entries
    if not entries:
        found = state(result, "ep.cuda.enable_gemm_auto_tune")
        assert (found.origin, found.value, found.breaks) == (Origin.UNSUPPORTED, "", False)


def test_provider_options_are_not_pinned_on_versions_newer_than_checked() -> None:
    result = solve(Mode.PIN, version="1.40.0")
    assert result.provider_options == {}
    found = state(result, "tunable_op_enable")
    assert (found.origin, found.value) == (Origin.DEFAULT, "0")
    assert "newer than what was checked" in found.note
    # What the caller gives is known to the caller's version, so it is replaced there too.
    assert solve(Mode.PIN, {"tunable_op_enable": "1"}, version="1.40.0").provider_options == {
        CUDA: {"tunable_op_enable": "0"}
    }


class TestFuseConvBias:
    def test_pin_overrides_with_one_warning(self) -> None:
        result = solve(Mode.PIN, {"fuse_conv_bias": 1})
        assert result.provider_options[CUDA]["fuse_conv_bias"] == "0"
        [warning] = result.warnings
        assert warning.startswith(f"provider option fuse_conv_bias='1' of {CUDA} is overridden with '0'.")
        assert "off by 7, 14, 21 on values of 7" in warning
        found = state(result, "fuse_conv_bias")
        assert (found.value, found.requested, found.origin, found.breaks) == ("0", "1", Origin.OVERRIDDEN, False)

    def test_strict_refuses_with_the_evidence(self) -> None:
        [refusal] = solve(Mode.STRICT, {"fuse_conv_bias": "True"}).refusals
        assert refusal.subject == f"provider option fuse_conv_bias='True' of {CUDA}"
        assert "previous output is added in" in refusal.reason
        assert "prefer_nhwc=1" in refusal.remedy

    @pytest.mark.parametrize("mode", MODES)
    def test_right_in_nhwc(self, mode: Mode) -> None:
        result = solve(mode, {"fuse_conv_bias": "1", "prefer_nhwc": True})
        assert (result.warnings, result.refusals) == ((), ())
        found = state(result, "fuse_conv_bias")
        assert (found.value, found.origin, found.breaks) == ("1", Origin.USER, False)

    def test_unknown_to_1_19_is_passed_on_for_onnxruntime_to_refuse(self) -> None:
        result = solve(Mode.PIN, {"fuse_conv_bias": "1"}, version="1.19.2")
        assert "fuse_conv_bias" not in result.provider_options[CUDA]
        assert result.warnings == ()
        assert state(result, "fuse_conv_bias").origin is Origin.USER


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("do_copy_in_default_stream", False, "1"),
        ("tunable_op_enable", True, "0"),
        ("tunable_op_tuning_enable", 1, "0"),
    ],
)
def test_unsafe_provider_options(key: str, bad: object, good: str) -> None:
    result = solve(Mode.PIN, {key: bad})
    assert result.provider_options[CUDA][key] == good
    assert len(result.warnings) == 1
    assert [refusal.subject for refusal in solve(Mode.STRICT, {key: bad}).refusals] == [
        f"provider option {key}={str(bad)!r} of {CUDA}"
    ]
    kept = solve(Mode.STRICT, {key: good})
    assert kept.refusals == ()
    assert state(kept, key).origin is Origin.USER
    assert key not in kept.provider_options[CUDA]


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_onnxruntime_refuses_is_left_for_it(mode: Mode) -> None:
    result = solve(mode, {"tunable_op_enable": "perhaps"})
    assert "tunable_op_enable" not in result.provider_options.get(CUDA, {})
    assert (result.warnings, result.refusals) == ((), ())


@pytest.mark.parametrize("key", ["ep.cuda.enable_gemm_auto_tune", "ep.cuda.fpa_intb_gemm"])
def test_unsafe_config_entries(key: str) -> None:
    made = options({key: "1"})
    assert solve(Mode.PIN, made=made).config_entries[key] == "0"
    assert len(solve(Mode.PIN, made=made).warnings) == 1
    assert len(solve(Mode.STRICT, made=made).refusals) == 1
    assert made.get_session_config_entry(key) == "1"


@pytest.mark.parametrize(
    "key",
    ["ORT_CUDA_TUNABLE_OP_ENABLE", "ORT_CUDA_TUNABLE_OP_TUNING_ENABLE", "ORT_CUDA_GEMM_AUTO_TUNE", "ORT_FPA_INTB_GEMM"],
)
def test_unsafe_variables_are_unset_while_the_session_is_created(key: str) -> None:
    environ = {key: "1"}
    result = solve(Mode.PIN, environ=environ)
    assert result.environment == {key: None}
    assert len(result.warnings) == 1
    assert "is unset while the session is created" in result.warnings[0]
    assert len(solve(Mode.STRICT, environ=environ).refusals) == 1
    assert environ == {key: "1"}
    safe = solve(Mode.STRICT, environ={key: "0"})
    assert (safe.environment, safe.refusals) == ({}, ())
    assert state(safe, key).origin is Origin.ENVIRONMENT
    assert solve(Mode.PIN, environ=environ, providers=(CPU,)).warnings == ()


def test_a_variable_that_the_version_does_not_read_is_not_touched() -> None:
    result = solve(Mode.STRICT, environ={"ORT_CUDA_GEMM_AUTO_TUNE": "1"}, version="1.26.0")
    assert (result.environment, result.refusals) == ({}, ())
    assert state(result, "ORT_CUDA_GEMM_AUTO_TUNE").origin is Origin.UNSUPPORTED


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", ["NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "ORT_DISABLE_FLASH_ATTENTION"])
def test_variables_that_choose_a_kernel_are_recorded_and_kept(mode: Mode, key: str) -> None:
    result = solve(mode, environ={key: ":4096:8"})
    found = state(result, key)
    assert (found.value, found.requested, found.origin, found.breaks) == (
        ":4096:8",
        ":4096:8",
        Origin.ENVIRONMENT,
        False,
    )
    assert (result.environment, result.warnings, result.refusals) == ({}, (), ())


class TestThreads:
    @pytest.mark.parametrize("mode", [Mode.PIN, Mode.STRICT])
    def test_own_number_is_kept(self, mode: Mode) -> None:
        result = solve(mode, made=options(intra_op_num_threads=3))
        assert "intra_op_num_threads" not in result.attributes
        found = state(result, "intra_op_num_threads")
        assert (found.value, found.origin) == ("3", Origin.USER)

    @pytest.mark.parametrize(("version", "count"), [("1.31.1", 5), ("1.27.0", 6)])
    def test_variable_is_followed_where_the_version_reads_it(self, version: str, count: int) -> None:
        result = solve(Mode.PIN, environ={"ORT_INTRA_OP_NUM_THREADS": "5"}, version=version)
        assert result.attributes["intra_op_num_threads"] == count

    @pytest.mark.parametrize("text", ["", "0", "-1", "many", "99999"])
    def test_variable_without_a_count_is_ignored(self, text: str) -> None:
        result = solve(Mode.PIN, environ={"ORT_INTRA_OP_NUM_THREADS": text})
        assert result.attributes["intra_op_num_threads"] == 6

    def test_process_wide_pool_cannot_be_pinned(self) -> None:
        made = options()
        if not hasattr(made, "use_per_session_threads"):
            pytest.skip("this ONNX Runtime has no process-wide pools in Python")
        made.use_per_session_threads = False
        result = solve(Mode.PIN, made=made)
        assert "intra_op_num_threads" not in result.attributes
        assert state(result, "intra_op_num_threads").origin is Origin.NOT_PINNED
        assert state(result, "use_per_session_threads").requested == "False"


@pytest.mark.parametrize(
    ("version", "mode", "value", "breaks"),
    [
        ("1.19.2", Mode.OBSERVE, None, True),
        ("1.19.2", Mode.OBSERVE, "HEURISTIC", False),
        ("1.19.2", Mode.PIN, "EXHAUSTIVE", False),
        ("1.31.1", Mode.OBSERVE, None, False),
        ("1.31.1", Mode.STRICT, "DEFAULT", False),
    ],
)
def test_convolution_search_is_kept(version: str, mode: Mode, value: str | None, breaks: bool) -> None:
    result = solve(mode, {} if value is None else {"cudnn_conv_algo_search": value}, version=version)
    found = state(result, "cudnn_conv_algo_search")
    assert (found.value, found.requested, found.breaks) == (value or "EXHAUSTIVE", value, breaks)
    assert "cudnn_conv_algo_search" not in result.provider_options.get(CUDA, {})
    assert (result.warnings, result.refusals) == ((), ())


class TestDenormals:
    def test_asked_for(self) -> None:
        made = options({"session.set_denormal_as_zero": "1"})
        pinned = solve(Mode.PIN, made=made, providers=(CPU,))
        assert pinned.config_entries == {}
        assert len(pinned.warnings) == 1
        found = state(pinned, "session.set_denormal_as_zero")
        assert (found.value, found.origin, found.breaks) == ("1", Origin.USER, True)
        assert len(solve(Mode.STRICT, made=made, providers=(CPU,)).refusals) == 1

    def test_set_by_other_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probes, "denormals_flushed", lambda: True)
        key = "session.set_denormal_as_zero"
        observed = solve(Mode.OBSERVE, providers=(CPU,))
        assert (state(observed, key).origin, state(observed, key).breaks) == (Origin.NOT_PINNED, True)
        assert observed.warnings == ()
        assert len(solve(Mode.PIN, providers=(CPU,)).warnings) == 1
        [refusal] = solve(Mode.STRICT, providers=(CPU,)).refusals
        assert refusal.subject == f"{key} (thread state)"


@pytest.mark.parametrize(
    ("value", "warned"), [("8388608,stats.csv", 0), ("4096", 0), ("", 0), (",stats.csv", 1), ("0,x", 1)]
)
def test_partitioning_by_free_memory(value: str, warned: int) -> None:
    made = options({"session.resource_cuda_partitioning_settings": value})
    assert len(solve(Mode.PIN, made=made).warnings) == warned
    assert len(solve(Mode.STRICT, made=made).refusals) == warned


def test_unknown_provider_options_pass_through() -> None:
    result = resolve(Mode.STRICT, options(), ["FutureProvider", CUDA], [{"speed": 11}, {"new_option": None}], {}, ORT)
    speed, new = state(result, "speed"), state(result, "new_option")
    assert (speed.provider, speed.value, speed.origin) == ("FutureProvider", "11", Origin.USER)
    assert (new.provider, new.value, new.breaks) == (CUDA, "None", False)
    assert "does not know" in new.note
    assert result.refusals == ()
    assert set(result.provider_options) == {CUDA}


def test_states_list_every_setting_once_and_are_json() -> None:
    result = solve(Mode.PIN)
    assert [found.key for found in result.states] == [setting.key for setting in SETTINGS]
    values = json.loads(json.dumps([found.to_dict() for found in result.states]))
    assert values[0] == {
        "key": "use_deterministic_compute",
        "kind": "session option",
        "provider": CUDA,
        "value": "1",
        "requested": None,
        "origin": "pinned",
        "note": SETTINGS[0].effect,
        "breaks": False,
        "operators": list(SETTINGS[0].operators),
    }


def test_options_without_an_attribute_do_not_crash() -> None:
    class Bare:
        def get_session_config_entry(self, key: str, /) -> str:
            raise RuntimeError(key)

    result = resolve(Mode.PIN, Bare(), [CUDA], [], {}, "1.19.2")
    assert state(result, "execution_order").origin is Origin.UNSUPPORTED
    assert result.attributes == {"intra_op_num_threads": 6}


KNOWN_OPTIONS = [setting.key for setting in SETTINGS if setting.kind is Kind.PROVIDER_OPTION]
CONFIG_KEYS = [setting.key for setting in SETTINGS if setting.kind is Kind.CONFIG_ENTRY]
VARIABLES = [setting.key for setting in SETTINGS if setting.kind is Kind.ENVIRONMENT]
VALUES = st.one_of(
    st.sampled_from(["0", "1", "True", "off", "EXHAUSTIVE", ""]), st.booleans(), st.integers(), st.none()
)
TEXTS = st.one_of(st.sampled_from(["0", "1", "on", ",stats.csv"]), st.text(st.characters(codec="ascii"), max_size=6))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    mode=st.sampled_from(MODES),
    given=st.dictionaries(st.one_of(st.sampled_from(KNOWN_OPTIONS), st.text(max_size=5)), VALUES, max_size=6),
    config=st.dictionaries(st.sampled_from(CONFIG_KEYS), TEXTS.filter(lambda text: "\0" not in text), max_size=4),
    environ=st.dictionaries(st.sampled_from(VARIABLES), TEXTS, max_size=4),
    version=st.sampled_from(["1.19.2", "1.26.0", "1.27.0", "1.29.0", "1.31.1", "1.32.0", "2.0.0", "nightly"]),
    threads=st.integers(0, 4),
)
def test_whatever_the_caller_gives(
    mode: Mode, given: dict[str, Any], config: dict[str, str], environ: dict[str, str], version: str, threads: int
) -> None:
    onnxruntime.set_default_logger_severity(3)
    made = options(config, intra_op_num_threads=threads)
    result = solve(mode, given, made=made, environ=environ, version=version)
    assert mode is Mode.PIN or result.warnings == ()
    assert mode is Mode.STRICT or result.refusals == ()
    if mode is Mode.OBSERVE:
        assert result == Resolution(states=result.states)
        return
    # A session made as decided needs nothing more, and what was overridden is fine afterwards.
    for key, value in result.attributes.items():
        setattr(made, key, value)
    for key, value in result.config_entries.items():
        made.add_session_config_entry(key, value)
    left = {key: value for key, value in environ.items() if result.environment.get(key, value) is not None}
    merged = {**given, **result.provider_options.get(CUDA, {})}
    again = solve(mode, merged, made=made, environ=left, version=version)
    if mode is Mode.PIN:
        assert (again.attributes, again.config_entries, again.provider_options, again.environment) == ({}, {}, {}, {})
        still = [found for found in again.states if found.breaks]
        assert len(again.warnings) == len(still)
        kept = {"session.set_denormal_as_zero", "session.resource_cuda_partitioning_settings"}
        assert {found.key for found in still} <= kept


def test_a_real_session_takes_the_decision() -> None:
    from onnx import helper

    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [4])],
        [helper.make_tensor_value_info("y", 1, [4])],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    made = options()
    # Both providers' settings: entries for a provider that is not there must do no harm.
    result = solve(Mode.STRICT, made=made, version=onnxruntime.__version__)
    for key, value in result.attributes.items():
        setattr(made, key, value)
    for key, value in result.config_entries.items():
        made.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(model.SerializeToString(), made, providers=[CPU])
    in_force = session.get_session_options()
    assert in_force.intra_op_num_threads == 6
    assert in_force.use_deterministic_compute is True
