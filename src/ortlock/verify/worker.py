"""``python -m ortlock.verify.worker``: runs what standard input says and prints the digests as one line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from ortlock.cli.options import preload_cuda_libraries
from ortlock.configuration import Configuration, Source
from ortlock.verify.subject import observe


def work(task: dict[str, Any]) -> list[tuple[int, str]]:
    """Run each set of inputs the asked number of times in one new session."""
    preload_cuda_libraries()
    session = Configuration.from_dict(task["configuration"]).open(Source(path=task["model"]))
    feeds = []
    for inputs in task["inputs"]:
        with np.load(inputs["file"]) as file:
            feeds.append({name: file[f"i{position}"] for position, name in enumerate(inputs["names"])})
    return [(index, observe(session, feed)) for _ in range(task["runs"]) for index, feed in enumerate(feeds)]


if __name__ == "__main__":
    print(json.dumps(work(json.load(sys.stdin))))
