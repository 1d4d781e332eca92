// Graph descriptors of our own, which the provider is handed in place of cuDNN's. A frontend makes about 145
// descriptors for every plan; for an operation whose plan is known none of them needs cuDNN.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/abi.h"

namespace ortlock::cudnn {

class OwnDescriptor;
OwnDescriptor* make_own(int type);
void release_own(OwnDescriptor* descriptor);
struct BookEntry;
struct FinalizedPlan;

// Counts references to an OwnDescriptor; the last one returns it to the pool.
class OwnRef {
 public:
  OwnRef() = default;
  explicit OwnRef(OwnDescriptor* descriptor);
  OwnRef(const OwnRef& other);
  OwnRef(OwnRef&& other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  OwnRef& operator=(OwnRef other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~OwnRef();

  OwnDescriptor* get() const { return descriptor_; }
  OwnDescriptor* operator->() const { return descriptor_; }
  OwnDescriptor& operator*() const { return *descriptor_; }
  explicit operator bool() const { return descriptor_ != nullptr; }

 private:
  OwnDescriptor* descriptor_ = nullptr;
};

struct OwnAttribute {
  int name;
  int type;
  std::int64_t count;
  std::uint32_t offset;  // of its bytes in the descriptor's storage
  std::uint32_t size;
};

// What most of them need, as knob choices to be filled in, stands in the first cache line.
class alignas(64) OwnDescriptor {
 public:
  int type = 0;
  bool finalized = false;

 private:
  bool plain_ = false;  // a knob choice that nothing was set on
  std::atomic<int> references_{0};
  Status status_ = CUDNN_STATUS_SUCCESS;
  BackendDescriptor real_ = nullptr;

 public:
  std::int64_t knob_type = -1;  // knob choice
  std::int64_t knob_value = 0;

  // What it stands for once known.
  std::shared_ptr<BookEntry> entry;     // operation graph, query, engine configuration, engine, plan
  std::shared_ptr<FinalizedPlan> plan;  // execution plan
  OwnRef graph;                         // query, engine configuration, engine: the operation graph

  // Keeps a copy of a value; a later one of the same name replaces it.
  void set(int name, int value_type, std::int64_t count, const void* values);
  const OwnAttribute* find(int name) const;
  const std::byte* bytes(const OwnAttribute& attribute) const { return storage_.data() + attribute.offset; }
  // In the order in which they were set.
  const std::vector<OwnAttribute>& attributes() const { return attributes_; }

  template <typename T>
  T value(int name, T otherwise = T{}) const {
    const OwnAttribute* attribute = find(name);
    if (!attribute || attribute->size < sizeof(T)) return otherwise;
    T result;
    __builtin_memcpy(&result, bytes(*attribute), sizeof(T));
    return result;
  }

  // Descriptors that an attribute refers to: how many, and which.
  std::size_t reference_count(int name) const;
  BackendDescriptor reference(const OwnAttribute& attribute, std::size_t index) const;
  std::vector<BackendDescriptor> referenced(int name) const;
  // The first of them if it is one of our own, else null.
  OwnDescriptor* first_own(int name) const;

  // cuDNN's own descriptor with the same attributes, made when first asked for; null if cuDNN refuses.
  BackendDescriptor real();
  Status last_status() const { return status_; }
  // Takes over a descriptor that cuDNN made for the same purpose.
  void adopt(BackendDescriptor made) { real_ = made; }
  bool has_real() const { return real_ != nullptr; }

 private:
  friend class OwnRef;
  friend class OwnPool;
  friend OwnDescriptor* make_own(int type);
  friend void release_own(OwnDescriptor* descriptor);

  void clear() noexcept;

  std::vector<OwnAttribute> attributes_;  // these keep their capacity when the descriptor is used again
  std::vector<std::byte> storage_;
  std::vector<OwnRef> kept_;  // referenced descriptors of our own stay alive
};

// A new descriptor with one reference, or null when the pool is exhausted: then cuDNN's own is used.
OwnDescriptor* make_own(int type);
// Drops the reference that the provider holds.
void release_own(OwnDescriptor* descriptor);
// The descriptor behind a pointer that the provider was handed, or null if it is one of cuDNN's.
OwnDescriptor* as_own(BackendDescriptor pointer);
// How many are in use.
std::size_t own_in_use();
// True once any was made.
bool own_used() noexcept;

// The pointer that cuDNN understands: of our own descriptors their real counterpart.
BackendDescriptor real_pointer(BackendDescriptor pointer);

}  // namespace ortlock::cudnn
