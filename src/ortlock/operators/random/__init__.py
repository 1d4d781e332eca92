"""Operators that draw at random, rewritten so that every run draws the same numbers.

``generator`` is the generator, ``replace`` the operators, ``rewrite`` goes through a model.
"""

from ortlock.operators.random.rewrite import SETTING, Rewritten, holds_random, restart_random

__all__ = ["SETTING", "Rewritten", "holds_random", "restart_random"]
