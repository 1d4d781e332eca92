"""From the caller's options to what is pinned, overridden, kept or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ortlock.errors import NotReproducibleError
from ortlock.policy import Mode
from ortlock.settings import probes
from ortlock.settings.model import CPU, Kind, OwnValue, Setting, Support, normalise, parse_version
from ortlock.settings.state import Origin, Resolution, SettingState
from ortlock.settings.table import SETTINGS


class SessionOptionsLike(Protocol):
    """The part of ``onnxruntime.SessionOptions`` that is read; attributes are read by name."""

    def get_session_config_entry(self, key: str, /) -> str: ...


def resolve(
    mode: Mode,
    options: SessionOptionsLike,
    providers: Sequence[str],
    provider_options: Sequence[Mapping[str, Any]],
    environ: Mapping[str, str],
    ort_version: str,
) -> Resolution:
    """Decide about every setting of the table that concerns a session with ``providers``. Changes nothing itself.

    Args:
        mode: ``observe`` decides nothing and says what would break; ``pin`` and ``strict`` pin.
        options: the caller's session options; only read. Entries that are in no table cannot be listed: ONNX Runtime
            has no way to enumerate them.
        providers: provider names, as ONNX Runtime has normalised them. The CPU provider is always counted in.
        provider_options: the caller's options, in the order of ``providers``, values of any type; may be shorter.
        environ: the environment of the process.
        ort_version: ``onnxruntime.__version__``.
    """
    return _Resolver(mode, options, providers, provider_options, environ, parse_version(ort_version)).resolve()


class _Resolver:
    def __init__(
        self,
        mode: Mode,
        options: SessionOptionsLike,
        providers: Sequence[str],
        provider_options: Sequence[Mapping[str, Any]],
        environ: Mapping[str, str],
        version: tuple[int, int],
    ) -> None:
        self.mode = mode
        self.options = options
        self.environ = environ
        self.version = version
        padded = [*provider_options, *({} for _ in providers)]
        self.given: dict[str, Mapping[str, Any]] = {}
        for provider, given in zip(providers, padded, strict=False):
            self.given.setdefault(provider, given or {})
        self.relevant = {*providers, CPU}
        self.result = Resolution()
        self.warnings: list[str] = []
        self.refusals: list[NotReproducibleError] = []

    def resolve(self) -> Resolution:
        states = [
            _SPECIAL.get(setting.key, _Resolver.judge)(self, setting)
            for setting in SETTINGS
            if setting.provider is None or setting.provider in self.relevant
        ]
        states += self.unknown_provider_options()
        return replace(self.result, states=tuple(states), warnings=tuple(self.warnings), refusals=tuple(self.refusals))

    def requested(self, setting: Setting) -> str | None:
        """Return the caller's own value as text; None where there is none or it is the default of an attribute."""
        match setting.kind:
            case Kind.SESSION_OPTION:
                value = getattr(self.options, setting.key, None)
                text = None if value is None else _text(value)
                return None if text is None or normalise(text) == normalise(setting.default) else text
            case Kind.CONFIG_ENTRY:
                try:
                    return self.options.get_session_config_entry(setting.key)
                except RuntimeError:
                    return None
            case Kind.PROVIDER_OPTION:
                given = self.given.get(setting.provider or "", {})
                return str(given[setting.key]) if setting.key in given else None
        return self.environ.get(setting.key)

    def support(self, setting: Setting) -> Support:
        if setting.kind is Kind.SESSION_OPTION:
            return Support.YES if hasattr(self.options, setting.key) else Support.NO
        return setting.support(self.version)

    def judge(self, setting: Setting, safe: Callable[[str], bool] | None = None) -> SettingState:
        """Decide about one setting by its row; ``safe`` replaces the row's set of safe values."""
        requested, support = self.requested(setting), self.support(setting)
        given_by = Origin.ENVIRONMENT if setting.kind is Kind.ENVIRONMENT else Origin.USER
        if support is Support.NO:
            note = "This version of ONNX Runtime does not have it."
            if requested is None or setting.kind is Kind.ENVIRONMENT:
                return self.state(setting, "", requested, Origin.UNSUPPORTED, note)
            return self.state(setting, requested, requested, given_by, f"{note} Passed on as it is.")
        if requested is None:
            return self.default_or_pin(setting, support)
        value = normalise(requested)
        if setting.domain is not None and value not in setting.domain:
            note = "No value that ONNX Runtime is known to accept; left for it to judge."
            return self.state(setting, requested, requested, given_by, note)
        is_safe = safe(requested) if safe else value in setting.safe_values or self.excused(setting)
        if setting.own_value is OwnValue.KEEP or is_safe:
            return self.state(setting, requested, requested, given_by, setting.effect)
        if self.mode is not Mode.PIN:
            if self.mode is Mode.STRICT:
                self.refuse(setting, requested)
            return self.state(setting, requested, requested, given_by, setting.effect, breaks=True)
        if setting.own_value is OwnValue.WARN:
            self.warn(setting, requested, "is kept, but the same bits cannot be promised with it")
            return self.state(setting, requested, requested, given_by, setting.effect, breaks=True)
        replacement = setting.replacement
        self.apply(setting, replacement)
        done = "is unset while the session is created" if replacement is None else f"is overridden with {replacement!r}"
        self.warn(setting, requested, done)
        return self.state(setting, replacement or "", requested, Origin.OVERRIDDEN, setting.effect)

    def default_or_pin(self, setting: Setting, support: Support) -> SettingState:
        safe_default = (
            setting.own_value is OwnValue.KEEP
            or setting.kind is Kind.ENVIRONMENT
            or normalise(setting.default) in setting.safe_values
            or self.excused(setting)
        )
        if self.mode is Mode.OBSERVE or setting.pinned is None:
            return self.state(setting, setting.default, None, Origin.DEFAULT, setting.effect, breaks=not safe_default)
        if setting.kind is Kind.PROVIDER_OPTION and support is not Support.YES:
            # Setting an option that a newer version dropped would make it refuse the session.
            note = "Not set: this ONNX Runtime is newer than what was checked. Its default was safe until then."
            return self.state(setting, setting.default, None, Origin.DEFAULT, note, breaks=not safe_default)
        self.apply(setting, setting.pinned)
        return self.state(setting, setting.pinned, None, Origin.PINNED, setting.effect)

    def excused(self, setting: Setting) -> bool:
        """Return whether another option of the provider makes every value of this one safe."""
        if setting.unless is None:
            return False
        other, value = setting.unless
        given = self.given.get(setting.provider or "", {})
        return other in given and normalise(given[other]) == value

    def apply(self, setting: Setting, value: str | None) -> None:
        match setting.kind:
            case Kind.SESSION_OPTION:
                current = getattr(self.options, setting.key)
                self.result.attributes[setting.key] = value == "1" if isinstance(current, bool) else int(value or 0)
            case Kind.CONFIG_ENTRY:
                self.result.config_entries[setting.key] = value or ""
            case Kind.PROVIDER_OPTION:
                self.result.provider_options.setdefault(setting.provider or "", {})[setting.key] = value or ""
            case Kind.ENVIRONMENT:
                self.result.environment[setting.key] = value

    def warn(self, setting: Setting, requested: str, done: str) -> None:
        self.warnings.append(
            f"{_subject(setting, requested)} {done}. {setting.effect} Evidence: {setting.evidence} "
            f"Remedy: {setting.remedy}"
        )

    def refuse(self, setting: Setting, requested: str) -> None:
        reason = f"{setting.effect} Evidence: {setting.evidence}"
        self.refusals.append(NotReproducibleError(_subject(setting, requested), reason, setting.remedy))

    def state(
        self, setting: Setting, value: str, requested: str | None, origin: Origin, note: str, *, breaks: bool = False
    ) -> SettingState:
        return SettingState(
            setting.key, setting.kind, setting.provider, value, requested, origin, note, breaks, setting.operators
        )

    def threads(self, setting: Setting) -> SettingState:
        """intra_op_num_threads: an explicit number, so that it does not depend on the machine unseen."""
        requested = self.requested(setting)
        if getattr(self.options, "use_per_session_threads", True) is False:
            note = "The session takes its threads from the process-wide pool, whose size was set when it was made."
            return self.state(setting, requested or setting.default, requested, Origin.NOT_PINNED, note)
        if requested is not None:
            return self.state(setting, requested, requested, Origin.USER, setting.effect)
        by_environment = self.thread_variable()
        if self.mode is Mode.OBSERVE:
            chosen = (
                f"ORT_INTRA_OP_NUM_THREADS={by_environment} gives the number."
                if by_environment
                else f"ONNX Runtime chooses by the machine; {probes.physical_cores()} cores are allowed here."
            )
            return self.state(setting, setting.default, None, Origin.DEFAULT, f"{setting.effect} {chosen}")
        count = by_environment or probes.physical_cores()
        self.result.attributes[setting.key] = count
        source = "ORT_INTRA_OP_NUM_THREADS" if by_environment else "the physical cores that this process may use"
        return self.state(setting, str(count), None, Origin.PINNED, f"{setting.effect} Taken from {source}.")

    def thread_variable(self) -> int | None:
        text = self.environ.get("ORT_INTRA_OP_NUM_THREADS", "").strip()
        # Between 1.27 and 1.31 nothing was checked: a version that does not read it would choose another number.
        known = self.version >= (1, 31)
        return int(text) if known and re.fullmatch(r"[1-9][0-9]{0,3}", text) else None

    def convolution_search(self, setting: Setting) -> SettingState:
        """cudnn_conv_algo_search: every value is kept; without ortlock's answers the timed one breaks the contract."""
        state = self.judge(setting)
        timed = self.version < (1, 20) and state.value == "EXHAUSTIVE"
        return replace(state, breaks=True) if timed and self.mode is Mode.OBSERVE else state

    def denormals(self, setting: Setting) -> SettingState:
        """session.set_denormal_as_zero: also broken where other code has already set the calling thread to flush."""
        state = self.judge(setting)
        if state.breaks or not probes.denormals_flushed():
            return state
        cause = (
            "An earlier session or library made this thread flush denormals to zero; the session did not ask for it."
        )
        subject = f"{setting.key} (thread state)"
        remedy = "Keep that session or library out of this process, or load it in another one."
        if self.mode is Mode.STRICT:
            self.refusals.append(NotReproducibleError(subject, cause, remedy))
        elif self.mode is Mode.PIN:
            self.warnings.append(f"{subject}: {cause} Remedy: {remedy}")
        return replace(state, origin=Origin.NOT_PINNED, note=cause, breaks=True)

    def partitioning(self, setting: Setting) -> SettingState:
        """session.resource_cuda_partitioning_settings: safe where it starts with a limit, or is empty."""
        return self.judge(
            setting, lambda value: not value.strip() or re.match(r"\s*[1-9][0-9]*\s*(,|$)", value) is not None
        )

    def unknown_provider_options(self) -> list[SettingState]:
        known = {(setting.provider, setting.key) for setting in SETTINGS if setting.kind is Kind.PROVIDER_OPTION}
        note = "ortlock does not know this option. Passed on as it is."
        return [
            SettingState(str(key), Kind.PROVIDER_OPTION, provider, str(value), str(value), Origin.USER, note, False)
            for provider, given in self.given.items()
            for key, value in given.items()
            if (provider, key) not in known
        ]


_SPECIAL: dict[str, Callable[[_Resolver, Setting], SettingState]] = {
    "intra_op_num_threads": _Resolver.threads,
    "cudnn_conv_algo_search": _Resolver.convolution_search,
    "session.set_denormal_as_zero": _Resolver.denormals,
    "session.resource_cuda_partitioning_settings": _Resolver.partitioning,
}


def _text(value: object) -> str:
    """Return an attribute's value as text, an enumeration's by its name."""
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else str(value)


def _subject(setting: Setting, requested: str) -> str:
    where = f" of {setting.provider}" if setting.kind is Kind.PROVIDER_OPTION else ""
    return f"{setting.kind} {setting.key}={requested!r}{where}"
