"""Finding the first node whose output differs, from run to run or between two configurations.

``search`` is the search, ``observing`` looks at tensors in batches, ``graph`` makes them outputs, ``runners`` is what
is run, ``result`` what was found.
"""

from ortlock.localise.graph import Graph, GraphError, GraphNode
from ortlock.localise.result import DifferingNode, DifferingTensor, Localised, Tensor
from ortlock.localise.runners import Maker, Runner, SessionMaker
from ortlock.localise.search import localise

__all__ = [
    "DifferingNode",
    "DifferingTensor",
    "Graph",
    "GraphError",
    "GraphNode",
    "Localised",
    "Maker",
    "Runner",
    "SessionMaker",
    "Tensor",
    "localise",
]
