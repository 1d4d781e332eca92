"""What a search runs: something that runs a model, and something that makes it. Both can be put in place of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ortlock.configuration import Configuration, Source


class Runner(Protocol):
    """A model that can be run, such as a session."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> Sequence[Any]:
        """Return the outputs of these names; None: all."""

    def get_outputs(self) -> Sequence[Any]:
        """Return the outputs' names, types and shapes, as ``onnxruntime.InferenceSession`` does."""

    def get_inputs(self) -> Sequence[Any]:
        """Return the inputs' names, types and shapes, in the same way."""


class Maker(Protocol):
    """A way to make runners: one side of a comparison."""

    @property
    def provider(self) -> str:
        """The first execution provider, by which the operator table is asked."""

    def original(self) -> Runner:
        """Return a new runner of the model as it is."""

    def derived(self, model: bytes, *, optimised: bool) -> Runner:
        """Return a new runner of a model made from it; ``optimised`` as the model is, or not at all."""

    def optimise(self) -> bytes | None:
        """Return the model as it is after optimisation; None where that cannot be had."""


@dataclass(frozen=True)
class SessionMaker:
    """Makes sessions of one configuration on one model."""

    configuration: Configuration
    source: Source

    @property
    def provider(self) -> str:
        return self.configuration.providers[0][0]

    def original(self) -> Runner:
        return self.configuration.open(self.source)

    def derived(self, model: bytes, *, optimised: bool) -> Runner:
        return self.configuration.open_derived(model, self.source, optimised=optimised)

    def optimise(self) -> bytes | None:
        return self.configuration.optimise(self.source)
