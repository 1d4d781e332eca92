"""How a session is made, as a value: so that it can be made again, in a new process, or with one thing changed."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime

from ortlock.errors import ReproducibilityWarning
from ortlock.lockfile import ModelRecord, read
from ortlock.lockfile.files import to_json
from ortlock.model_files import ModelFiles, unchanged
from ortlock.policy import Mode, resolve_mode
from ortlock.report import ModelIdentity
from ortlock.session import ReproducibleSession
from ortlock.session.facts import model_identity
from ortlock.session.options import EXTERNAL_FOLDER, config_entry
from ortlock.settings import Kind

# Addresses in one process; a new session has its own stream and allocator.
_POINTERS = frozenset(
    {
        "user_compute_stream",
        "has_user_compute_stream",
        "gpu_external_alloc",
        "gpu_external_free",
        "gpu_external_empty_cache",
    }
)

# They say where files go and what is logged, not how a model is computed.
_LEFT_OUT = frozenset({"enable_profiling", "profile_file_prefix", "optimized_model_filepath", "logid"})


@dataclass(frozen=True)
class Source:
    """Where a model is."""

    path: str | None = None
    data: bytes | None = None
    files: ModelFiles | None = None
    """What the files of the path must be; None: whatever they are."""

    @property
    def folder(self) -> str | None:
        """Folder of its external data."""
        return str(Path(self.path).absolute().parent) if self.path is not None else None

    def read(self) -> bytes:
        """Return the model file's bytes.

        Raises:
            OSError: the file cannot be read.
            ModelFileError: it has changed.
        """
        if self.data is not None:
            return self.data
        data = Path(self.path or "").read_bytes()
        self.check()
        return data

    def check(self) -> None:
        """Refuse files that are not what they must be.

        Raises:
            ModelFileError: they have changed.
        """
        if self.files is not None:
            self.files.check()


@dataclass(frozen=True)
class Configuration:
    """Everything that a session is made with, but for the model. Its values are those that JSON has."""

    providers: tuple[tuple[str, dict[str, str]], ...]
    mode: str
    lockfile: str | None = None
    attributes: Mapping[str, int | bool | str] = field(default_factory=dict)
    """Attributes of ``SessionOptions`` that are not at their default; enumerations by name."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Session configuration entries."""
    lanes: int | None = None
    """As asked for; None: the default."""
    placement: str | None = None
    """``cpu``, ``off``, or None for the mode's own way."""
    random_ops: str = "error"

    @classmethod
    def of(cls, session: ReproducibleSession) -> Configuration:
        """Return how ``session`` was made, as far as ONNX Runtime tells: custom operator libraries are not told."""
        guard = session._ortlock
        options, default = session.get_session_options(), onnxruntime.SessionOptions()
        attributes = {
            name: _plain(getattr(options, name))
            for name, kind in vars(type(default)).items()
            if isinstance(kind, property) and kind.fset and name not in _LEFT_OUT
            if getattr(options, name) != getattr(default, name)
        }
        keys = {state.key for state in guard.settings if state.kind == Kind.CONFIG_ENTRY}
        entries = {key: value for key in sorted(keys) if (value := config_entry(options, key))}
        given = session.get_provider_options()
        providers = tuple(
            (name, {key: value for key, value in given.get(name, {}).items() if key not in _POINTERS})
            for name in session.get_providers()
        )
        lockfile = str(guard.lock.path.absolute()) if guard.lock is not None else None
        placement = None if session.mode is Mode.OBSERVE else "cpu" if guard.places else "off"
        return cls(
            providers,
            str(session.mode),
            lockfile,
            attributes,
            entries,
            guard.lane_request.count,
            placement,
            str(guard.random_ops),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Configuration:
        """Return what :meth:`to_dict` gave."""
        return msgspec.convert(values, cls)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    def with_provider_options(self, **options: str) -> Configuration:
        """Return a copy whose first provider has these options."""
        (name, given), *others = self.providers
        return replace(self, providers=((name, {**given, **options}), *others))

    def open(self, source: Source) -> ReproducibleSession:
        """Make a session on a model.

        Raises:
            Exception: whatever ONNX Runtime raises, and what :class:`ortlock.ReproducibleSession` raises.
        """
        with unchanged(source.files):
            return self._open(source.path if source.path is not None else source.data, self.lockfile, self._options())

    def open_derived(self, model: bytes, source: Source, *, optimised: bool) -> ReproducibleSession:
        """Make a session on a model that was made from ``source``, e.g. with more outputs.

        The lockfile's choices hold for it too, though it is another model; in strict what is not among them is chosen
        as in pin.

        Args:
            model: its bytes.
            source: the model that it was made from, whose external data it uses.
            optimised: whether ONNX Runtime optimises the graph as configured, or not at all.
        """
        options = self._options()
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if source.folder is not None:
            options.add_session_config_entry(EXTERNAL_FOLDER, source.folder)
        strict = resolve_mode(self.mode) is Mode.STRICT
        relaxed = replace(self, mode=str(Mode.PIN), placement=self.placement or "cpu") if strict else self
        with _lockfile_for(self.lockfile, model_identity(None, model)) as lockfile:
            return relaxed._open(model, lockfile, options)

    def optimise(self, source: Source) -> bytes | None:
        """Return the model as ONNX Runtime has optimised it for this configuration; None where it cannot be saved."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimised.onnx"
            options = self._options()
            options.optimized_model_filepath = str(path)
            options.log_severity_level = 4
            try:
                self._open(source.path if source.path is not None else source.data, self.lockfile, options)
                return path.read_bytes()
            except Exception:
                # A provider that compiles nodes cannot save them, nor can a model of more than 2 GB be saved so.
                return None

    def _open(self, model: Any, lockfile: str | None, options: Any) -> ReproducibleSession:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReproducibilityWarning)
            return ReproducibleSession(
                model,
                options,
                providers=list(self.providers),
                mode=self.mode,
                lockfile=lockfile,
                placement=self.placement,
                random_ops=self.random_ops,
                lanes=self.lanes,
            )

    def _options(self) -> Any:
        options = onnxruntime.SessionOptions()
        for name, value in self.attributes.items():
            kinds = getattr(type(getattr(options, name)), "__members__", None)
            setattr(options, name, kinds[value] if kinds is not None else value)
        for key, text in self.entries.items():
            options.add_session_config_entry(key, text)
        return options


def _plain(value: Any) -> int | bool | str:
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else value


@contextmanager
def _lockfile_for(path: str | None, model: ModelIdentity) -> Iterator[str | None]:
    """Give a copy of a lockfile that is for another model; a session reads it only when it is made."""
    held = read(Path(path)) if path is not None else None
    if held is None or path is None or model.sha256 is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / Path(path).name
        record = ModelRecord(held.model.name, model.sha256, model.size or 0)
        copy.write_text(to_json(msgspec.structs.replace(held, model=record)), encoding="utf-8")
        yield str(copy)
