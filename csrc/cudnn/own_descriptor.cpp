#include "cudnn/own_descriptor.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "cudnn/book.h"
#include "cudnn/descriptors.h"
#include "cudnn/engine_config.h"
#include "cudnn/functions.h"

extern "C" void __lsan_register_root_region(const void* begin, std::size_t size) __attribute__((weak));

namespace ortlock::cudnn {

// A fixed range of addresses, so that one comparison tells our own pointers from cuDNN's.
class OwnPool {
 public:
  static OwnPool& instance() {
    static auto* pool = new OwnPool;
    return *pool;
  }

  OwnDescriptor* take() {
    Shard& mine = shard();
    OwnDescriptor* descriptor = nullptr;
    {
      const std::lock_guard lock(mine.mutex);
      if (!mine.free.empty()) {
        descriptor = mine.free.back();
        mine.free.pop_back();
      }
    }
    if (!descriptor) {
      const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= capacity_) {
        next_.store(capacity_, std::memory_order_relaxed);
        return nullptr;
      }
      descriptor = new (begin_ + index * sizeof(OwnDescriptor)) OwnDescriptor;
    }
    in_use_.fetch_add(1);
    return descriptor;
  }

  void give_back(OwnDescriptor* descriptor) {
    descriptor->clear();
    in_use_.fetch_sub(1, std::memory_order_relaxed);
    Shard& mine = shard();
    const std::lock_guard lock(mine.mutex);
    mine.free.push_back(descriptor);
  }

  bool holds(const void* pointer) const {
    const auto* address = static_cast<const std::byte*>(pointer);
    return begin_ <= address && address < end_;
  }

  std::size_t in_use() const { return in_use_.load(); }

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
    std::vector<OwnDescriptor*> free;
  };

  OwnPool() {
    // Address space only; pages are taken as descriptors are used.
    void* range = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return;
    // Descriptors own memory; a leak checker must look for it here.
    if (__lsan_register_root_region) __lsan_register_root_region(range, kBytes);
    begin_ = static_cast<std::byte*>(range);
    end_ = begin_ + kBytes;
    capacity_ = kBytes / sizeof(OwnDescriptor);
  }

  Shard& shard() {
    thread_local const std::size_t number = std::hash<std::thread::id>{}(std::this_thread::get_id());
    return shards_[number % shards_.size()];
  }

  static constexpr std::size_t kBytes = std::size_t{1} << 28;
  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
  std::size_t capacity_ = 0;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> in_use_{0};
  std::array<Shard, 16> shards_;
};

namespace {

void retain(std::atomic<int>& references) { references.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

OwnRef::OwnRef(OwnDescriptor* descriptor) : descriptor_(descriptor) {
  if (descriptor_) retain(descriptor_->references_);
}

OwnRef::OwnRef(const OwnRef& other) : OwnRef(other.descriptor_) {}

OwnRef::~OwnRef() {
  if (descriptor_) release_own(descriptor_);
}

OwnDescriptor* make_own(int type) {
  OwnDescriptor* descriptor = OwnPool::instance().take();
  if (!descriptor) return nullptr;
  descriptor->type = type;
  retain(descriptor->references_);
  // Counted as in use before this look, so that whoever detaches sees it or is seen.
  if (!interposer().complete()) {
    release_own(descriptor);
    return nullptr;
  }
  return descriptor;
}

void release_own(OwnDescriptor* descriptor) {
  if (descriptor->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) OwnPool::instance().give_back(descriptor);
}

OwnDescriptor* as_own(BackendDescriptor pointer) {
  return OwnPool::instance().holds(pointer) ? static_cast<OwnDescriptor*>(pointer) : nullptr;
}

BackendDescriptor real_pointer(BackendDescriptor pointer) {
  OwnDescriptor* own = as_own(pointer);
  return own ? own->real() : pointer;
}

void OwnDescriptor::set(int name, int value_type, std::int64_t count, const void* values) {
  const std::size_t size = static_cast<std::size_t>(count) * attribute_element_size(value_type);
  const auto offset = storage_.size();
  storage_.resize(offset + size);
  if (size != 0) std::memcpy(storage_.data() + offset, values, size);
  const OwnAttribute made{name, value_type, count, static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)};
  if (value_type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* pointers = static_cast<const BackendDescriptor*>(values);
    for (std::int64_t i = 0; i < count; ++i) {
      if (OwnDescriptor* other = as_own(pointers[i])) kept_.emplace_back(other);
    }
  }
  for (auto& known : attributes_) {
    if (known.name == name) {
      known = made;
      return;
    }
  }
  attributes_.push_back(made);
}

const OwnAttribute* OwnDescriptor::find(int name) const {
  for (const auto& attribute : attributes_) {
    if (attribute.name == name) return &attribute;
  }
  return nullptr;
}

std::vector<BackendDescriptor> OwnDescriptor::referenced(int name) const {
  const OwnAttribute* attribute = find(name);
  if (!attribute || attribute->type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return {};
  std::vector<BackendDescriptor> pointers(static_cast<std::size_t>(attribute->count));
  if (!pointers.empty()) std::memcpy(pointers.data(), bytes(*attribute), attribute->size);
  return pointers;
}

BackendDescriptor OwnDescriptor::real() {
  if (real_) return real_;
  OwnedDescriptor made(type);
  auto* set_attribute = cudnn::real<Function::cudnnBackendSetAttribute>();
  auto* finalize = cudnn::real<Function::cudnnBackendFinalize>();
  if (!made || !set_attribute || !finalize) {
    status_ = CUDNN_STATUS_NOT_SUPPORTED;
    return nullptr;
  }
  for (const auto& attribute : attributes_) {
    std::vector<BackendDescriptor> pointers = referenced(attribute.name);
    for (auto& pointer : pointers) {
      pointer = real_pointer(pointer);
      if (!pointer) {
        status_ = CUDNN_STATUS_NOT_SUPPORTED;
        return nullptr;
      }
    }
    const void* values = pointers.empty() ? static_cast<const void*>(bytes(attribute)) : pointers.data();
    status_ = set_attribute(made.get(), attribute.name, attribute.type, attribute.count, values);
    if (status_ != CUDNN_STATUS_SUCCESS) return nullptr;
  }
  if (finalized) {
    status_ = finalize(made.get());
    if (status_ != CUDNN_STATUS_SUCCESS) return nullptr;
  }
  real_ = made.release();
  return real_;
}

void OwnDescriptor::clear() noexcept {
  if (real_) {
    if (auto* destroy = cudnn::real<Function::cudnnBackendDestroyDescriptor>()) destroy(real_);
    real_ = nullptr;
  }
  finalized = false;
  if (entry) {
    entry.reset();
    plan.reset();
    graph = OwnRef();
  }
  knob_type = -1;
  knob_value = 0;
  attributes_.clear();
  storage_.clear();
  kept_.clear();
  status_ = CUDNN_STATUS_SUCCESS;
}

std::size_t own_in_use() { return OwnPool::instance().in_use(); }

}  // namespace ortlock::cudnn
