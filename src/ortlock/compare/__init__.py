"""Comparing two configurations, models or lockfiles, and judging whether the difference is what rounding does.

``sides`` reads what is compared, ``run`` compares, ``metrics`` measures differences, ``reference`` evaluates in
float64, ``rounding`` bounds what rounding can do, ``judging`` applies that to one node and ``verdict`` to all.
"""

from ortlock.compare.metrics import Difference, difference

__all__ = ["Difference", "difference"]
