"""``ReproducibleSession`` and what stands behind it.

``inference`` is the class, ``creation`` makes the underlying session with pinned ``options``, ``guard`` keeps what
happened to it and raises or warns, ``facts`` gathers what a report rests on.
"""

from ortlock.session.inference import ReproducibleSession

__all__ = ["ReproducibleSession"]
