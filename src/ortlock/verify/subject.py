"""What is verified: how its sessions are made, and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortlock.arguments import LARGEST_THREADS, check_count
from ortlock.digest import digest
from ortlock.localise import Maker, Runner, SessionMaker
from ortlock.settings import CUDA

Feed = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model with inputs.

    Raises:
        ValueError: ``threads`` is no whole number from 1 to 1024.
    """

    maker: Maker
    feeds: Sequence[Feed]
    """One or several sets of inputs; of several shapes, if shapes are to be shuffled."""
    threads: int = 4
    """Threads that share a session."""

    def __post_init__(self) -> None:
        check_count("threads", self.threads, LARGEST_THREADS)

    @property
    def sessions(self) -> SessionMaker | None:
        """How sessions of ONNX Runtime are made; None where something else is run."""
        return self.maker if isinstance(self.maker, SessionMaker) else None

    @property
    def cuda(self) -> bool:
        return self.maker.provider == CUDA


def observe(runner: Runner, feed: Feed) -> str:
    """Run once and return the digest of all outputs."""
    return digest(list(runner.run(None, feed)), [value.name for value in runner.get_outputs()])


def inputs_digest(feed: Feed) -> str:
    """Return the digest of a set of inputs, whatever their order."""
    return digest(dict(sorted(feed.items())))
