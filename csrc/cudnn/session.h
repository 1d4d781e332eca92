// What a session (a token) is allowed to run and what it was seen to run.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cudnn/choices.h"

namespace ortlock::cudnn {

enum class Policy { observe = 0, pin = 1, strict = 2 };

// An operation in words: what it is, on which shapes and types, with which attributes.
struct Description {
  std::string operation;
  std::vector<std::string> tensors;
  std::string attributes;

  std::string key() const;
};

struct PlanRecord {
  const char* api = "graph";
  std::string key;  // the operation's id in a lockfile; empty where it has none
  const char* source = kFromRanking;
  Description what;
  std::int64_t engine = -1;
  Knobs knobs;
  std::optional<int> math_type;
  std::vector<std::string> numerical_notes;
  std::vector<std::string> behavior_notes;
  std::int64_t workspace_bytes = 0;
  const char* status = "used";
  std::uint64_t count = 1;
};

inline constexpr const char* kUsed = "used";
inline constexpr const char* kRefused = "refused";
inline constexpr const char* kLetThrough = "let through";

inline constexpr const char* kNothingDeterministic = "nothing deterministic";
inline constexpr const char* kNotLocked = "not in the lockfile";
inline constexpr const char* kCannotBeMade = "locked choice cannot be made";

struct PlanFailure {
  Description what;
  std::int64_t candidates = 0;
  bool let_through = false;
  const char* cause = kNothingDeterministic;
  std::string key{};
};

struct BookEntry;

class Session {
 public:
  Session(std::int64_t token, Policy policy) : token_(token), policy_(policy) {}

  std::int64_t token() const { return token_; }
  Policy policy() const { return policy_; }
  bool enforces() const { return policy_ != Policy::observe; }

  // Every choice that the lockfile does not hold counts as an event: somebody wants to write it down.
  void set_recording() { recording_.store(true, std::memory_order_relaxed); }

  // Its provider takes no convolution engine that uses tensor cores if there is another (use_tf32=0).
  bool avoids_tensor_cores() const { return avoids_tensor_cores_.load(std::memory_order_relaxed); }
  void set_avoids_tensor_cores() { avoids_tensor_cores_.store(true, std::memory_order_relaxed); }

  // Its runs spread over threads that never enter it (ONNX Runtime's parallel execution).
  bool has_workers() const { return has_workers_.load(std::memory_order_relaxed); }
  void set_has_workers() { has_workers_.store(true, std::memory_order_relaxed); }

  // What it replays; null without a lockfile. Set before the session's first run.
  void set_lock(LockPtr lock);
  LockPtr lock() const;

  void add_calls(std::uint64_t calls, std::uint64_t executions);
  void record(PlanRecord plan);
  // Counts one use of what the plan book chose.
  void record_use(const std::shared_ptr<BookEntry>& entry);
  void record_failure(PlanFailure failure);
  // Counts what a caller should look at: failures, and choices that were let through or are new to its lockfile.
  std::int64_t events() const { return events_.load(std::memory_order_relaxed); }

  struct Snapshot {
    std::uint64_t calls;
    std::uint64_t executions;
    std::uint64_t dropped;
    std::vector<PlanRecord> plans;
    std::vector<PlanFailure> failures;
  };
  Snapshot snapshot() const;

 private:
  const std::int64_t token_;
  const Policy policy_;
  std::atomic<bool> has_workers_{false};
  std::atomic<bool> recording_{false};
  std::atomic<bool> avoids_tensor_cores_{false};
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> executions_{0};
  std::atomic<std::int64_t> events_{0};
  mutable std::mutex mutex_;
  LockPtr lock_;
  std::map<std::string, PlanRecord> plans_;
  std::map<std::string, PlanFailure> failures_;
  std::unordered_map<const BookEntry*, std::pair<std::shared_ptr<BookEntry>, std::uint64_t>> uses_;
  std::uint64_t dropped_ = 0;
};

using SessionPtr = std::shared_ptr<Session>;

// Tokens and the threads that work for them.
std::int64_t open_session(Policy policy);
void close_session(std::int64_t token);
SessionPtr find_session(std::int64_t token);

// The calls of this thread belong to `token` (0: to nobody) until leave(). Returns what was in force before.
std::int64_t enter(std::int64_t token);
// Ends enter(); returns the number of events of the session that is left.
std::int64_t leave(std::int64_t previous);

// enter() and leave() as one object, for a session that is known.
class Scope {
 public:
  explicit Scope(SessionPtr session);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  SessionPtr previous_;
};

// From now on the session is also in force for worker threads as long as any thread is in it.
void set_has_workers(std::int64_t token);

// Calls on threads that work for nobody belong to `token` in between, unless their cuDNN handle says otherwise.
void begin_async(std::int64_t token);
void end_async(std::int64_t token);

}  // namespace ortlock::cudnn
