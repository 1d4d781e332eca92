"""Lockfiles: which engine each operation of a model runs, by environment, as JSON to be committed (docs/lockfile.md).

``schema`` is what such a file holds, ``files`` reads and writes it, ``places`` finds the lines of what is wrong,
``atomic`` puts files in the place of others, ``identity`` says which environment it is.
"""

from ortlock.lockfile.files import check_model, check_place, digest_of, merge, read
from ortlock.lockfile.identity import describe_difference, fingerprint, identity
from ortlock.lockfile.schema import Golden, LockedChoice, Lockfile, LockMode, ModelRecord, Section

__all__ = [
    "Golden",
    "LockMode",
    "LockedChoice",
    "Lockfile",
    "ModelRecord",
    "Section",
    "check_model",
    "check_place",
    "describe_difference",
    "digest_of",
    "fingerprint",
    "identity",
    "merge",
    "read",
]
