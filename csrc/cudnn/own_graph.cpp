#include "cudnn/own_graph.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cudnn/attribution.h"
#include "cudnn/book.h"
#include "cudnn/descriptors.h"
#include "cudnn/functions.h"

namespace ortlock::cudnn {

Status ask_real(BackendDescriptor descriptor, int name, int type, std::int64_t requested, std::int64_t* count,
                void* values) {
  auto* get = real<Function::cudnnBackendGetAttribute>();
  if (!descriptor || !get) return CUDNN_STATUS_NOT_SUPPORTED;
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR || !values) return get(descriptor, name, type, requested, count, values);
  auto* given = static_cast<BackendDescriptor*>(values);
  std::vector<BackendDescriptor> pointers(given, given + requested);
  for (auto& pointer : pointers) pointer = real_pointer(pointer);
  return get(descriptor, name, type, requested, count, pointers.data());
}

namespace {

constexpr Status kBadParameter = 2000;  // CUDNN_STATUS_BAD_PARAM

// Copies what fits of `from`; always tells how many there are.
template <typename Values>
Status give(const Values& from, std::int64_t requested, std::int64_t* count, void* values) {
  const auto available = static_cast<std::int64_t>(from.size());
  const auto copied = values ? std::min(available, requested) : 0;
  if (copied > 0) std::memcpy(values, from.data(), static_cast<std::size_t>(copied) * sizeof(*from.data()));
  if (count) *count = values ? copied : available;
  return CUDNN_STATUS_SUCCESS;
}

// True if the calling session may run what was chosen. Notes a failure where it may not, or should not.
bool usable(BookEntry& entry, Session& session) {
  const bool pin = session.policy() == Policy::pin;
  if (entry.lock_failed && entry.lock->exclusive && !pin) {
    session.record_failure({entry.what, 1, false, kCannotBeMade, entry.id});
    return false;
  }
  if (entry.found && entry.deterministic) return true;
  const bool let_through = pin && entry.found;
  session.record_failure({entry.what, entry.candidates, let_through, kNothingDeterministic, entry.id});
  return let_through;
}

// True if the session may only replay and the lockfile does not know the operation. Notes the failure.
bool missing(const BookEntry& entry, const OwnDescriptor& graph, Session& session) {
  if (!entry.lock || !entry.lock->exclusive || session.policy() != Policy::strict) return false;
  if (entry.lock->find(entry.id)) return false;
  session.record_failure({describe_graph_of(graph), 0, false, kNotLocked, entry.id});
  return true;
}

// Results of a query: one, the choice of the book.
Status results(OwnDescriptor& query, int type, std::int64_t requested, std::int64_t* count, void* values) {
  OwnDescriptor* graph = query.graph.get();
  const SessionPtr session = session_for(graph->value<Handle>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
  if (session && missing(*query.entry, *graph, *session)) {
    if (count) *count = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  choose(query.entry, *graph, query);
  const bool any = session ? usable(*query.entry, *session) : query.entry->found;
  if (count) *count = any ? 1 : 0;
  if (!any || !values || requested < 1) return CUDNN_STATUS_SUCCESS;
  OwnDescriptor* config = as_own(*static_cast<BackendDescriptor*>(values));
  if (!config) return ask_real(query.real(), CUDNN_ATTR_ENGINEHEUR_RESULTS, type, requested, count, values);
  config->entry = query.entry;
  config->graph = query.graph;
  return CUDNN_STATUS_SUCCESS;
}

void knob_choices(const BookEntry& entry, std::int64_t requested, std::int64_t* count, void* values) {
  std::int64_t filled = 0;
  for (; values && filled < std::min(requested, static_cast<std::int64_t>(entry.knobs.size())); ++filled) {
    OwnDescriptor* choice = as_own(static_cast<BackendDescriptor*>(values)[filled]);
    choice->knob_type = entry.knobs[static_cast<std::size_t>(filled)].first;
    choice->knob_value = entry.knobs[static_cast<std::size_t>(filled)].second;
  }
  if (count) *count = filled;
}

// True if every descriptor that the caller wants filled in is one of ours.
bool all_own(std::int64_t requested, void* values) {
  const auto* pointers = static_cast<BackendDescriptor*>(values);
  return !values || std::all_of(pointers, pointers + requested, as_own);
}

// Answers from what cuDNN said the last time; `ask` asks it. Descriptors are never answered from memory.
template <typename Ask>
Status remembered(BookEntry& entry, int descriptor, int name, int type, std::int64_t requested, std::int64_t* count,
                  void* values, Ask ask) {
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) return ask(count, values);
  const std::int64_t room = values ? std::max<std::int64_t>(requested, 0) : 0;
  const std::lock_guard lock(entry.answers_mutex);
  const auto same = [&](const Answer& known) {
    return known.descriptor == descriptor && known.name == name && known.type == type && known.requested == room;
  };
  auto known = std::find_if(entry.answers.begin(), entry.answers.end(), same);
  if (known == entry.answers.end()) {
    Answer made{descriptor, name, type, room, CUDNN_STATUS_SUCCESS, 0, {}};
    made.bytes.resize(static_cast<std::size_t>(room) * attribute_element_size(type));
    made.status = ask(&made.count, room ? made.bytes.data() : nullptr);
    known = entry.answers.insert(entry.answers.end(), std::move(made));
  }
  if (known->status != CUDNN_STATUS_SUCCESS) return known->status;
  if (count) *count = known->count;
  const auto filled = static_cast<std::size_t>(std::min(known->count, room)) * attribute_element_size(type);
  if (filled != 0) std::memcpy(values, known->bytes.data(), filled);
  return CUDNN_STATUS_SUCCESS;
}

Status get_engine(OwnDescriptor& engine, int name, int type, std::int64_t requested, std::int64_t* count, void* values) {
  const EngineNotes& notes = engine.entry->notes;
  switch (name) {
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return give(std::array<std::int64_t, 1>{notes.engine}, requested, count, values);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      return give(notes.numerical, requested, count, values);
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      return give(notes.behavior, requested, count, values);
    default:
      break;
  }
  return remembered(*engine.entry, engine.type, name, type, requested, count, values,
                    [&](std::int64_t* number, void* into) -> Status {
                      // cuDNN fills an engine in from a configuration.
                      const OwnedDescriptor config = make_config(*engine.entry, *engine.graph);
                      const OwnedDescriptor made(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
                      BackendDescriptor pointer = made.get();
                      std::int64_t one = 0;
                      if (!config || !made ||
                          ask_real(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one,
                                   &pointer) != CUDNN_STATUS_SUCCESS) {
                        return CUDNN_STATUS_NOT_SUPPORTED;
                      }
                      return ask_real(pointer, name, type, requested, number, into);
                    });
}

Status get_config(OwnDescriptor& config, int name, int type, std::int64_t requested, std::int64_t* count, void* values) {
  const bool answerable = type == CUDNN_TYPE_BACKEND_DESCRIPTOR && all_own(requested, values);
  if (name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES && answerable) {
    knob_choices(*config.entry, requested, count, values);
    return CUDNN_STATUS_SUCCESS;
  }
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE && answerable) {
    if (count) *count = 1;
    if (!values || requested < 1) return CUDNN_STATUS_SUCCESS;
    OwnDescriptor* engine = as_own(*static_cast<BackendDescriptor*>(values));
    engine->entry = config.entry;
    engine->graph = config.graph;
    return CUDNN_STATUS_SUCCESS;
  }
  return remembered(*config.entry, config.type, name, type, requested, count, values,
                    [&](std::int64_t* number, void* into) {
                      const OwnedDescriptor made = make_config(*config.entry, *config.graph);
                      return ask_real(made.get(), name, type, requested, number, into);
                    });
}

Status get_plan(OwnDescriptor& plan, int name, int type, std::int64_t requested, std::int64_t* count, void* values) {
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    return give(std::array<std::int64_t, 1>{plan.plan->workspace_bytes}, requested, count, values);
  }
  return ask_real(plan.plan->plan.get(), name, type, requested, count, values);
}

Status finalize_graph(OwnDescriptor& graph) {
  // Made on a thread of nobody's session, it may turn out to belong to one that is only observed.
  const SessionPtr session = session_for(graph.value<Handle>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
  std::string key = session && session->enforces() ? key_of(graph) : std::string();
  if (key.empty()) return graph.real() ? CUDNN_STATUS_SUCCESS : graph.last_status();
  const int device = device_of(graph.value<Handle>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
  const bool avoids = session->avoids_tensor_cores() && has_convolution(graph);
  graph.entry = plan_book().entry(std::move(key), avoids, device, session->lock());
  // A new operation is shown to cuDNN at once, so that one which it does not support fails where stock fails.
  if (graph.entry->chosen.load(std::memory_order_acquire) || graph.real()) return CUDNN_STATUS_SUCCESS;
  graph.entry.reset();
  return graph.last_status();
}

// A plan that is not in the book: judged by its own notes alone.
Status finalize_unbooked(OwnDescriptor& plan) {
  const auto configs = plan.referenced(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const BackendDescriptor config = configs.empty() ? nullptr : real_pointer(configs[0]);
  const SessionPtr session = session_for(plan.value<Handle>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE));
  if (!session || !config) return plan.real() ? CUDNN_STATUS_SUCCESS : plan.last_status();
  const EngineNotes notes = read_notes(config);
  PlanRecord record;
  record.what.operation = "an operation graph outside the plan book";
  record.engine = notes.engine;
  record.knobs = read_knobs(config);
  record.numerical_notes = note_names(notes.numerical, kNumericalNotes, std::size(kNumericalNotes));
  record.behavior_notes = note_names(notes.behavior, kBehaviorNotes, std::size(kBehaviorNotes));
  record.status = notes.nondeterministic() ? kLetThrough : kUsed;
  if (notes.nondeterministic() && session->enforces()) {
    session->record_failure({record.what, 1, session->policy() == Policy::pin});
    if (session->policy() == Policy::strict) return CUDNN_STATUS_NOT_SUPPORTED;
  }
  if (!plan.real()) return plan.last_status();
  session->record(std::move(record));
  return CUDNN_STATUS_SUCCESS;
}

Status finalize_plan(OwnDescriptor& plan) {
  OwnDescriptor* config = plan.first_own(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (!config || !config->entry) return finalize_unbooked(plan);
  plan.entry = config->entry;
  plan.plan = plan_for(plan.entry, *config->graph, plan);
  if (!plan.plan) return CUDNN_STATUS_NOT_SUPPORTED;
  if (const SessionPtr session = session_for(plan.plan->handle)) session->record_use(plan.entry);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

bool own_wanted(int type) {
  switch (type) {
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:  // made for every execution, and given to it
    case CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR:
    case CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR:
      return false;
    default:
      break;
  }
  // Only where no call of the provider's can reach cuDNN with one of our pointers.
  return interposer().complete();
}

Status own_set(OwnDescriptor& descriptor, int name, int type, std::int64_t count, const void* values) {
  if (count < 0 || (count > 0 && !values)) return kBadParameter;
  descriptor.set(name, type, count, values);
  return CUDNN_STATUS_SUCCESS;
}

Status own_finalize(OwnDescriptor& descriptor) {
  descriptor.finalized = true;
  switch (descriptor.type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return finalize_graph(descriptor);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
      OwnDescriptor* graph = descriptor.first_own(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      if (!graph || !graph->entry) return descriptor.real() ? CUDNN_STATUS_SUCCESS : descriptor.last_status();
      descriptor.entry = graph->entry;
      descriptor.graph = OwnRef(graph);
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return finalize_plan(descriptor);
    default:
      return CUDNN_STATUS_SUCCESS;  // cuDNN judges it with the graph that it is part of
  }
}

Status own_get(OwnDescriptor& descriptor, int name, int type, std::int64_t requested, std::int64_t* count,
               void* values) {
  if (descriptor.entry) {
    switch (descriptor.type) {
      case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) return results(descriptor, type, requested, count, values);
        break;
      case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        return get_config(descriptor, name, type, requested, count, values);
      case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return get_engine(descriptor, name, type, requested, count, values);
      case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        if (descriptor.plan) return get_plan(descriptor, name, type, requested, count, values);
        break;
      default:
        break;
    }
  }
  if (descriptor.knob_type >= 0) {
    if (name == CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) {
      return give(std::array<int, 1>{static_cast<int>(descriptor.knob_type)}, requested, count, values);
    }
    if (name == CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) {
      return give(std::array<std::int64_t, 1>{descriptor.knob_value}, requested, count, values);
    }
  }
  return ask_real(descriptor.real(), name, type, requested, count, values);
}

Status own_execute(Handle handle, OwnDescriptor& plan, BackendDescriptor variant_pack) {
  auto* execute = real<Function::cudnnBackendExecute>();
  BackendDescriptor chosen = nullptr;
  FinalizedPlanPtr other;  // stays alive during the call
  if (plan.plan) {
    // cuDNN does not promise that one plan may run on several handles at the same time.
    if (plan.plan->handle != handle) other = plan_book().find_plan(*plan.entry, handle);
    chosen = other ? other->plan.get() : plan.plan->plan.get();
  } else {
    chosen = plan.real();
  }
  return chosen ? execute(handle, chosen, real_pointer(variant_pack)) : CUDNN_STATUS_NOT_SUPPORTED;
}

}  // namespace ortlock::cudnn
