#include "cudnn/own_descriptor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "cudnn/book.h"
#include "cudnn/descriptors.h"
#include "cudnn/engine_config.h"
#include "cudnn/functions.h"

extern "C" void __lsan_register_root_region(const void* begin, std::size_t size) __attribute__((weak));

namespace ortlock::cudnn {

namespace {

// What one thread keeps at hand, so that making and dropping a descriptor takes no lock. Frontends make and drop some
// 140 for every plan.
struct ThreadPool {
  std::vector<OwnDescriptor*> free;
  // Made less returned on this thread; written by it alone. The sum over threads is what is in use.
  std::atomic<std::int64_t> in_use{0};
};

// Trivially destructible, so that they can be read while a thread exits.
thread_local ThreadPool* t_pool = nullptr;
thread_local bool t_gone = false;

}  // namespace

// A fixed range of addresses, so that one comparison tells our own pointers from cuDNN's.
class OwnPool {
 public:
  static OwnPool& instance() {
    static auto* pool = new OwnPool;
    return *pool;
  }

  OwnDescriptor* take() {
    ThreadPool* mine = thread_pool();
    if (!mine) return nullptr;
    if (mine->free.empty() && !refill(mine->free)) return nullptr;
    OwnDescriptor* descriptor = mine->free.back();
    mine->free.pop_back();
    // Ordered before the look at the interposer in make_own().
    mine->in_use.fetch_add(1);
    return descriptor;
  }

  void give_back(OwnDescriptor* descriptor) {
    descriptor->clear();
    ThreadPool* mine = thread_pool();
    if (!mine) {
      const std::lock_guard lock(mutex_);
      shared_.push_back(descriptor);
      --gone_;
      return;
    }
    mine->in_use.store(mine->in_use.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    mine->free.push_back(descriptor);
    if (mine->free.size() >= kKept) spill(mine->free, kKept / 2);
  }

  bool holds(const void* pointer) const {
    const auto* address = static_cast<const std::byte*>(pointer);
    return begin_ <= address && address < end_;
  }

  bool used() const noexcept { return used_.load(std::memory_order_relaxed); }

  std::int64_t in_use() {
    const std::lock_guard lock(mutex_);
    std::int64_t sum = gone_;
    for (const ThreadPool* pool : threads_) sum += pool->in_use.load();
    return sum;
  }

 private:
  struct Guard {
    ThreadPool pool;

    Guard() {
      auto& all = instance();
      const std::lock_guard lock(all.mutex_);
      all.threads_.push_back(&pool);
    }
    ~Guard() {
      t_pool = nullptr;
      t_gone = true;
      auto& all = instance();
      const std::lock_guard lock(all.mutex_);
      all.threads_.erase(std::find(all.threads_.begin(), all.threads_.end(), &pool));
      all.gone_ += pool.in_use.load();
      all.shared_.insert(all.shared_.end(), pool.free.begin(), pool.free.end());
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
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

  static ThreadPool* thread_pool() {
    if (t_pool) return t_pool;
    if (t_gone) return nullptr;
    thread_local Guard guard;
    t_pool = &guard.pool;
    return t_pool;
  }

  // Gets some descriptors, used ones first. False if there are no more.
  bool refill(std::vector<OwnDescriptor*>& free) {
    const std::lock_guard lock(mutex_);
    used_.store(true, std::memory_order_relaxed);
    const std::size_t used = std::min(shared_.size(), kBatch);
    free.insert(free.end(), shared_.end() - static_cast<std::ptrdiff_t>(used), shared_.end());
    shared_.resize(shared_.size() - used);
    while (free.size() < kBatch && next_ < capacity_) {
      free.push_back(new (begin_ + next_ * sizeof(OwnDescriptor)) OwnDescriptor);
      ++next_;
    }
    return !free.empty();
  }

  void spill(std::vector<OwnDescriptor*>& free, std::size_t count) {
    const std::lock_guard lock(mutex_);
    // The oldest: the newest are still in the processor's cache.
    const auto end = free.begin() + static_cast<std::ptrdiff_t>(count);
    shared_.insert(shared_.end(), free.begin(), end);
    free.erase(free.begin(), end);
  }

  static constexpr std::size_t kBytes = std::size_t{1} << 28;
  static constexpr std::size_t kBatch = 64;
  static constexpr std::size_t kKept = 1024;
  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
  std::size_t capacity_ = 0;

  std::atomic<bool> used_{false};
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::vector<OwnDescriptor*> shared_;
  std::vector<ThreadPool*> threads_;
  std::int64_t gone_ = 0;  // in use, made or returned by threads that are gone
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
  descriptor->plain_ = type == CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
  descriptor->references_.store(1, std::memory_order_relaxed);
  // Counted as in use before this look, so that whoever detaches sees it or is seen.
  if (!interposer().complete()) {
    release_own(descriptor);
    return nullptr;
  }
  return descriptor;
}

void release_own(OwnDescriptor* descriptor) {
  // Whoever holds the only reference needs no atomic operation: nobody can add another.
  if (descriptor->references_.load(std::memory_order_acquire) == 1 ||
      descriptor->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    OwnPool::instance().give_back(descriptor);
  }
}

OwnDescriptor* as_own(BackendDescriptor pointer) {
  return OwnPool::instance().holds(pointer) ? static_cast<OwnDescriptor*>(pointer) : nullptr;
}

BackendDescriptor real_pointer(BackendDescriptor pointer) {
  OwnDescriptor* own = as_own(pointer);
  return own ? own->real() : pointer;
}

void OwnDescriptor::set(int name, int value_type, std::int64_t count, const void* values) {
  plain_ = false;
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

std::size_t OwnDescriptor::reference_count(int name) const {
  const OwnAttribute* attribute = find(name);
  if (!attribute || attribute->type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return 0;
  return static_cast<std::size_t>(attribute->count);
}

BackendDescriptor OwnDescriptor::reference(const OwnAttribute& attribute, std::size_t index) const {
  BackendDescriptor pointer = nullptr;
  std::memcpy(&pointer, bytes(attribute) + index * sizeof pointer, sizeof pointer);
  return pointer;
}

OwnDescriptor* OwnDescriptor::first_own(int name) const {
  return reference_count(name) == 0 ? nullptr : as_own(reference(*find(name), 0));
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
  knob_type = -1;
  knob_value = 0;
  status_ = CUDNN_STATUS_SUCCESS;
  if (plain_) return;
  if (entry) {
    entry.reset();
    plan.reset();
    graph = OwnRef();
  }
  attributes_.clear();
  storage_.clear();
  kept_.clear();
}

bool own_used() noexcept { return OwnPool::instance().used(); }

std::size_t own_in_use() { return static_cast<std::size_t>(OwnPool::instance().in_use()); }

}  // namespace ortlock::cudnn
