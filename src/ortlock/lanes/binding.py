"""A binding that follows lane 0 when its session is made anew."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from onnxruntime import IOBinding


class LaneBinding(IOBinding):  # type: ignore[misc]  # ONNX Runtime has no type information.
    """``onnxruntime.IOBinding`` of a session with lanes; what is bound can be bound again elsewhere.

    ``session.io_binding()`` returns it. One thread at a time may use it, as in the original.

    Args:
        session: what runs on lane 0.
        copies: binding an array copies it to a device, so what it holds later does not count.
    """

    def __init__(self, session: Any, *, copies: bool) -> None:
        self._copies = copies
        self._calls: dict[tuple[str, str], tuple[str, tuple[Any, ...], dict[str, Any]]] = {}
        self._moving = threading.Lock()
        self._underlying = session._sess
        super().__init__(session)

    def move_to(self, session: Any) -> None:
        """Bind everything again where ``session`` runs something else than what this was made for."""
        if session._sess is self._underlying:
            return
        with self._moving:
            # The previous session goes with the last of its outputs that somebody holds.
            self._underlying = session._sess
            super().__init__(session)
            for name, arguments, keywords in self._calls.values():
                getattr(super(), name)(*arguments, **keywords)

    def bind_cpu_input(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As in the original."""
        self._bind("input", "bind_cpu_input", name, arguments, keywords)
        if self._copies:
            method, bound, named = self._calls["input", name]
            later = {key: np.array(value) for key, value in named.items()}
            self._calls["input", name] = (method, (name, *map(np.array, bound[1:])), later)

    def bind_input(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As in the original."""
        self._bind("input", "bind_input", name, arguments, keywords)

    def bind_ortvalue_input(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As in the original."""
        self._bind("input", "bind_ortvalue_input", name, arguments, keywords)

    def bind_output(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As in the original."""
        self._bind("output", "bind_output", name, arguments, keywords)

    def bind_ortvalue_output(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As in the original."""
        self._bind("output", "bind_ortvalue_output", name, arguments, keywords)

    def clear_binding_inputs(self) -> None:
        """As in the original."""
        super().clear_binding_inputs()
        self._forget("input")

    def clear_binding_outputs(self) -> None:
        """As in the original."""
        super().clear_binding_outputs()
        self._forget("output")

    def _bind(self, side: str, method: str, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        getattr(super(), method)(name, *arguments, **keywords)
        self._calls[side, name] = (method, (name, *arguments), keywords)

    def _forget(self, side: str) -> None:
        self._calls = {key: call for key, call in self._calls.items() if key[0] != side}
