// To which session a cuDNN call belongs, and how often each function was called.
#pragma once

#include <array>
#include <cstdint>

#include "cudnn/abi.h"
#include "cudnn/functions.h"
#include "cudnn/session.h"

namespace ortlock::cudnn {

// Counts one intercepted call of this thread, and for the thread's session if it has one.
void count_call(Function function, bool execution = false) noexcept;

// The same, and whether the thread's calls without a handle belong to a session that keeps nondeterministic engines from
// running.
bool count_enforced_call(Function function) noexcept;

// Calls of every thread so far, by function.
std::array<std::uint64_t, kFunctionCount> call_counts();

// True while any session is being created or run, so that descriptors are worth watching.
bool watching() noexcept;

// The session that a call with `handle` belongs to: the thread's, else the one that the handle was made for, else the
// strictest of those that run asynchronously. Null for everybody else's calls, which pass unchanged.
SessionPtr session_for(Handle handle);

// The CUDA device that was current when the handle was made; -1 where nobody knows.
int device_of(Handle handle);

// A handle was made (by the session of this thread, if any) or destroyed.
void tag_handle(Handle handle);
void untag_handle(Handle handle);

}  // namespace ortlock::cudnn
