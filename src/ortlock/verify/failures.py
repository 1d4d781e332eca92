"""Runs that may fail: counted, and told apart by whether memory was short."""

from __future__ import annotations

import threading

from ortlock.lanes.memory import is_short
from ortlock.words import counted

_LONGEST = 200


class Failures:
    """What went wrong, from any thread. No error is kept: its traceback would keep the session that it came from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._short = self._others = 0
        self._first = ""
        """Text of the first that was not for want of memory."""

    def add(self, error: Exception) -> None:
        """Count an error."""
        with self._lock:
            if is_short(error):
                self._short += 1
                return
            self._others += 1
            self._first = self._first or " ".join(str(error).split())[:_LONGEST]

    def __bool__(self) -> bool:
        return bool(self._short or self._others)

    def __str__(self) -> str:
        words = [f"{counted(self._short, 'time')} memory was too short"] if self._short else []
        if self._others:
            words.append(f"{self._others} other failures, the first: {self._first}")
        return ", ".join(words)
