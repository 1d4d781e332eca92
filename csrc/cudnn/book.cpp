#include "cudnn/book.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>

#include "cudnn/describe.h"
#include "cudnn/descriptors.h"
#include "cudnn/functions.h"

namespace ortlock::cudnn {
namespace {

// Reading results is what a heuristics query costs: as few as do. The choice is the first that passes among the first
// eight, so one at first and eight then choose the same.
constexpr std::int64_t kFewResults = 1;
constexpr std::int64_t kFirstResults = 8;
constexpr int kModeA = 3;
constexpr int kModeFallback = 2;
constexpr int kRuntimeCompilation = 0;  // behavior note

void append(std::string& key, const void* bytes, std::size_t size) {
  key.append(static_cast<const char*>(bytes), size);
}

template <typename T>
void append(std::string& key, T value) {
  append(key, &value, sizeof value);
}

// Adds a descriptor's type and attributes, by name, following references. False if one is not our own.
bool append_descriptor(std::string& key, const OwnDescriptor& descriptor) {
  append(key, descriptor.type);
  constexpr std::size_t kMost = 64;  // attributes; a descriptor has some twenty at most
  std::array<const OwnAttribute*, kMost> sorted;
  std::size_t count = 0;
  for (const auto& attribute : descriptor.attributes()) {
    if (attribute.type == CUDNN_TYPE_HANDLE || attribute.name == CUDNN_ATTR_OPERATIONGRAPH_OPS) continue;
    if (count == kMost) return false;
    // They come sorted or nearly so.
    std::size_t place = count++;
    for (; place > 0 && sorted[place - 1]->name > attribute.name; --place) sorted[place] = sorted[place - 1];
    sorted[place] = &attribute;
  }
  append(key, count);
  for (std::size_t i = 0; i < count; ++i) {
    const OwnAttribute& attribute = *sorted[i];
    append(key, attribute.name);
    append(key, attribute.count);
    if (attribute.type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      for (std::size_t j = 0; j < static_cast<std::size_t>(attribute.count); ++j) {
        const OwnDescriptor* other = as_own(descriptor.reference(attribute, j));
        if (!other || !append_descriptor(key, *other)) return false;
      }
    } else {
      append(key, attribute.type);
      append(key, descriptor.bytes(attribute), attribute.size);
    }
  }
  return true;
}

// The same content in the form that describe_graph() reads.
WatchedPtr watched_copy(const OwnDescriptor& descriptor) {
  auto copy = std::make_shared<Watched>();
  for (const auto& attribute : descriptor.attributes()) {
    Attribute made{attribute.name, attribute.type, attribute.count, {}, {}};
    made.bytes.assign(descriptor.bytes(attribute), descriptor.bytes(attribute) + attribute.size);
    for (const BackendDescriptor pointer : descriptor.referenced(attribute.name)) {
      const OwnDescriptor* other = as_own(pointer);
      made.objects.push_back(other ? watched_copy(*other) : nullptr);
    }
    copy->attributes.push_back(std::move(made));
  }
  return copy;
}

bool set(BackendDescriptor descriptor, int name, int type, std::int64_t count, const void* values) {
  auto* function = real<Function::cudnnBackendSetAttribute>();
  return function && function(descriptor, name, type, count, values) == CUDNN_STATUS_SUCCESS;
}

bool set_descriptor(BackendDescriptor descriptor, int name, BackendDescriptor value) {
  return set(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

bool finalize(BackendDescriptor descriptor) {
  auto* function = real<Function::cudnnBackendFinalize>();
  return function && function(descriptor) == CUDNN_STATUS_SUCCESS;
}

// The first `limit` results of a heuristics query (0: all), best first.
std::vector<OwnedDescriptor> results_of(BackendDescriptor query, std::int64_t limit) {
  auto* get = real<Function::cudnnBackendGetAttribute>();
  std::int64_t count = limit;
  if (limit == 0 && get(query, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr) !=
                        CUDNN_STATUS_SUCCESS) {
    return {};
  }
  std::vector<OwnedDescriptor> configs;
  std::vector<BackendDescriptor> pointers;
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!configs.back()) return {};
    pointers.push_back(configs.back().get());
  }
  std::int64_t filled = 0;
  if (pointers.empty() || get(query, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &filled,
                              pointers.data()) != CUDNN_STATUS_SUCCESS) {
    return {};
  }
  configs.erase(configs.begin() + std::min(filled, count), configs.end());
  return configs;
}

// What `query` asks for, asked of cuDNN in another heuristic mode.
OwnedDescriptor ask(OwnDescriptor& graph, const OwnDescriptor& query, int mode) {
  OwnedDescriptor asked(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const BackendDescriptor real_graph = graph.real();
  if (!asked || !real_graph ||
      !set_descriptor(asked.get(), CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, real_graph) ||
      !set(asked.get(), CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode)) {
    return {};
  }
  for (const auto& attribute : query.attributes()) {
    if (attribute.name == CUDNN_ATTR_ENGINEHEUR_MODE || attribute.name == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) continue;
    if (!set(asked.get(), attribute.name, attribute.type, attribute.count, query.bytes(attribute))) return {};
  }
  plan_book().queries.fetch_add(1, std::memory_order_relaxed);
  if (!finalize(asked.get())) return {};
  return asked;
}

// A plan of `config` for the device that `handle` or `properties` names.
OwnedDescriptor make_plan(BackendDescriptor config, Handle handle, BackendDescriptor properties) {
  OwnedDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (!plan) return {};
  if (handle && !set(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)) return {};
  if (properties && !set_descriptor(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties)) return {};
  if (!set_descriptor(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config) || !finalize(plan.get())) return {};
  plan_book().finalized.fetch_add(1, std::memory_order_relaxed);
  return plan;
}

// The candidates of one ranking; their notes are read when first asked for.
class Candidates {
 public:
  explicit Candidates(std::vector<OwnedDescriptor> configs) : configs_(std::move(configs)), notes_(configs_.size()) {}

  std::size_t size() const { return configs_.size(); }
  BackendDescriptor config(std::size_t rank) const { return configs_[rank].get(); }
  OwnedDescriptor take(std::size_t rank) { return std::move(configs_[rank]); }
  const EngineNotes& notes(std::size_t rank) {
    auto& known = notes_[rank];
    if (!known) known = read_notes(configs_[rank].get());
    return *known;
  }

 private:
  std::vector<OwnedDescriptor> configs_;
  std::vector<std::optional<EngineNotes>> notes_;
};

// Makes a plan of `config` and, if cuDNN can, settles the entry on it; `knobs` where they are known already.
bool settle(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& query, OwnedDescriptor& config,
            const EngineNotes& notes, const Knobs* knobs = nullptr) {
  const auto handle = graph.value<Handle>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
  OwnedDescriptor plan =
      make_plan(config.get(), handle, query.value<BackendDescriptor>(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP));
  if (!plan) return false;
  entry->found = true;
  entry->deterministic = !notes.nondeterministic();
  entry->notes = notes;
  entry->knobs = knobs ? *knobs : read_knobs(config.get());
  entry->workspace_bytes = read_workspace(plan.get());
  auto kept = std::make_shared<FinalizedPlan>();
  kept->graph = OwnRef(&graph);
  kept->config = std::move(config);
  kept->plan = std::move(plan);
  kept->handle = handle;
  kept->workspace_bytes = entry->workspace_bytes;
  plan_book().keep_plan(entry, std::move(kept));
  return true;
}

// Tries candidates in their order; takes the first that passes and whose plan can be made.
template <typename Passes>
bool take_first(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& query, Candidates& candidates,
                Passes passes) {
  for (std::size_t rank = 0; rank < candidates.size(); ++rank) {
    if (!candidates.config(rank) || !passes(candidates.notes(rank))) continue;
    OwnedDescriptor config = candidates.take(rank);
    if (settle(entry, graph, query, config, candidates.notes(rank))) return true;
  }
  return false;
}

OwnedDescriptor make_engine(std::int64_t index, OwnDescriptor& graph, BackendDescriptor properties) {
  OwnedDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  const BackendDescriptor real_graph = graph.real();
  if (!engine || !real_graph || !set_descriptor(engine.get(), CUDNN_ATTR_ENGINE_OPERATION_GRAPH, real_graph) ||
      !set(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index) ||
      (properties && !set_descriptor(engine.get(), CUDNN_ATTR_ENGINE_DEVICEPROP, properties)) ||
      !finalize(engine.get())) {
    return {};
  }
  return engine;
}

OwnedDescriptor configure(BackendDescriptor engine, const Knobs& knobs) {
  std::vector<OwnedDescriptor> owners;
  std::vector<BackendDescriptor> choices;
  for (const auto& [type, value] : knobs) {
    owners.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    const int knob = static_cast<int>(type);
    if (!owners.back() ||
        !set(owners.back().get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &knob) ||
        !set(owners.back().get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value) ||
        !finalize(owners.back().get())) {
      return {};
    }
    choices.push_back(owners.back().get());
  }
  OwnedDescriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  if (!config || !set_descriptor(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, engine) ||
      (!choices.empty() &&
       !set(config.get(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(choices.size()), choices.data())) ||
      !finalize(config.get())) {
    return {};
  }
  return config;
}

// Takes what the lockfile says, without a word with the heuristics.
bool take_locked(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& query, const Choice& choice) {
  if (choice.legacy) return false;
  const OwnedDescriptor engine =
      make_engine(choice.engine, graph, query.value<BackendDescriptor>(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP));
  if (!engine) return false;
  const EngineNotes notes = read_engine_notes(engine.get());
  // A lockfile is no way around the contract.
  if (!notes.known || notes.nondeterministic()) return false;
  OwnedDescriptor config = configure(engine.get(), choice.knobs);
  return config && settle(entry, graph, query, config, notes, &choice.knobs);
}

bool compiles(const EngineNotes& notes) {
  return std::find(notes.behavior.begin(), notes.behavior.end(), kRuntimeCompilation) != notes.behavior.end();
}

void record_refused(BookEntry& entry, BackendDescriptor config, const EngineNotes& notes) {
  PlanRecord record;
  record.what = entry.what;
  record.engine = notes.engine;
  record.knobs = read_knobs(config);
  record.numerical_notes = note_names(notes.numerical, kNumericalNotes, std::size(kNumericalNotes));
  record.behavior_notes = note_names(notes.behavior, kBehaviorNotes, std::size(kBehaviorNotes));
  record.status = kRefused;
  entry.refused.push_back(std::move(record));
}

// Looks through one ranking for a deterministic engine.
bool search(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& query, int mode,
            bool tensor_cores = true) {
  const OwnedDescriptor asked = ask(graph, query, mode);
  if (!asked) return false;
  const auto allowed = [&](const EngineNotes& note) {
    return note.known && !note.nondeterministic() && (tensor_cores || !note.tensor_core());
  };
  const auto ready = [&](const EngineNotes& note) { return allowed(note) && !compiles(note); };
  for (const std::int64_t limit : {kFewResults, kFirstResults, std::int64_t{0}}) {
    Candidates candidates(results_of(asked.get(), limit));
    const auto found = static_cast<std::int64_t>(candidates.size());
    entry->candidates = std::max(entry->candidates, found);
    for (std::size_t rank = 0; rank < candidates.size() && candidates.notes(rank).nondeterministic(); ++rank) {
      if (entry->refused.size() <= rank) record_refused(*entry, candidates.config(rank), candidates.notes(rank));
    }
    if (take_first(entry, graph, query, candidates, ready)) return true;
    if (limit != kFewResults && take_first(entry, graph, query, candidates, allowed)) return true;
    if (found < limit) return false;  // that was all of them
  }
  return false;
}

void choose_by_rule(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& query) {
  // The provider passes such engines over by itself, and takes one where there is no other.
  if (entry->avoids_tensor_cores && search(entry, graph, query, kModeA, false)) return;
  if (search(entry, graph, query, kModeA) || search(entry, graph, query, kModeFallback)) return;
  // Nothing deterministic: remember what stock would run.
  const OwnedDescriptor asked = ask(graph, query, query.value<int>(CUDNN_ATTR_ENGINEHEUR_MODE, kModeA));
  if (asked) {
    Candidates candidates(results_of(asked.get(), 0));
    take_first(entry, graph, query, candidates, [](const EngineNotes&) { return true; });
  }
  entry->refused.clear();
}

}  // namespace

std::string key_of(const OwnDescriptor& graph) {
  constexpr std::size_t kUsual = 1024;  // bytes of a convolution's key
  std::string key;
  key.reserve(kUsual);
  if (!append_descriptor(key, graph)) return {};
  const OwnAttribute* operations = graph.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  const std::size_t count = graph.reference_count(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < count; ++i) {
    const OwnDescriptor* operation = as_own(graph.reference(*operations, i));
    if (!operation) return {};
    if (count == 1) return append_descriptor(key, *operation) ? key : std::string();
    std::string part;
    if (!append_descriptor(part, *operation)) return {};
    parts.push_back(std::move(part));
  }
  // Tensors are named by their unique ids, so the order of the operations says nothing more.
  std::sort(parts.begin(), parts.end());
  for (const auto& part : parts) {
    append(key, part.size());
    key += part;
  }
  return key;
}

bool has_convolution(const OwnDescriptor& graph) {
  for (const BackendDescriptor pointer : graph.referenced(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const OwnDescriptor* operation = as_own(pointer);
    if (operation && operation->type >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
        operation->type <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
      return true;
    }
  }
  return false;
}

Description describe_graph_of(const OwnDescriptor& graph) { return describe_graph(watched_copy(graph).get()); }

void choose(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& query) {
  if (entry->chosen.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(entry->mutex);
  if (entry->chosen.load(std::memory_order_relaxed)) return;
  const auto started = std::chrono::steady_clock::now();
  entry->what = describe_graph_of(graph);
  const Choice* written = entry->lock ? entry->lock->find(entry->id) : nullptr;
  if (written && take_locked(entry, graph, query, *written)) {
    entry->source = kFromLockfile;
  } else {
    entry->lock_failed = written != nullptr;
    entry->knobs.clear();
    choose_by_rule(entry, graph, query);
  }
  const auto took = std::chrono::steady_clock::now() - started;
  plan_book().choosing_ns.fetch_add(
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count()),
      std::memory_order_relaxed);
  entry->chosen.store(true, std::memory_order_release);
}

OwnedDescriptor make_config(const BookEntry& entry, OwnDescriptor& graph, BackendDescriptor properties) {
  const OwnedDescriptor engine = make_engine(entry.notes.engine, graph, properties);
  return engine ? configure(engine.get(), entry.knobs) : OwnedDescriptor();
}

FinalizedPlanPtr plan_for(const BookEntryPtr& entry, OwnDescriptor& graph, const OwnDescriptor& like) {
  auto handle = like.value<Handle>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  // Newer frontends leave the plan's handle to the graph.
  if (!handle) handle = graph.value<Handle>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
  if (FinalizedPlanPtr kept = plan_book().find_plan(*entry, handle)) {
    plan_book().hits.fetch_add(1, std::memory_order_relaxed);
    return kept;
  }
  auto made = std::make_shared<FinalizedPlan>();
  made->graph = OwnRef(&graph);
  const auto properties = like.value<BackendDescriptor>(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  made->config = make_config(*entry, graph, properties);
  if (!made->config) return nullptr;
  made->plan = make_plan(made->config.get(), handle, properties);
  if (!made->plan) return nullptr;
  made->handle = handle;
  made->workspace_bytes = read_workspace(made->plan.get());
  plan_book().keep_plan(entry, made);
  return made;
}

PlanBook& plan_book() {
  static auto* book = new PlanBook;
  return *book;
}

BookEntryPtr PlanBook::entry(std::string key, bool avoids_tensor_cores, int device, const LockPtr& lock) {
  if (avoids_tensor_cores) key += "no tensor cores";
  const std::size_t operation = key.size();
  append(key, device);
  if (lock) key += lock->name;
  const std::lock_guard guard(mutex_);
  const auto known = entries_.find(key);
  if (known != entries_.end()) return known->second;
  if (entries_.size() >= entry_bound_) {
    // Choices that nobody refers to any more: made again, the same, if they come back.
    for (auto kept = entries_.begin(); kept != entries_.end();) {
      kept = kept->second.use_count() == 1 ? entries_.erase(kept) : std::next(kept);
    }
    // Many live ones: look again only after as many more.
    entry_bound_ = std::max(entry_bound_, 2 * entries_.size());
  }
  auto made = std::make_shared<BookEntry>();
  made->id = id_of(key.substr(0, operation));
  made->lock = lock;
  made->avoids_tensor_cores = avoids_tensor_cores;
  made->key = key;
  return entries_.emplace(std::move(key), std::move(made)).first->second;
}

FinalizedPlanPtr PlanBook::find_plan(const BookEntry& entry, Handle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = plans_.find({&entry, handle});
  if (found == plans_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  return found->second->plan;
}

void PlanBook::keep_plan(const BookEntryPtr& entry, FinalizedPlanPtr plan) {
  std::list<Kept> gone;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const PlanKey key{entry.get(), plan->handle};
  const auto known = plans_.find(key);
  if (known != plans_.end()) {
    gone.splice(gone.begin(), recent_, known->second);
    plans_.erase(known);
  }
  recent_.push_front({entry, std::move(plan)});
  plans_.emplace(key, recent_.begin());
  while (recent_.size() > bound_) {
    const auto last = std::prev(recent_.end());
    plans_.erase({last->entry.get(), last->plan->handle});
    gone.splice(gone.begin(), recent_, last);
    ++evicted_;
  }
}

void PlanBook::forget_handle(Handle handle) {
  std::list<Kept> gone;
  const std::lock_guard lock(mutex_);
  for (auto kept = recent_.begin(); kept != recent_.end();) {
    const auto next = std::next(kept);
    if (kept->plan->handle == handle) {
      plans_.erase({kept->entry.get(), handle});
      gone.splice(gone.begin(), recent_, kept);
    }
    kept = next;
  }
}

BookStatistics PlanBook::statistics() const {
  BookStatistics now;
  now.queries = queries.load(std::memory_order_relaxed);
  now.finalized = finalized.load(std::memory_order_relaxed);
  now.hits = hits.load(std::memory_order_relaxed);
  now.choosing_ns = choosing_ns.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  now.entries = entries_.size();
  now.plans = recent_.size();
  now.evicted = evicted_;
  return now;
}

void PlanBook::set_bound(std::size_t plans, std::size_t entries) {
  const std::lock_guard lock(mutex_);
  bound_ = plans;
  entry_bound_ = entries;
}

}  // namespace ortlock::cudnn
