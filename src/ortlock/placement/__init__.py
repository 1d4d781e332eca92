"""Placement: nodes without a deterministic CUDA kernel, run where they have one, in a copy of the model in memory."""

from ortlock.placement.cost import NodeCost, measure
from ortlock.placement.decide import (
    PLACEMENTS,
    Action,
    PlacedNode,
    Placement,
    moves_by_name,
    place,
    resolve_placement,
    way_out,
)

__all__ = [
    "PLACEMENTS",
    "Action",
    "NodeCost",
    "PlacedNode",
    "Placement",
    "measure",
    "moves_by_name",
    "place",
    "resolve_placement",
    "way_out",
]
