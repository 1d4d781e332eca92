"""Plans with the real cuDNN for a device described in words, through the hooks; prints what came of it as JSON.

Usage: real_cudnn_worker.py STAND_INS WHEELS CASES, with CASES a JSON list of
``[policy or null, forward, heuristic mode, small shape, weights, large shape, stride, padding]``, and if wanted a ninth
element: what the session's lockfile holds, as ``[exclusive, [[key, engine, knobs], ...]]``. A case may also be the word
``avoid tensor cores``, which holds for the sessions after it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

from ortlock import _native

DEVICE = Path(__file__).parent / "data" / "h200-deviceprop.json"


def main(stand_ins: str, wheels: str, cases: str) -> None:
    planner = ctypes.CDLL(str(Path(stand_ins) / "libplanner.so"))
    planner.planner_plan.restype = ctypes.c_int64
    attached = _native.attach("libplanner.so")
    if not planner.planner_open(str(Path(wheels) / "cudnn" / "lib" / "libcudnn.so.9").encode()):
        raise SystemExit("cuDNN could not be loaded")
    dims = ctypes.c_int64 * 4
    results = []
    avoids = False
    for case in json.loads(cases):
        if case == "avoid tensor cores":
            avoids = True
            continue
        policy, forward, mode, small, weights, large, stride, padding, *locks = case
        token = _native.open_session(policy) if policy is not None else 0
        for exclusive, choices in locks:
            rows = [(key, False, engine, knobs, 0, 0) for key, engine, knobs in choices]
            _native.set_lock(token, json.dumps(choices), exclusive, rows)
        if avoids and token:
            _native.avoid_tensor_cores(token)
        queries = _native.book()["queries"]
        previous = _native.enter(token)
        engine = planner.planner_plan(
            DEVICE.read_bytes(),
            ctypes.c_bool(forward),
            mode,
            dims(*small),
            dims(*weights),
            dims(*large),
            ctypes.c_int64(stride),
            ctypes.c_int64(padding),
        )
        events = _native.leave(previous)
        results.append(
            {
                "engine": engine,
                "events": events,
                "queries": _native.book()["queries"] - queries,
                "records": _native.records(token) if policy is not None else None,
            }
        )
    state = _native.state()
    print(json.dumps({"attached": attached, "state": state, "results": results}))


if __name__ == "__main__":
    main(*sys.argv[1:])
