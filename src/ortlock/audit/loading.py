"""Whether ONNX Runtime loads a model: it is asked, with the weights left out."""

from __future__ import annotations

import re

import onnx
from onnxruntime.capi import _pybind_state as C  # noqa: N812 (the name that ONNX Runtime gives it)

from ortlock.operators.model_file import external_tensors, places, subgraphs

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Exception during loading: )?")
_SOURCE = re.compile(r"^\S+\.(?:cc|h|cpp):\d+ .*?\)(?: const)? (?=\w)")
"""Where in ONNX Runtime's own source an error comes from: a file, a line and a function."""

_UNREGISTERED = ("is not a registered function/op", "No Op registered for")


def load_problem(model: onnx.ModelProto, *, unknown: bool) -> str | None:
    """Return why the ONNX Runtime that is installed does not load a model; None where it does, or cannot be asked.

    It reads the model and resolves its graph: versions, operators, names and types. No session is initialised, so no
    provider and no weights are needed.

    Args:
        model: the model without its large weights, as ``read_without_weights`` returns it.
        unknown: some of its operators are not known: a library of custom operators, which is not here, may bring them.
    """
    if _holds_sparse(model):
        return None  # sparse tensors are unpacked at once, and their values may have been left out
    slim = onnx.ModelProto()
    slim.CopyFrom(model)
    for tensor in external_tensors(slim):
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    options = C.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        C.InferenceSession(options, slim.SerializeToString(), False, False)
    except Exception as error:  # whatever ONNX Runtime raises
        text = " ".join(str(error).split())
        if unknown and any(words in text for words in _UNREGISTERED):
            return None
        return f"{_SOURCE.sub('', _PREFIX.sub('', text)).rstrip('. ')}."
    return None


def _holds_sparse(model: onnx.ModelProto) -> bool:
    nodes = [place.node for place in places(model)]
    graphs = [model.graph, *(inner for node in nodes for _, inner in subgraphs(node))]
    attributes = (attribute for node in nodes for attribute in node.attribute)
    return any(graph.sparse_initializer for graph in graphs) or any(
        attribute.HasField("sparse_tensor") or attribute.sparse_tensors for attribute in attributes
    )
