// What the provider put into cuDNN's graph descriptors, kept beside them so that a plan can be named and judged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cudnn/abi.h"

namespace ortlock::cudnn {

struct Watched;
using WatchedPtr = std::shared_ptr<Watched>;

struct Attribute {
  int name;
  int type;
  std::int64_t count;
  std::vector<std::byte> bytes;     // plain values
  std::vector<WatchedPtr> objects;  // referenced descriptors, null for those that are not watched
};

// The engine configurations that one heuristics query returned, best first. Entries become null when destroyed.
struct Candidates {
  std::mutex mutex;
  WatchedPtr graph;
  std::vector<BackendDescriptor> configs;
  std::size_t first_deterministic = 0;  // answer of the last search, valid if `searched`
  bool searched = false;
};

// One descriptor. Written by the thread that fills it in, which cuDNN requires to be one at a time.
struct Watched {
  std::vector<Attribute> attributes;
  std::shared_ptr<Candidates> candidates;  // of an engine configuration that a query returned
  std::size_t rank = 0;                    // its place among them

  const Attribute* find(int name) const;
};

// Watched descriptors by pointer; safe under threads.
class DescriptorTable {
 public:
  WatchedPtr find(BackendDescriptor descriptor) const;
  WatchedPtr obtain(BackendDescriptor descriptor);
  void erase(BackendDescriptor descriptor) noexcept;
  void clear();

 private:
  struct Shard;
  Shard& shard(BackendDescriptor descriptor) const;
};

DescriptorTable& descriptors();

// Bytes of one element of an attribute type.
std::size_t attribute_element_size(int type) noexcept;

// Attributes worth keeping: those of tensors, operations, graphs, queries and plans.
bool worth_watching(int attribute_name) noexcept;

// Keeps a copy of what cudnnBackendSetAttribute was given.
void watch_attribute(BackendDescriptor descriptor, int name, int type, std::int64_t count, const void* values);

}  // namespace ortlock::cudnn
