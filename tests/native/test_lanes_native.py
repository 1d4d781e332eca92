"""Lanes of real CPU sessions on streams of a CUDA runtime that keeps account (``stand_ins/cudart.cpp``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .building import ROOT, build

SCRIPT = """
import ctypes, gc, sys
import onnxruntime
from ortlock import DeviceLostError, Mode, ReproducibleSession, _native, native
from ortlock.lanes import streams
from ortlock.lanes.choice import LanePlan
from ortlock.lanes.lanes import Lanes
from onnxruntime.capi import _pybind_state as C
from tests.cpu.session_models import Failing, add_model, feeds

cudart = ctypes.CDLL(sys.argv[1])

class Owner(onnxruntime.InferenceSession):
    pass

owner = Owner(add_model())
stream = streams.make(0, "high")
assert stream is not None and _native.stream_count() == 1
make = lambda more: onnxruntime.InferenceSession(add_model(), enable_fallback=0)
lanes = Lanes(LanePlan(2, "asked for", 0, stream), make, owner, native.open_session(Mode.PIN))
del stream
run = onnxruntime.InferenceSession.run
held = [lanes._take() for _ in range(2)]
assert _native.stream_count() == 2
for lane in held:
    lanes.pool.give(lane)
assert lanes.call(run, ["s"], feeds())[0].tolist() == [3, 5]

# A lane that failed goes with its stream, and comes back with another.
broken = lanes.pool.members[1]
gone = broken.stream.address
first = lanes.pool.take(lanes.pool.first)
broken.session._sess = Failing(broken.session._sess, C.EPFail("injected"), times=1)
try:
    lanes.call(run, None, feeds())
except C.EPFail:
    pass
else:
    raise AssertionError("the failure was not told")
gc.collect()
assert _native.stream_count() == 1, _native.stream_count()
assert lanes.call(run, ["p"], feeds())[0].tolist() == [2, 6]
assert _native.stream_count() == 2
lanes.pool.give(first)

# An error that stays is raised by every run from then on.
lanes.pool.first.session._sess = Failing(lanes.pool.first.session._sess, C.EPFail("CUDA failure 700"), times=1)
cudart.cudart_fail(700, -1)
for _ in range(3):
    try:
        lanes.call(run, None, feeds(), on_first=True)
    except DeviceLostError as error:
        assert (error.code, error.text.split(":")[0]) == (700, "cudaErrorIllegalAddress"), error
    else:
        raise AssertionError("a lost device answered")
try:
    streams.make(0, "normal")
except DeviceLostError:
    pass
else:
    raise AssertionError("a stream of a lost device")

# Streams go with the last that refers to a session.
inputs = owner.get_inputs()
lanes.close()
del lanes, owner, held, lane, broken, first
gc.collect()
assert _native.stream_count() == 1, _native.stream_count()
del inputs
gc.collect()
assert _native.stream_count() == 0, _native.stream_count()
print("right")
"""


def test_streams_live_as_long_as_their_sessions(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    library = build(tmp_path) / "cudart" / "libcudart.so.13"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(library)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "right"
