// The graph API: execution plans whose engine is nondeterministic are refused, so that the provider's frontend takes
// the next candidate of cuDNN's ranking.
#include <algorithm>
#include <cstring>

#include "cudnn/attribution.h"
#include "cudnn/book.h"
#include "cudnn/describe.h"
#include "cudnn/descriptors.h"
#include "cudnn/engine_config.h"
#include "cudnn/hooks.h"
#include "cudnn/own_graph.h"

namespace ortlock::cudnn {
namespace {

// What a fault inside ortlock becomes where there is no real call to fall back on.
constexpr auto refuse = [] { return CUDNN_STATUS_NOT_SUPPORTED; };

bool observing() { return interposer().active() && watching(); }

template <typename T>
T value_of(const Attribute* attribute) {
  T value{};
  if (attribute && attribute->bytes.size() >= sizeof(T)) std::memcpy(&value, attribute->bytes.data(), sizeof(T));
  return value;
}

// True if a later candidate of the same query is deterministic and can be made. cuDNN is asked once per query.
bool deterministic_alternative(const Watched& plan, const Watched& config) {
  Candidates& candidates = *config.candidates;
  const std::lock_guard lock(candidates.mutex);
  if (!candidates.searched || candidates.first_deterministic <= config.rank) {
    std::size_t i = config.rank + 1;
    for (; i < candidates.configs.size(); ++i) {
      const BackendDescriptor other = candidates.configs[i];
      if (!other) continue;
      const EngineNotes notes = read_notes(other);
      if (notes.known && !notes.nondeterministic() && plan_can_be_made(plan, other)) break;
    }
    candidates.first_deterministic = i;
    candidates.searched = true;
  }
  return candidates.first_deterministic < candidates.configs.size();
}

PlanRecord plan_record(const Description& what, const EngineNotes& notes, BackendDescriptor config, const char* status) {
  PlanRecord record;
  record.what = what;
  record.engine = notes.engine;
  record.knobs = read_knobs(config);
  record.numerical_notes = note_names(notes.numerical, kNumericalNotes, std::size(kNumericalNotes));
  record.behavior_notes = note_names(notes.behavior, kBehaviorNotes, std::size(kBehaviorNotes));
  if (!notes.known) record.numerical_notes.emplace_back("UNREADABLE");
  record.status = status;
  return record;
}

// Decides about one plan: refuses it, or finalizes and records it.
Status finalize_plan(BackendDescriptor plan, const Watched& watched, const SessionPtr& session) {
  auto* finalize = real<Function::cudnnBackendFinalize>();
  const Attribute* attribute = watched.find(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const auto config = real_pointer(value_of<BackendDescriptor>(attribute));
  const WatchedPtr config_watched = attribute->objects.empty() ? nullptr : attribute->objects[0];
  const std::shared_ptr<Candidates> candidates = config_watched ? config_watched->candidates : nullptr;

  const EngineNotes notes = read_notes(config);
  const Description what = describe_graph(candidates ? candidates->graph.get() : nullptr);
  if (!notes.known) interposer().note_fault(what.operation + ": cuDNN did not tell the engine's numerical notes");

  const char* accepted = notes.nondeterministic() ? kLetThrough : kUsed;
  if (notes.nondeterministic() && session->enforces()) {
    if (candidates && deterministic_alternative(watched, *config_watched)) {
      session->record(plan_record(what, notes, config, kRefused));
      return CUDNN_STATUS_NOT_SUPPORTED;
    }
    const bool let_through = session->policy() == Policy::pin;
    const auto count = candidates ? static_cast<std::int64_t>(candidates->configs.size()) : 1;
    session->record_failure({what, count, let_through});
    if (!let_through) return CUDNN_STATUS_NOT_SUPPORTED;
  }

  const Status status = finalize(plan);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  try {
    PlanRecord record = plan_record(what, notes, config, accepted);
    record.workspace_bytes = read_workspace(plan);
    session->record(std::move(record));
  } catch (...) {
    interposer().note_fault(what.operation + ": a plan could not be recorded");
  }
  return status;
}

}  // namespace

Status cudnnBackendCreateDescriptor_hook(int type, BackendDescriptor* descriptor) {
  const bool enforced = count_enforced_call(Function::cudnnBackendCreateDescriptor);
  const auto original = [&] { return real<Function::cudnnBackendCreateDescriptor>()(type, descriptor); };
  const auto judged = [&]() -> Status {
    OwnDescriptor* own = descriptor && enforced && own_wanted(type) ? make_own(type) : nullptr;
    if (!own) return original();
    *descriptor = own;
    return CUDNN_STATUS_SUCCESS;
  };
  return guarded(Function::cudnnBackendCreateDescriptor, judged, original);
}

Status cudnnBackendDestroyDescriptor_hook(BackendDescriptor descriptor) {
  count_call(Function::cudnnBackendDestroyDescriptor);
  if (OwnDescriptor* own = as_own(descriptor)) {
    release_own(own);
    return CUDNN_STATUS_SUCCESS;
  }
  // Forgotten first: once destroyed, the address may be given to another thread's descriptor.
  descriptors().erase(descriptor);
  return real<Function::cudnnBackendDestroyDescriptor>()(descriptor);
}

Status cudnnBackendInitialize_hook(BackendDescriptor descriptor) {
  count_call(Function::cudnnBackendInitialize);
  if (as_own(descriptor)) return CUDNN_STATUS_SUCCESS;
  return real<Function::cudnnBackendInitialize>()(descriptor);
}

// Passes a plan of our own to a function that takes plans, as cuDNN's.
template <Function F>
Status with_real_plan(Handle handle, BackendDescriptor plan, BackendDescriptor variant_pack, void* graph) {
  count_call(F);
  const auto judged = [&]() -> Status {
    OwnDescriptor* own = as_own(plan);
    const BackendDescriptor known = own ? (own->plan ? own->plan->plan.get() : own->real()) : plan;
    return known ? real<F>()(handle, known, real_pointer(variant_pack), graph) : CUDNN_STATUS_NOT_SUPPORTED;
  };
  return guarded(F, judged, refuse);
}

Status cudnnBackendPopulateCudaGraph_hook(Handle handle, BackendDescriptor plan, BackendDescriptor variant_pack,
                                          void* graph) {
  return with_real_plan<Function::cudnnBackendPopulateCudaGraph>(handle, plan, variant_pack, graph);
}

Status cudnnBackendUpdateCudaGraph_hook(Handle handle, BackendDescriptor plan, BackendDescriptor variant_pack,
                                        void* graph) {
  return with_real_plan<Function::cudnnBackendUpdateCudaGraph>(handle, plan, variant_pack, graph);
}

Status cudnnBackendSetAttribute_hook(BackendDescriptor descriptor, int name, int type, std::int64_t count,
                                     const void* values) {
  count_call(Function::cudnnBackendSetAttribute);
  if (OwnDescriptor* own = as_own(descriptor)) {
    return guarded(Function::cudnnBackendSetAttribute, [&] { return own_set(*own, name, type, count, values); }, refuse);
  }
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && values && count > 0 && own_used()) {
    // One of cuDNN's descriptors refers to some of ours.
    const auto judged = [&]() -> Status {
      const auto* given = static_cast<const BackendDescriptor*>(values);
      std::vector<BackendDescriptor> pointers(given, given + count);
      if (std::none_of(pointers.begin(), pointers.end(), as_own)) {
        return real<Function::cudnnBackendSetAttribute>()(descriptor, name, type, count, values);
      }
      for (auto& pointer : pointers) pointer = real_pointer(pointer);
      return real<Function::cudnnBackendSetAttribute>()(descriptor, name, type, count, pointers.data());
    };
    const Status set = guarded(Function::cudnnBackendSetAttribute, judged, refuse);
    if (set == CUDNN_STATUS_SUCCESS && worth_watching(name) && observing()) {
      try {
        watch_attribute(descriptor, name, type, count, values);
      } catch (...) {
        interposer().note_fault("cudnnBackendSetAttribute: an attribute could not be kept");
      }
    }
    return set;
  }
  const Status status = real<Function::cudnnBackendSetAttribute>()(descriptor, name, type, count, values);
  if (status != CUDNN_STATUS_SUCCESS || !worth_watching(name) || !observing()) return status;
  try {
    watch_attribute(descriptor, name, type, count, values);
  } catch (...) {
    interposer().note_fault("cudnnBackendSetAttribute: an attribute could not be kept");
  }
  return status;
}

Status cudnnBackendGetAttribute_hook(BackendDescriptor descriptor, int name, int type, std::int64_t requested,
                                     std::int64_t* count, void* values) {
  count_call(Function::cudnnBackendGetAttribute);
  if (OwnDescriptor* own = as_own(descriptor)) {
    return guarded(
        Function::cudnnBackendGetAttribute, [&] { return own_get(*own, name, type, requested, count, values); }, refuse);
  }
  const auto original = [&] {
    return real<Function::cudnnBackendGetAttribute>()(descriptor, name, type, requested, count, values);
  };
  const bool fills = type == CUDNN_TYPE_BACKEND_DESCRIPTOR && values && own_used();
  const Status status =
      fills ? guarded(Function::cudnnBackendGetAttribute,
                      [&] { return ask_real(descriptor, name, type, requested, count, values); }, original)
            : original();
  if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS || status != CUDNN_STATUS_SUCCESS || !count || !values || !observing()) {
    return status;
  }
  try {
    auto candidates = std::make_shared<Candidates>();
    if (const WatchedPtr query = descriptors().find(descriptor)) {
      const Attribute* graph = query->find(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      if (graph && !graph->objects.empty()) candidates->graph = graph->objects[0];
    }
    const auto* configs = static_cast<const BackendDescriptor*>(values);
    candidates->configs.assign(configs, configs + std::min(requested, *count));
    for (std::size_t rank = 0; rank < candidates->configs.size(); ++rank) {
      if (as_own(candidates->configs[rank])) return status;  // half made while ortlock was attached or detached
      const WatchedPtr config = descriptors().obtain(candidates->configs[rank]);
      config->candidates = candidates;
      config->rank = rank;
    }
  } catch (...) {
    interposer().note_fault("cudnnBackendGetAttribute: the results of a heuristics query could not be kept");
  }
  return status;
}

Status cudnnBackendFinalize_hook(BackendDescriptor descriptor) {
  count_call(Function::cudnnBackendFinalize);
  if (OwnDescriptor* own = as_own(descriptor)) {
    return guarded(Function::cudnnBackendFinalize, [&] { return own_finalize(*own); }, refuse);
  }
  auto* finalize = real<Function::cudnnBackendFinalize>();
  if (!observing()) return finalize(descriptor);
  const auto judged = [&]() -> Status {
    const WatchedPtr watched = descriptors().find(descriptor);
    if (!watched || !watched->find(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)) return finalize(descriptor);
    const SessionPtr session = session_for(value_of<Handle>(watched->find(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)));
    return session ? finalize_plan(descriptor, *watched, session) : finalize(descriptor);
  };
  return guarded(Function::cudnnBackendFinalize, judged, [&] { return finalize(descriptor); });
}

Status cudnnBackendExecute_hook(Handle handle, BackendDescriptor plan, BackendDescriptor variant_pack) {
  count_call(Function::cudnnBackendExecute, true);
  if (OwnDescriptor* own = as_own(plan)) {
    return guarded(Function::cudnnBackendExecute, [&] { return own_execute(handle, *own, variant_pack); }, refuse);
  }
  return real<Function::cudnnBackendExecute>()(handle, plan, variant_pack);
}

}  // namespace ortlock::cudnn
