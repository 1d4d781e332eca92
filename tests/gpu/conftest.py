"""Skips everything here where there is no GPU that ONNX Runtime can use."""

from __future__ import annotations

import pytest

from ortlock import native


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "tests/gpu/" in item.path.as_posix()]
    if not here:
        return
    # Attached before anything of the session can run on CUDA.
    usable = native.load_cuda_provider().loaded
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if not usable:
            item.add_marker(pytest.mark.skip(reason="no GPU that ONNX Runtime can use"))
