// The functions that stand in for cuDNN's. Same types, same names with a suffix; none throws.
#pragma once

#include <string>

#include "cudnn/functions.h"

namespace ortlock::cudnn {

#define ORTLOCK_DECLARE(name, ...) extern Signature<Function::name>::Type name##_hook;
ORTLOCK_CUDNN_HOOKED(ORTLOCK_DECLARE)
#undef ORTLOCK_DECLARE

// Returns judged(). If ortlock itself fails in it, the fault is noted and `original` (the real call) is made instead;
// so `judged` must let nothing be thrown after it has made the real call itself.
template <typename Judged, typename Original>
Status guarded(Function function, Judged judged, Original original) noexcept {
  try {
    return judged();
  } catch (...) {
    interposer().note_fault(std::string(function_name(function)) + ": internal fault, the real function was called");
    return original();
  }
}

}  // namespace ortlock::cudnn
