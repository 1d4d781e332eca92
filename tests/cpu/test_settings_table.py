"""The settings table against itself and against the ONNX Runtime that is installed."""

from __future__ import annotations

from collections import Counter

import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlock.settings import CUDA, SETTINGS, Kind, OwnValue, Setting, Support, normalise, parse_version

BY_KEY = {setting.key: setting for setting in SETTINGS}
JUDGED = [setting for setting in SETTINGS if setting.own_value is not OwnValue.KEEP]


def test_each_setting_is_there_once() -> None:
    assert [key for key, count in Counter(setting.key for setting in SETTINGS).items() if count > 1] == []


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_texts_are_whole_sentences(setting: Setting) -> None:
    for text in (setting.effect, setting.evidence, *([setting.remedy] if setting.remedy else [])):
        assert text.strip() == text
        assert text.endswith(".")
        assert "  " not in text


@pytest.mark.parametrize("setting", JUDGED, ids=lambda setting: setting.key)
def test_what_is_judged_says_what_is_safe_and_what_to_do(setting: Setting) -> None:
    assert setting.remedy
    assert setting.safe_values
    if setting.own_value is OwnValue.OVERRIDE and setting.replacement is not None:
        assert normalise(setting.replacement) in setting.safe_values
    if setting.domain is not None:
        assert setting.safe_values < setting.domain


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_versions_are_in_order(setting: Setting) -> None:
    if setting.absent is not None:
        assert parse_version(setting.absent) < parse_version(setting.since)
        assert setting.support(parse_version(setting.absent)) is Support.NO
    if setting.since:
        assert setting.support(parse_version(setting.since)) is not Support.NO


@pytest.mark.parametrize(
    ("version", "unsupported"),
    [
        ((1, 19), {"fuse_conv_bias", "enable_cudnn"}),
        ((1, 26), {"enable_cudnn"}),
        ((1, 27), {"enable_cudnn"}),
        ((1, 31), set()),
    ],
)
def test_provider_options_of_the_versions_read(version: tuple[int, int], unsupported: set[str]) -> None:
    options = [setting for setting in SETTINGS if setting.kind is Kind.PROVIDER_OPTION]
    assert {setting.provider for setting in options} == {CUDA}
    assert {setting.key for setting in options if setting.support(version) is Support.NO} == unsupported


def test_what_is_pinned_by_provider_option_was_in_every_version_read() -> None:
    # An unknown provider option makes ONNX Runtime refuse the session.
    pinned = [s for s in SETTINGS if s.kind is Kind.PROVIDER_OPTION and s.pinned is not None]
    assert {s.key for s in pinned} == {"do_copy_in_default_stream", "tunable_op_enable", "tunable_op_tuning_enable"}
    assert {s.since for s in pinned} == {"<=1.19"}


def test_between_checked_versions_is_maybe() -> None:
    setting = BY_KEY["ep.cuda.enable_gemm_auto_tune"]
    supports = [setting.support((1, minor)) for minor in (27, 28, 30, 31, 40)]
    assert supports == [Support.NO, Support.MAYBE, Support.MAYBE, Support.YES, Support.YES]
    assert BY_KEY["tunable_op_enable"].support((1, 40)) is Support.MAYBE


def test_until_ends_a_setting() -> None:
    setting = Setting("gone", Kind.CONFIG_ENTRY, None, "E.", "1.20", "0", "E.", until="1.25")
    assert [setting.support((1, minor)) for minor in (19, 20, 25, 26)] == [
        Support.NO,
        Support.YES,
        Support.YES,
        Support.NO,
    ]


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.kind is Kind.SESSION_OPTION], ids=lambda s: s.key)
def test_defaults_of_session_options_are_those_of_onnxruntime(setting: Setting) -> None:
    options = onnxruntime.SessionOptions()
    if setting.support(parse_version(onnxruntime.__version__)) is Support.YES:
        assert normalise(getattr(options, setting.key)) == setting.default
    else:
        assert not hasattr(options, setting.key) or setting.support((1, 99)) is Support.YES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.31.1", (1, 31)),
        ("1.32.0.dev20260101001", (1, 32)),
        ("v2.0", (2, 0)),
        ("1.19.2+cu12", (1, 19)),
        ("?", (0, 0)),
    ],
)
def test_parse_version(text: str, expected: tuple[int, int]) -> None:
    assert parse_version(text) == expected


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(0, 999), st.text(max_size=8))
def test_parse_version_reads_major_and_minor(major: int, minor: int, rest: str) -> None:
    assert parse_version(f"{major}.{minor}.{rest}") == (major, minor)


@pytest.mark.parametrize("value", [True, 1, "1", "True", " true ", "ON", "yes"])
def test_normalise_true(value: object) -> None:
    assert normalise(value) == "1"


@pytest.mark.parametrize("value", [False, 0, "0", "False", "off", "no", ""])
def test_normalise_false(value: object) -> None:
    assert normalise(value) == "0"


def test_normalise_names_enumerations_and_leaves_the_rest() -> None:
    assert normalise(onnxruntime.ExecutionMode.ORT_PARALLEL) == "ORT_PARALLEL"
    assert normalise(" EXHAUSTIVE ") == "EXHAUSTIVE"
    assert normalise(16) == "16"


@settings(deadline=None)
@given(st.text())
def test_normalise_is_idempotent(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
