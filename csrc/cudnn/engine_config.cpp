#include "cudnn/engine_config.h"

#include <algorithm>
#include <array>

#include "cudnn/functions.h"

namespace ortlock::cudnn {
namespace {

constexpr std::size_t kUsualKnobs = 16;
constexpr std::size_t kMaxKnobs = 64;  // cuDNN 9.19 has 44 knob types

bool get(BackendDescriptor descriptor, int name, int type, std::int64_t requested, std::int64_t* count, void* values) {
  auto* get_attribute = real<Function::cudnnBackendGetAttribute>();
  return get_attribute && get_attribute(descriptor, name, type, requested, count, values) == CUDNN_STATUS_SUCCESS;
}

bool set(BackendDescriptor descriptor, int name, int type, const void* value) {
  auto* set_attribute = real<Function::cudnnBackendSetAttribute>();
  return set_attribute && set_attribute(descriptor, name, type, 1, value) == CUDNN_STATUS_SUCCESS;
}

std::vector<int> read_note_list(BackendDescriptor engine, int name, int type, bool& known) {
  std::array<int, 32> notes{};
  std::int64_t count = 0;
  if (!get(engine, name, type, static_cast<std::int64_t>(notes.size()), &count, notes.data())) {
    known = false;
    return {};
  }
  return {notes.begin(), notes.begin() + std::min<std::int64_t>(count, static_cast<std::int64_t>(notes.size()))};
}

}  // namespace

OwnedDescriptor::OwnedDescriptor(int type) noexcept {
  auto* create = real<Function::cudnnBackendCreateDescriptor>();
  if (!create || create(type, &descriptor_) != CUDNN_STATUS_SUCCESS) descriptor_ = nullptr;
}

OwnedDescriptor::~OwnedDescriptor() {
  if (!descriptor_) return;
  if (auto* destroy = real<Function::cudnnBackendDestroyDescriptor>()) destroy(descriptor_);
}

bool EngineNotes::nondeterministic() const {
  return std::find(numerical.begin(), numerical.end(), CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) != numerical.end();
}

bool EngineNotes::tensor_core() const {
  return std::find(numerical.begin(), numerical.end(), CUDNN_NUMERICAL_NOTE_TENSOR_CORE) != numerical.end();
}

EngineNotes read_engine_notes(BackendDescriptor engine) {
  EngineNotes notes;
  std::int64_t count = 0;
  notes.known = get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &notes.engine);
  notes.numerical = read_note_list(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, notes.known);
  bool behavior_known = true;
  notes.behavior =
      read_note_list(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, behavior_known);
  return notes;
}

EngineNotes read_notes(BackendDescriptor config) {
  const OwnedDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  BackendDescriptor descriptor = engine.get();
  std::int64_t count = 0;
  if (!engine ||
      !get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &descriptor)) {
    return {};
  }
  return read_engine_notes(descriptor);
}

Knobs read_knobs(BackendDescriptor config) {
  // cuDNN does not tell the number beforehand (it answers 0): room for what engines usually have, then for every type.
  for (const std::size_t room : {kUsualKnobs, kMaxKnobs}) {
    std::vector<OwnedDescriptor> owners;
    std::vector<BackendDescriptor> choices;
    owners.reserve(room);
    choices.reserve(room);
    for (std::size_t i = 0; i < room; ++i) {
      owners.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
      if (!owners.back()) return {};
      choices.push_back(owners.back().get());
    }
    std::int64_t count = 0;
    const bool read = get(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                          static_cast<std::int64_t>(room), &count, choices.data());
    if (room < kMaxKnobs && (!read || count < 0 || static_cast<std::size_t>(count) >= room)) continue;
    if (!read) return {};
    Knobs knobs;
    for (std::size_t i = 0; i < std::min(static_cast<std::size_t>(count), room); ++i) {
      int type = -1;
      std::int64_t value = 0, one = 0;
      if (get(choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one, &type) &&
          get(choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &one, &value)) {
        knobs.emplace_back(type, value);
      }
    }
    std::sort(knobs.begin(), knobs.end());
    return knobs;
  }
  return {};
}

std::int64_t read_workspace(BackendDescriptor plan) {
  std::int64_t bytes = -1, count = 0;
  return get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes) ? bytes : -1;
}

bool plan_can_be_made(const Watched& like, BackendDescriptor config) {
  const OwnedDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  auto* finalize = real<Function::cudnnBackendFinalize>();
  if (!plan || !finalize) return false;
  // The device that the plan is for: a handle, or properties of a device that need not be present.
  for (const int name : {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP}) {
    const Attribute* attribute = like.find(name);
    if (attribute && !set(plan.get(), name, attribute->type, attribute->bytes.data())) return false;
  }
  return set(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, &config) &&
         finalize(plan.get()) == CUDNN_STATUS_SUCCESS;
}

std::vector<std::string> note_names(const std::vector<int>& notes, const char* const* names, std::size_t count) {
  std::vector<std::string> result;
  for (const int note : notes) {
    const bool named = note >= 0 && static_cast<std::size_t>(note) < count;
    result.push_back(named ? names[note] : "NOTE_" + std::to_string(note));
  }
  return result;
}

}  // namespace ortlock::cudnn
