#include "interpose/interposer.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ortlock::interpose {
namespace {

constexpr std::size_t kMaxFaults = 16;

std::atomic<Interposer*> g_dlsym_owner{nullptr};

// Called in place of dlsym by the patched library.
void* hooked_dlsym(void* handle, const char* name) {
  // RTLD_NEXT and RTLD_DEFAULT mean the caller's own search order, which a sibling call keeps.
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) return dlsym(handle, name);
  void* found = dlsym(handle, name);
  Interposer* owner = g_dlsym_owner.load(std::memory_order_acquire);
  if (!found || !owner || !owner->active()) return found;
  try {
    return owner->substitute(name, found);
  } catch (...) {
    return found;
  }
}

// Adds the names of the hooks whose address stands in a word of `range`: a function that the library resolved before.
// The words belong to another library, which may write them at this moment, so the sanitizers' view does not apply.
__attribute__((no_sanitize("address"), no_sanitize("thread"))) void scan_words(
    const MemoryRange& range, const std::unordered_map<std::uintptr_t, const Hook*>& addresses,
    std::vector<std::string>& names) {
  // The range test first keeps this to a few milliseconds for tens of megabytes.
  std::uintptr_t lowest = UINTPTR_MAX, highest = 0;
  for (const auto& entry : addresses) {
    lowest = std::min(lowest, entry.first);
    highest = std::max(highest, entry.first);
  }
  const auto begin = (range.begin + sizeof(void*) - 1) & ~(sizeof(void*) - 1);
  for (auto word = begin; word + sizeof(void*) <= range.end; word += sizeof(void*)) {
    const auto value = __atomic_load_n(reinterpret_cast<const std::uintptr_t*>(word), __ATOMIC_RELAXED);
    if (value < lowest || value > highest) continue;
    const auto found = addresses.find(value);
    if (found != addresses.end()) names.emplace_back(found->second->name);
  }
}

void* dlsym_replacement() { return reinterpret_cast<void*>(&hooked_dlsym); }

}  // namespace

void serve_dlsym(Interposer* interposer) { g_dlsym_owner.store(interposer, std::memory_order_release); }

Interposer::Interposer(std::vector<Hook*> hooks, std::string target_prefix)
    : hooks_(std::move(hooks)), target_prefix_(std::move(target_prefix)) {
  for (Hook* hook : hooks_) by_name_.emplace(hook->name, hook);
}

bool Interposer::write_slot(const ElfImage& image, void** slot, void* value) {
  const auto page_size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto page = reinterpret_cast<std::uintptr_t>(slot) & ~(page_size - 1);
  const int protection = image.protection_at(reinterpret_cast<std::uintptr_t>(slot));
  const bool read_only = !(protection & PROT_WRITE);
  // Only the slot's own page changes: its neighbours may hold data that other threads write right now.
  if (read_only && mprotect(reinterpret_cast<void*>(page), page_size, protection | PROT_WRITE) != 0) {
    note_fault(std::string("mprotect: ") + std::strerror(errno));
    return false;
  }
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (read_only && mprotect(reinterpret_cast<void*>(page), page_size, protection) != 0) {
    note_fault(std::string("mprotect (restoring): ") + std::strerror(errno));
  }
  return true;
}

State Interposer::attach(std::string_view library_prefix) {
  const std::lock_guard lock(mutex_);
  library_prefix_ = library_prefix;
  const auto image = ElfImage::find(library_prefix);
  if (!image) {
    active_.store(false, std::memory_order_release);
    forget_mapping();
    return snapshot();
  }
  const auto in_place = [](const Patch& patch) {
    return __atomic_load_n(patch.slot, __ATOMIC_ACQUIRE) == patch.replacement;
  };
  // Loaded anew, perhaps at the same address: what was patched is gone with the old mapping.
  const bool same_mapping = image->base() == patched_base_ &&
                            (patches_.empty() || std::any_of(patches_.begin(), patches_.end(), in_place));
  if (!same_mapping) forget_mapping();

  std::vector<Patch> wanted;
  std::vector<const Hook*> not_imported(hooks_.begin(), hooks_.end());
  bool direct = false, through_dlsym = false;
  image->visit_slots([&](const char* symbol, void** slot) {
    const std::string_view name = symbol;
    if (name == "dlsym") {
      through_dlsym = true;
      wanted.push_back({slot, nullptr, dlsym_replacement()});
      return;
    }
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return;
    direct = true;
    not_imported.erase(std::remove(not_imported.begin(), not_imported.end(), found->second), not_imported.end());
    wanted.push_back({slot, nullptr, found->second->replacement});
  });

  // Asked before the patch, and only once a mapping: later these words may hold hooks or pointers taken through them.
  if (!state_.attached) state_.resolved_before = find_resolved(*image, not_imported);

  active_.store(true, std::memory_order_release);
  bool complete = true;
  for (auto& patch : wanted) {
    void* current = __atomic_load_n(patch.slot, __ATOMIC_ACQUIRE);
    if (current == patch.replacement) continue;
    for (Hook* hook : hooks_) {
      if (hook->replacement != patch.replacement) continue;
      void* expected = nullptr;
      if (!hook->real.compare_exchange_strong(expected, current) && expected != current) {
        note_fault(std::string(hook->name) + ": two definitions in this process; the first one is called");
      }
    }
    patch.original = current;
    if (write_slot(*image, patch.slot, patch.replacement)) {
      patches_.push_back(patch);
    } else {
      complete = false;
    }
  }
  patched_base_ = image->base();
  state_.loaded = true;
  state_.library_path = image->path();
  state_.direct = direct;
  state_.dlsym = through_dlsym;
  state_.slots = patches_.size();
  state_.attached = complete && !patches_.empty();
  complete_.store(state_.attached && state_.resolved_before.empty(), std::memory_order_release);
  return snapshot();
}

void Interposer::forget_mapping() {
  complete_.store(false, std::memory_order_release);
  patches_.clear();
  state_ = State{};
  patched_base_ = 0;
  // The library that defines the functions may have gone with it.
  for (Hook* hook : hooks_) hook->real.store(nullptr, std::memory_order_release);
}

State Interposer::detach(const std::function<bool()>& in_use) {
  const std::lock_guard lock(mutex_);
  active_.store(false);
  complete_.store(false);
  state_.attached = false;
  // Asked after the hooks were told: from now on no new object comes into use.
  if (in_use()) return snapshot();
  const auto image = library_prefix_.empty() ? std::nullopt : ElfImage::find(library_prefix_);
  if (image && image->base() == patched_base_) {
    for (const auto& patch : patches_) {
      // Someone else may have patched the slot after us; theirs stays.
      if (__atomic_load_n(patch.slot, __ATOMIC_ACQUIRE) == patch.replacement) {
        write_slot(*image, patch.slot, patch.original);
      }
    }
  }
  patches_.clear();
  state_.slots = 0;
  return snapshot();
}

State Interposer::state() const {
  const std::lock_guard lock(mutex_);
  return snapshot();
}

State Interposer::snapshot() const {
  State copy = state_;
  copy.dlsym_used = dlsym_used_.load(std::memory_order_relaxed);
  if (const auto target = ElfImage::find(target_prefix_)) copy.target_path = target->path();
  const std::lock_guard lock(fault_mutex_);
  copy.faults = faults_;
  return copy;
}

void* Interposer::target_symbol(const char* name) const {
  // The library that defines a hooked function already in use is the right one even if several are loaded.
  for (const Hook* hook : hooks_) {
    Dl_info info{};
    void* real = hook->real.load(std::memory_order_acquire);
    if (!real || !dladdr(real, &info) || !info.dli_fname) continue;
    if (void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
      void* symbol = dlsym(library, name);
      dlclose(library);
      if (symbol) return symbol;
    }
  }
  if (const auto target = ElfImage::find(target_prefix_)) {
    if (void* library = dlopen(target->path().c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
      void* symbol = dlsym(library, name);
      dlclose(library);
      return symbol;
    }
  }
  return nullptr;
}

void Interposer::note_fault(const std::string& text) noexcept {
  try {
    const std::lock_guard lock(fault_mutex_);
    if (faults_.size() >= kMaxFaults || std::find(faults_.begin(), faults_.end(), text) != faults_.end()) return;
    faults_.push_back(text);
  } catch (...) {
    // Out of memory while noting a fault: the real function is called all the same.
  }
}

void* Interposer::substitute(const char* name, void* found) {
  const auto hook = by_name_.find(name);
  if (hook == by_name_.end()) return found;
  void* expected = nullptr;
  if (!hook->second->real.compare_exchange_strong(expected, found) && expected != found) {
    // A second copy of the library: its calls must reach that copy, so they are left alone.
    note_fault(std::string(name) + ": a second definition was asked for and left alone");
    return found;
  }
  dlsym_used_.store(true, std::memory_order_relaxed);
  return hook->second->replacement;
}

std::vector<std::string> Interposer::find_resolved(const ElfImage& image, const std::vector<const Hook*>& hooks) const {
  const auto target = ElfImage::find(target_prefix_);
  if (!target) return {};
  std::unordered_map<std::uintptr_t, const Hook*> addresses;
  if (void* library = dlopen(target->path().c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
    for (const Hook* hook : hooks) {
      if (void* symbol = dlsym(library, hook->name)) addresses.emplace(reinterpret_cast<std::uintptr_t>(symbol), hook);
    }
    dlclose(library);
  }
  if (addresses.empty()) return {};
  std::vector<std::string> names;
  for (const auto& range : image.writable_ranges()) scan_words(range, addresses, names);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace ortlock::interpose
