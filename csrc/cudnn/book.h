// The plan book: which engine each operation runs, chosen once, and the finalized plans.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cudnn/abi.h"
#include "cudnn/choices.h"
#include "cudnn/engine_config.h"
#include "cudnn/own_descriptor.h"
#include "cudnn/session.h"

namespace ortlock::cudnn {

// An execution plan that cuDNN has finalized, for one handle, and what it was made from.
struct FinalizedPlan {
  OwnRef graph;
  OwnedDescriptor config;
  OwnedDescriptor plan;
  Handle handle = nullptr;
  std::int64_t workspace_bytes = 0;
};
using FinalizedPlanPtr = std::shared_ptr<FinalizedPlan>;

// What cuDNN answered about an engine or its configuration; the same every time.
struct Answer {
  int descriptor;  // type
  int name;
  int type;
  std::int64_t requested;
  Status status;
  std::int64_t count;
  std::vector<std::byte> bytes;
};

// One operation (a key) and what was chosen for it. Constant once `chosen`.
struct BookEntry {
  std::string key;
  std::string id;  // the operation's name in a lockfile
  LockPtr lock;    // of the sessions that it is for; null for those without
  bool avoids_tensor_cores = false;
  const char* source = kFromRanking;
  bool lock_failed = false;  // the locked choice cannot be made

  std::mutex mutex;            // held while choosing
  std::atomic<bool> chosen{false};
  bool found = false;          // an engine can run
  bool deterministic = true;   // and it carries no NONDETERMINISTIC
  std::int64_t candidates = 0; // how many cuDNN offered
  Description what;
  EngineNotes notes;
  Knobs knobs;
  std::int64_t workspace_bytes = 0;
  std::vector<PlanRecord> refused;  // what came before it in cuDNN's ranking

  std::mutex answers_mutex;
  std::vector<Answer> answers;
};
using BookEntryPtr = std::shared_ptr<BookEntry>;

struct BookStatistics {
  std::uint64_t entries = 0;
  std::uint64_t plans = 0;
  std::uint64_t evicted = 0;
  std::uint64_t queries = 0;       // heuristics queries that reached cuDNN
  std::uint64_t finalized = 0;     // plans that cuDNN finalized
  std::uint64_t hits = 0;          // plans served without cuDNN
  std::uint64_t choosing_ns = 0;   // time spent on choices
};

class PlanBook {
 public:
  // The entry of an operation on a device for the sessions with that lock (or none), made if new.
  BookEntryPtr entry(std::string key, bool avoids_tensor_cores, int device, const LockPtr& lock);

  // The finalized plan of an entry for a handle, or null.
  FinalizedPlanPtr find_plan(const BookEntry& entry, Handle handle);
  // Keeps a plan; the one used longest ago makes room.
  void keep_plan(const BookEntryPtr& entry, FinalizedPlanPtr plan);
  // A handle was destroyed: its plans go with it.
  void forget_handle(Handle handle);

  BookStatistics statistics() const;
  void set_bound(std::size_t plans, std::size_t entries);

  std::atomic<std::uint64_t> queries{0};
  std::atomic<std::uint64_t> finalized{0};
  std::atomic<std::uint64_t> hits{0};
  std::atomic<std::uint64_t> choosing_ns{0};

 private:
  struct Kept {
    BookEntryPtr entry;
    FinalizedPlanPtr plan;
  };
  struct PlanKey {
    const BookEntry* entry;
    Handle handle;
    bool operator==(const PlanKey& other) const { return entry == other.entry && handle == other.handle; }
  };
  struct PlanKeyHash {
    std::size_t operator()(const PlanKey& key) const {
      return std::hash<const void*>{}(key.entry) * 31 + std::hash<const void*>{}(key.handle);
    }
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::string, BookEntryPtr> entries_;
  std::list<Kept> recent_;  // most recently used first
  std::unordered_map<PlanKey, std::list<Kept>::iterator, PlanKeyHash> plans_;
  std::size_t bound_ = 4096;
  std::size_t entry_bound_ = 20000;  // a few kilobytes each
  std::uint64_t evicted_ = 0;
};

// The canonical key of a finalized operation graph of our own: its operations with their attributes and tensors, the
// same whatever the pointers and the order in which they were made. Empty if part of it is not our own.
std::string key_of(const OwnDescriptor& graph);

// The operation of a graph of our own in words.
Description describe_graph_of(const OwnDescriptor& graph);

// True if a convolution is among the operations.
bool has_convolution(const OwnDescriptor& graph);

// Chooses an engine for the operation of `graph`, once: the one that the entry's lock names; else deterministic, from cuDNN's heuristic mode A, without run-time
// compilation if possible; if there is none, the first that can be made, marked nondeterministic.
void choose(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& query);

// A finalized plan of the chosen engine for `handle`, from the book or made now; null if cuDNN refuses. `like` is the
// provider's plan descriptor, which says the device.
FinalizedPlanPtr plan_for(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& like);

// cuDNN's own engine configuration of the chosen engine, for the device of the graph's handle or of `properties`.
OwnedDescriptor make_config(const BookEntry& entry, OwnDescriptor& graph, BackendDescriptor properties = nullptr);

// The book of this process. Never destroyed.
PlanBook& plan_book();

}  // namespace ortlock::cudnn
