// The short way through a lane, for the run that nearly all are: inputs of NumPy alone, nobody who waits, a lane free.
//
// Whatever else there is to decide is for Python (src/ortlock/lanes), which opens the gate and shuts it. This is in
// C++ because it is in the way of every run: after a run on the GPU little of the interpreter's memory is left in the
// processor's caches, and the same steps in Python take 14 us then, where they take 2.6 in a loop.
#pragma once

#include <Python.h>

namespace ortlock::lanes {

// Adds the type `Gate` to the module. False with a Python error set.
bool add_gate(PyObject* module);

}  // namespace ortlock::lanes
