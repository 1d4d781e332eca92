"""Evidence: runs under stress, their digests compared bit by bit.

``stresses``, ``lanes`` and ``memory`` are the ways to run, ``running`` runs them within a budget, ``processes`` and
``worker`` do it in new processes, ``device`` occupies and poisons device memory, ``failures`` counts what fails;
``subject`` is what is run and ``result`` what came of it. ``golden`` keeps digests in lockfiles, ``golden_outputs``
the outputs beside them; ``batch``, ``breaking`` and ``rows`` measure batch invariance.
"""

from ortlock.verify.batch import BatchClaim
from ortlock.verify.result import Evidence, StressResult
from ortlock.verify.running import Budget, verify
from ortlock.verify.stresses import NAMES
from ortlock.verify.subject import Subject

__all__ = ["NAMES", "BatchClaim", "Budget", "Evidence", "StressResult", "Subject", "verify"]
