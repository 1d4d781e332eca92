"""A session's side of placement: the model and options it is made with, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import onnxruntime

from ortlock.arguments import check_count, check_feed
from ortlock.errors import NotReproducibleError
from ortlock.operators.graph import Named, Node
from ortlock.placement import Action, NodeCost, Placement, measure, place
from ortlock.placement.decide import ANNOTATED, NAME_BASED, SINCE, moves_by_name
from ortlock.policy import Mode
from ortlock.report import PlacedFacts
from ortlock.session import options as session_options
from ortlock.session.options import EXTERNAL_FOLDER
from ortlock.settings import CUDA, Origin, Resolution

if TYPE_CHECKING:
    from ortlock.session.guard import Guard

_THREADS = "intra_op_num_threads"


def prepare(guard: Guard, options: Any, providers: Sequence[str], resolution: Resolution) -> Resolution:
    """Decide what is placed, leave it in ``guard.placement`` and return what to set for it.

    Raises:
        NotReproducibleError: in strict, where nodes would have to be moved and this session cannot do it.
    """
    guard.placement, guard.costs = None, ()
    if not guard.places or not providers or providers[0] != CUDA:
        return resolution
    problem: NotReproducibleError | None = None
    try:
        placement = place(*guard.loaded, guard.restarted.folder if guard.restarted is not None else None)
    except NotReproducibleError as error:
        placement, problem = None, error
    if placement is not None:
        problem = _cannot_place(placement, options)
    if problem is not None:
        if guard.mode is Mode.STRICT:
            raise problem
        guard.warn(str(problem))
        return resolution
    if placement is None:
        return resolution
    guard.placement = placement
    entries = placement.entries(session_options.config_entry(options, NAME_BASED))
    resolution = replace(resolution, config_entries={**resolution.config_entries, **entries})
    return _one_thread(resolution) if placement.one_thread else resolution


def _cannot_place(placement: Placement, options: Any) -> NotReproducibleError | None:
    if placement.moves and (problem := _cannot_move(placement, options)):
        return problem
    first = placement.nodes[0]
    return session_options.external_data_lost(placement.folder, f"{first.node.label} on {CUDA}", first.reason)


def _cannot_move(placement: Placement, options: Any) -> NotReproducibleError | None:
    first = next(placed for placed in placement.nodes if placed.action is not Action.REWRITTEN)
    subject = f"{first.node.label} on {CUDA}"
    if not moves_by_name():
        version = ".".join(map(str, SINCE))
        text = f"{first.reason} ONNX Runtime {onnxruntime.__version__} cannot move single nodes to the CPU provider."
        return NotReproducibleError(subject, text, f"Use ONNX Runtime {version} or later, or the CPU provider.")
    if session_options.config_entry(options, ANNOTATED):
        text = f"{first.reason} It cannot be moved beside {ANNOTATED}: ONNX Runtime takes either that or names."
        return NotReproducibleError(subject, text, f"Leave {ANNOTATED} out, or use {NAME_BASED}.")
    return None


def _one_thread(resolution: Resolution) -> Resolution:
    """Pin the number of CPU threads to one, unless the caller gave it: then the operator's row says what that means."""
    note = "A node on the CPU provider is right and deterministic with one thread only."
    states = list(resolution.states)
    for place_, state in enumerate(states):
        if state.key == _THREADS and state.requested is None and state.origin is not Origin.NOT_PINNED:
            states[place_] = replace(state, value="1", origin=Origin.PINNED, note=note)
            attributes = {**resolution.attributes, _THREADS: 1}
            return replace(resolution, states=tuple(states), attributes=attributes)
    return resolution


@dataclass(frozen=True, slots=True)
class Substitute:
    """The model that ONNX Runtime reads in place of the caller's."""

    data: bytes
    folder: str | None
    """Where external data of it is; None where the caller has said, or there is none."""

    def read_by(self, session: Any, stock: Callable[[], None]) -> Callable[[], None]:
        """Return ``stock`` as it reads this model; the session keeps the caller's path and bytes."""

        def create() -> None:
            before = session._model_path, session._model_bytes
            session._model_path, session._model_bytes = None, self.data
            try:
                stock()
            finally:
                session._model_path, session._model_bytes = before

        return create

    def entries(self, options: Any) -> dict[str, str]:
        """Return the configuration entries that it needs and ``options`` lack."""
        if self.folder is None or session_options.config_entry(options, EXTERNAL_FOLDER) is not None:
            return {}
        return {EXTERNAL_FOLDER: self.folder}

    def check(self, entries: Mapping[str, str]) -> None:
        """Refuse to go on where ``entries`` would have to go into the caller's own options, from where nothing can be
        taken back.

        Raises:
            NotReproducibleError: the model's external data would not be found.
        """
        if EXTERNAL_FOLDER in entries:
            raise NotReproducibleError(
                "sess_options",
                "the copy of the model needs an entry in them for its external data, and they hold custom-op "
                "libraries or providers, so they cannot be copied.",
                f"Set it: sess_options.add_session_config_entry({EXTERNAL_FOLDER!r}, {entries[EXTERNAL_FOLDER]!r}).",
            )


def substitute(guard: Guard) -> Substitute | None:
    """Return the model with its nodes placed and its random operators restarted; None for the caller's own."""
    restarted, placement = guard.restarted, guard.placement
    if placement is None:
        return None if restarted is None else Substitute(restarted.data, restarted.folder)
    return Substitute(placement.model, placement.folder)


def named_by(placement: Placement | None) -> Named | None:
    """Return how a node's name as it runs leads to the model's own node."""
    if placement is None:
        return None

    def own(name: str) -> Node | None:
        number = placement.number(name)
        return None if number is None else placement.nodes[number].node

    return own


def placed_facts(placement: Placement | None, costs: Sequence[NodeCost]) -> tuple[PlacedFacts, ...]:
    """Return what the report says of each placed node."""
    if placement is None:
        return ()
    spent = _by_node(placement, costs)
    return tuple(
        PlacedFacts(placed.node.label, str(placed.action), placed.reason, spent.get(number))
        for number, placed in enumerate(placement.nodes)
    )


def measure_placement(session: Any, guard: Guard, feed: Mapping[str, Any], runs: int) -> dict[str, float]:
    """Measure what the placed nodes cost; see :meth:`ReproducibleSession.measure_placement`."""
    check_count("runs", runs)
    check_feed(feed)
    placement = guard.placement
    if placement is None:
        return {}
    options = session_options.clone(session.get_session_options())
    given = session.get_provider_options()
    providers = [(name, dict(given[name])) for name in session.get_providers()]
    guard.costs = measure(placement.model, options, providers, feed, runs)
    labels = [placed.node.label for placed in placement.nodes]
    found = {
        # Unnamed nodes have one label.
        labels[number] if labels.count(labels[number]) == 1 else f"{labels[number]} #{number}": spent
        for number, spent in _by_node(placement, guard.costs).items()
    }
    return found | {cost.name: cost.milliseconds for cost in guard.costs if cost.name == "copies"}


def _by_node(placement: Placement, costs: Sequence[NodeCost]) -> dict[int, float]:
    """Sum over all that runs for a node: a rewritten one is many."""
    found: dict[int, float] = {}
    for cost in costs:
        number = placement.number(cost.name)
        if number is not None:
            found[number] = round(found.get(number, 0.0) + cost.milliseconds, 4)
    return found
