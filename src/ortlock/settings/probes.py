"""What is read from the machine and the thread at the time a session is created."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

_CPUS = Path("/sys/devices/system/cpu")


def physical_cores(root: Path = _CPUS) -> int:
    """Return the number of physical cores that this process may run on, at least 1.

    Counted from the affinity mask and the kernel's topology under ``root``; where the topology cannot be read, the
    logical CPUs are counted instead.
    """
    try:
        allowed = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return max(1, os.cpu_count() or 1)
    try:
        cores = {(root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip() for cpu in allowed}
    except OSError:
        return max(1, len(allowed))
    return max(1, len(cores))


def denormals_flushed() -> bool:
    """Return whether arithmetic of the calling thread flushes denormal results to zero."""
    tiny = np.full(16, 1e-20, np.float32)
    return not bool((tiny * tiny).any())
