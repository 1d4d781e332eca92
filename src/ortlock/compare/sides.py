"""A side of a comparison, written as text: ``cuda``, ``cpu,threads=1``, ``precision=tf32``, ``lockfile=FILE``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from ortlock.configuration import Configuration, Source
from ortlock.errors import OrtlockError
from ortlock.localise import SessionMaker
from ortlock.settings import CPU, CUDA, SETTINGS, Kind

_PROVIDERS = {"cpu": (CPU,), "cuda": (CUDA, CPU)}
_LEVELS = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_MODES = ("observe", "pin", "strict")
_ENTRIES = ("session.", "ep.", "optimization.", "memory.", "mlas.")
_OWN = ("precision", "mode", "lockfile", "model", "threads", "optimization")
MOST_THREADS = 1024

_TABLE = {
    kind: frozenset(setting.key for setting in SETTINGS if setting.kind == kind)
    for kind in (Kind.CONFIG_ENTRY, Kind.PROVIDER_OPTION)
}

HELP = (
    "cpu or cuda, and, with commas: precision=fp32 or tf32, mode=observe, pin or strict, lockfile=FILE, model=FILE, "
    "threads=N, optimization=off, basic, extended or all, a session configuration entry (session.NAME=VALUE), or an "
    "option of the provider (NAME=VALUE)"
)


class SideError(OrtlockError):
    """A side is written in a way that is not understood."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    text: str
    maker: SessionMaker
    unchecked: tuple[str, ...] = ()
    """Session configuration entries of which it is not known whether ONNX Runtime has them."""

    @property
    def path(self) -> Path:
        """The model's file."""
        return Path(self.maker.source.path or "")

    @property
    def cuda(self) -> bool:
        return self.maker.provider == CUDA

    @property
    def tf32(self) -> bool:
        """Whether products may be taken in TF32: ONNX Runtime's default on CUDA."""
        return self.cuda and self.maker.configuration.providers[0][1].get("use_tf32", "1") not in ("0", "false")

    def without_tf32(self) -> Side:
        """Return the same side with TF32 off."""
        configuration = self.maker.configuration.with_provider_options(use_tf32="0")
        return replace(self, maker=replace(self.maker, configuration=configuration))


def parse_side(text: str, model: Path, default: str = "cpu") -> Side:
    """Return the side that a text describes.

    Args:
        text: as above; parts that it leaves out are ``default``'s.
        model: the model where it names none.
        default: ``cpu`` or ``cuda``.

    Raises:
        SideError: a part is not understood, or does not go with the provider.
    """
    given: dict[str, str] = {}
    provider = None
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            empty = "a part is empty" if text.strip() else "it is empty"
            raise SideError(f"side {text!r}: {empty}. Give {HELP}.")
        name, separator, value = part.partition("=")
        if not separator:
            if name not in _PROVIDERS or provider is not None:
                raise SideError(f"side {text!r}: {part!r} is not understood. Give {HELP}.")
            provider = name
        elif name in given or not value:
            raise SideError(f"side {text!r}: {name} {'comes twice' if name in given else 'has no value'}.")
        else:
            given[name] = value
    needs_cuda = given.get("precision") == "tf32"
    provider = provider or ("cuda" if needs_cuda else default)
    options: dict[str, str] = {}
    entries: dict[str, str] = {}
    attributes: dict[str, int | bool | str] = {}
    mode, lockfile, path = "pin", None, model
    for name, value in given.items():
        match name:
            case "precision":
                options["use_tf32"] = _choice(text, name, value, {"fp32": "0", "tf32": "1"})
            case "mode":
                mode = _choice(text, name, value, {known: known for known in _MODES})
            case "lockfile":
                lockfile = value
            case "model":
                path = Path(value)
            case "threads":
                if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MOST_THREADS:
                    raise SideError(f"side {text!r}: threads={value} is no number from 1 to {MOST_THREADS}.")
                attributes["intra_op_num_threads"] = int(value)
            case "optimization":
                attributes["graph_optimization_level"] = _choice(text, name, value, _LEVELS)
            case _ if name in (*_ENTRIES, ""):
                raise SideError(f"side {text!r}: {name}={value} gives a value to no name. Give {HELP}.")
            case _ if name.startswith(_ENTRIES):
                entries[name] = value
            case _:
                _check_option(text, name, provider)
                options[name] = value
    # In precision=fp32 the CPU is anyway.
    if provider == "cpu" and options.pop("use_tf32", "0") != "0":
        raise SideError(f"side {text!r}: the CPU provider has no TF32. Give cuda,precision=tf32.")
    names = _PROVIDERS[provider]
    providers = tuple((name, options if index == 0 else {}) for index, name in enumerate(names))
    configuration = Configuration(providers, mode, lockfile, attributes, entries)
    unchecked = tuple(sorted(entries.keys() - _TABLE[Kind.CONFIG_ENTRY]))
    return Side(text, SessionMaker(configuration, Source(path=str(path))), unchecked)


def _check_option(text: str, name: str, provider: str) -> None:
    """Check an option that is none of ours, as far as the provider does not: ONNX Runtime's CPU one takes any."""
    options = sorted(_TABLE[Kind.PROVIDER_OPTION]) if provider == "cuda" else []
    if name in options:
        return
    close = get_close_matches(name, [*_OWN, *options], 1, 0.75)
    meant = f" Did you mean {close[0]}?" if close else ""
    if provider == "cpu":
        raise SideError(
            f"side {text!r}: there is no {name}, and the CPU provider has no options.{meant} {_known(_OWN)}."
        )
    # Others than the table's are left to the CUDA provider, which refuses what it does not know.
    if close and close[0] in _OWN:
        raise SideError(f"side {text!r}: there is no {name}.{meant} {_known([*_OWN, *options])}.")


def _known(names: Sequence[str]) -> str:
    return f"Known are {', '.join(names)} and {', '.join(f'{entry}NAME' for entry in _ENTRIES)}"


def _choice(text: str, name: str, value: str, known: dict[str, str]) -> str:
    if value not in known:
        raise SideError(f"side {text!r}: {name}={value} is none of {', '.join(known)}.")
    return known[value]
