"""What is known about operators, and which of them a session runs where."""

from ortlock.operators.findings import Finding, judge
from ortlock.operators.graph import Node, NodeList, model_nodes, nodes_of_session, nodes_with_weights
from ortlock.operators.indices import duplicate_indices
from ortlock.operators.knowledge import Basis, Knowledge, OperatorStatus, lookup

__all__ = [
    "Basis",
    "Finding",
    "Knowledge",
    "Node",
    "NodeList",
    "OperatorStatus",
    "duplicate_indices",
    "judge",
    "lookup",
    "model_nodes",
    "nodes_of_session",
    "nodes_with_weights",
]
