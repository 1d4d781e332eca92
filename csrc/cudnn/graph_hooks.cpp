// The graph API: execution plans whose engine is nondeterministic are refused, so that the provider's frontend takes
// the next candidate of cuDNN's ranking.
#include <algorithm>
#include <cstring>

#include "cudnn/attribution.h"
#include "cudnn/describe.h"
#include "cudnn/descriptors.h"
#include "cudnn/engine_config.h"
#include "cudnn/hooks.h"

namespace ortlock::cudnn {
namespace {

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
  const auto config = value_of<BackendDescriptor>(attribute);
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
  count_call(Function::cudnnBackendCreateDescriptor);
  return real<Function::cudnnBackendCreateDescriptor>()(type, descriptor);
}

Status cudnnBackendDestroyDescriptor_hook(BackendDescriptor descriptor) {
  count_call(Function::cudnnBackendDestroyDescriptor);
  // Forgotten first: once destroyed, the address may be given to another thread's descriptor.
  descriptors().erase(descriptor);
  return real<Function::cudnnBackendDestroyDescriptor>()(descriptor);
}

Status cudnnBackendSetAttribute_hook(BackendDescriptor descriptor, int name, int type, std::int64_t count,
                                     const void* values) {
  count_call(Function::cudnnBackendSetAttribute);
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
  const Status status =
      real<Function::cudnnBackendGetAttribute>()(descriptor, name, type, requested, count, values);
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
  return real<Function::cudnnBackendExecute>()(handle, plan, variant_pack);
}

}  // namespace ortlock::cudnn
