#include "cudnn/descriptors.h"

#include <array>
#include <cstring>
#include <unordered_map>

namespace ortlock::cudnn {
std::size_t attribute_element_size(int type) noexcept {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return 16;
    default:
      return 4;  // enumerations, int32, float
  }
}

const Attribute* Watched::find(int name) const {
  for (const auto& attribute : attributes) {
    if (attribute.name == name) return &attribute;
  }
  return nullptr;
}

struct DescriptorTable::Shard {
  std::mutex mutex;
  std::unordered_map<BackendDescriptor, WatchedPtr> entries;
};

DescriptorTable::Shard& DescriptorTable::shard(BackendDescriptor descriptor) const {
  // Never destroyed: the destroy hook may run during exit.
  static auto* shards = new std::array<Shard, 64>;
  const auto address = reinterpret_cast<std::uintptr_t>(descriptor);
  return (*shards)[(address >> 5 ^ address >> 13) % shards->size()];
}

WatchedPtr DescriptorTable::find(BackendDescriptor descriptor) const {
  auto& part = shard(descriptor);
  const std::lock_guard lock(part.mutex);
  const auto found = part.entries.find(descriptor);
  return found == part.entries.end() ? nullptr : found->second;
}

WatchedPtr DescriptorTable::obtain(BackendDescriptor descriptor) {
  auto& part = shard(descriptor);
  const std::lock_guard lock(part.mutex);
  auto& entry = part.entries[descriptor];
  if (!entry) entry = std::make_shared<Watched>();
  return entry;
}

void DescriptorTable::erase(BackendDescriptor descriptor) noexcept {
  WatchedPtr erased;
  {
    auto& part = shard(descriptor);
    const std::lock_guard lock(part.mutex);
    const auto found = part.entries.find(descriptor);
    if (found == part.entries.end()) return;
    erased = std::move(found->second);
    part.entries.erase(found);
  }
  if (erased->candidates) {
    const std::lock_guard lock(erased->candidates->mutex);
    auto& configs = erased->candidates->configs;
    if (erased->rank < configs.size() && configs[erased->rank] == descriptor) configs[erased->rank] = nullptr;
  }
}

void DescriptorTable::clear() {
  // shard() hands out one shard for each of these addresses.
  for (std::uintptr_t i = 0; i < 64; ++i) {
    auto& part = shard(reinterpret_cast<BackendDescriptor>(i << 5));
    std::unordered_map<BackendDescriptor, WatchedPtr> entries;
    const std::lock_guard lock(part.mutex);
    entries.swap(part.entries);
  }
}

DescriptorTable& descriptors() {
  static DescriptorTable table;  // holds nothing itself
  return table;
}

bool worth_watching(int name) noexcept {
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_MODE:
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
    case CUDNN_ATTR_EXECUTION_PLAN_HANDLE:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
    case CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP:
      return true;
    default:
      break;
  }
  const int family = name / 100;
  // Pointwise and convolution parameters; then operations, graphs and tensors; then matmul, reduction and what follows.
  // Left out: engines (3, 13), plans (4), intermediate and knob information (5, 6, 11, 12, 14), variant packs (10).
  return family <= 1 || (family >= 7 && family <= 9) || family >= 15;
}

void watch_attribute(BackendDescriptor descriptor, int name, int type, std::int64_t count, const void* values) {
  if (count < 0 || !values) return;
  Attribute attribute{name, type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* pointers = static_cast<const BackendDescriptor*>(values);
    for (std::int64_t i = 0; i < count; ++i) attribute.objects.push_back(descriptors().find(pointers[i]));
  }
  const auto* bytes = static_cast<const std::byte*>(values);
  attribute.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * attribute_element_size(type));

  const WatchedPtr watched = descriptors().obtain(descriptor);
  for (auto& known : watched->attributes) {
    if (known.name == name) {
      known = std::move(attribute);
      return;
    }
  }
  watched->attributes.push_back(std::move(attribute));
}

}  // namespace ortlock::cudnn
