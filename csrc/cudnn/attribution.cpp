#include "cudnn/attribution.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "interpose/elf_image.h"

namespace ortlock::cudnn {
namespace {

using Counts = std::array<std::atomic<std::uint64_t>, kFunctionCount>;

// One thread's work. Its counters are written by this thread alone and read by others.
struct ThreadState {
  SessionPtr session;
  Counts counts{};
  std::uint64_t calls = 0;       // for `session`, since enter()
  std::uint64_t executions = 0;
};

// Everything shared. Never destroyed: hooks may run on exiting threads and during exit.
struct Registry {
  std::shared_mutex sessions_mutex;
  std::unordered_map<std::int64_t, SessionPtr> sessions;
  std::int64_t next_token = 1;

  std::shared_mutex handles_mutex;
  struct Tag {
    std::int64_t token;  // 0: made for nobody's session
    int device;
  };
  std::unordered_map<Handle, Tag> handles;

  std::mutex async_mutex;
  std::vector<SessionPtr> async;
  std::atomic<int> async_count{0};
  std::atomic<int> scopes{0};

  std::mutex threads_mutex;
  std::vector<ThreadState*> threads;
  Counts exited{};  // of threads that are gone or going
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

// The pointer is trivially destructible, so it can still be read after the guard below has run at thread exit.
thread_local ThreadState* t_state = nullptr;
thread_local bool t_exited = false;

struct ThreadGuard {
  ThreadState state;

  ThreadGuard() {
    auto& all = registry();
    const std::lock_guard lock(all.threads_mutex);
    all.threads.push_back(&state);
  }
  ~ThreadGuard() {
    t_state = nullptr;
    t_exited = true;
    auto& all = registry();
    const std::lock_guard lock(all.threads_mutex);
    all.threads.erase(std::remove(all.threads.begin(), all.threads.end(), &state), all.threads.end());
    for (std::size_t i = 0; i < kFunctionCount; ++i) {
      all.exited[i].fetch_add(state.counts[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
  }
  ThreadGuard(const ThreadGuard&) = delete;
  ThreadGuard& operator=(const ThreadGuard&) = delete;
};

// Null on a thread that is exiting.
ThreadState* thread_state() {
  if (t_state) return t_state;
  if (t_exited) return nullptr;
  thread_local ThreadGuard guard;
  t_state = &guard.state;
  return t_state;
}

void set_session(ThreadState& state, SessionPtr session) {
  if (state.session && (state.calls || state.executions)) state.session->add_calls(state.calls, state.executions);
  state.calls = state.executions = 0;
  auto& all = registry();
  if (session && !state.session) all.scopes.fetch_add(1, std::memory_order_relaxed);
  if (!session && state.session) all.scopes.fetch_sub(1, std::memory_order_relaxed);
  if (session && session->has_workers()) begin_async(session->token());
  if (state.session && state.session->has_workers()) end_async(state.session->token());
  state.session = std::move(session);
}

// Asked of the CUDA runtime that ONNX Runtime loaded.
int current_device() {
  using GetDevice = int (*)(int*);
  static const GetDevice get = [] {
    const auto runtime = interpose::ElfImage::find("libcudart.so");
    void* library = runtime ? dlopen(runtime->path().c_str(), RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    return library ? reinterpret_cast<GetDevice>(dlsym(library, "cudaGetDevice")) : nullptr;
  }();
  int device = -1;
  return get && get(&device) == 0 ? device : -1;
}

SessionPtr strictest_async() {
  auto& all = registry();
  if (all.async_count.load(std::memory_order_acquire) == 0) return nullptr;
  const std::lock_guard lock(all.async_mutex);
  SessionPtr chosen;
  for (const auto& session : all.async) {
    if (!chosen || session->policy() > chosen->policy()) chosen = session;
  }
  return chosen;
}

}  // namespace

std::int64_t open_session(Policy policy) {
  auto& all = registry();
  const std::unique_lock lock(all.sessions_mutex);
  const auto token = all.next_token++;
  all.sessions.emplace(token, std::make_shared<Session>(token, policy));
  return token;
}

void close_session(std::int64_t token) {
  auto& all = registry();
  const std::unique_lock lock(all.sessions_mutex);
  all.sessions.erase(token);
}

SessionPtr find_session(std::int64_t token) {
  if (token == 0) return nullptr;
  auto& all = registry();
  const std::shared_lock lock(all.sessions_mutex);
  const auto found = all.sessions.find(token);
  return found == all.sessions.end() ? nullptr : found->second;
}

std::int64_t enter(std::int64_t token) {
  ThreadState* state = thread_state();
  if (!state) return 0;
  const std::int64_t previous = state->session ? state->session->token() : 0;
  set_session(*state, find_session(token));
  return previous;
}

std::int64_t leave(std::int64_t previous) {
  ThreadState* state = thread_state();
  if (!state) return 0;
  const SessionPtr left = state->session;
  set_session(*state, find_session(previous));
  return left ? left->events() : 0;
}

Scope::Scope(SessionPtr session) {
  ThreadState* state = thread_state();
  if (!state) return;
  SessionPtr previous = state->session;
  set_session(*state, std::move(session));
  previous_ = std::move(previous);
}

Scope::~Scope() {
  if (ThreadState* state = thread_state()) set_session(*state, std::move(previous_));
}

void set_has_workers(std::int64_t token) {
  if (const auto session = find_session(token)) session->set_has_workers();
}

void begin_async(std::int64_t token) {
  auto session = find_session(token);
  if (!session) return;
  auto& all = registry();
  const std::lock_guard lock(all.async_mutex);
  all.async.push_back(std::move(session));
  all.async_count.store(static_cast<int>(all.async.size()), std::memory_order_release);
}

void end_async(std::int64_t token) {
  auto& all = registry();
  const std::lock_guard lock(all.async_mutex);
  const auto found = std::find_if(all.async.begin(), all.async.end(),
                                  [token](const SessionPtr& session) { return session->token() == token; });
  if (found != all.async.end()) all.async.erase(found);
  all.async_count.store(static_cast<int>(all.async.size()), std::memory_order_release);
}

void count_call(Function function, bool execution) noexcept {
  const auto index = static_cast<std::size_t>(function);
  ThreadState* state = thread_state();
  if (!state) {
    registry().exited[index].fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto& count = state->counts[index];
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (state->session) {
    ++state->calls;
    state->executions += execution;
  } else if (registry().async_count.load(std::memory_order_relaxed) != 0) {
    if (const auto session = strictest_async()) session->add_calls(1, execution);
  }
}

std::array<std::uint64_t, kFunctionCount> call_counts() {
  auto& all = registry();
  std::array<std::uint64_t, kFunctionCount> sums{};
  const std::lock_guard lock(all.threads_mutex);
  for (std::size_t i = 0; i < kFunctionCount; ++i) {
    sums[i] = all.exited[i].load(std::memory_order_relaxed);
    for (const auto* state : all.threads) sums[i] += state->counts[i].load(std::memory_order_relaxed);
  }
  return sums;
}

bool watching() noexcept {
  auto& all = registry();
  return all.scopes.load(std::memory_order_relaxed) != 0 || all.async_count.load(std::memory_order_relaxed) != 0;
}

SessionPtr session_for(Handle handle) {
  const ThreadState* state = thread_state();
  if (state && state->session) return state->session;
  auto& all = registry();
  if (handle) {
    std::shared_lock lock(all.handles_mutex);
    const auto found = all.handles.find(handle);
    if (found != all.handles.end()) {
      const auto token = found->second.token;
      lock.unlock();
      return find_session(token);
    }
  }
  return strictest_async();
}

void tag_handle(Handle handle) {
  const SessionPtr session = session_for(nullptr);
  const int device = current_device();
  auto& all = registry();
  const std::unique_lock lock(all.handles_mutex);
  all.handles[handle] = {session ? session->token() : 0, device};
}

bool count_enforced_call(Function function) noexcept {
  count_call(function);
  const ThreadState* state = t_state;
  if (state && state->session) return state->session->enforces();
  if (registry().async_count.load(std::memory_order_relaxed) == 0) return false;
  const SessionPtr session = strictest_async();
  return session && session->enforces();
}

int device_of(Handle handle) {
  auto& all = registry();
  const std::shared_lock lock(all.handles_mutex);
  const auto found = all.handles.find(handle);
  return found == all.handles.end() ? -1 : found->second.device;
}

void untag_handle(Handle handle) {
  auto& all = registry();
  const std::unique_lock lock(all.handles_mutex);
  all.handles.erase(handle);
}

}  // namespace ortlock::cudnn
