"""The settings that can change bits: one table, and what it means for one session."""

from ortlock.settings.model import CPU, CUDA, Kind, OwnValue, Setting, Support, normalise, parse_version
from ortlock.settings.probes import denormals_flushed, physical_cores
from ortlock.settings.resolve import SessionOptionsLike, resolve
from ortlock.settings.state import Origin, Resolution, SettingState
from ortlock.settings.table import SETTINGS

__all__ = [
    "CPU",
    "CUDA",
    "SETTINGS",
    "Kind",
    "Origin",
    "OwnValue",
    "Resolution",
    "SessionOptionsLike",
    "Setting",
    "SettingState",
    "Support",
    "denormals_flushed",
    "normalise",
    "parse_version",
    "physical_cores",
    "resolve",
]
