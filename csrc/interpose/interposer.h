// Redirects a library's calls to hooked functions, in that library alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interpose/elf_image.h"
#include "interpose/hook.h"

namespace ortlock::interpose {

struct State {
  bool loaded = false;
  bool attached = false;
  bool direct = false;      // slots of hooked functions are patched
  bool dlsym = false;       // the dlsym slot is patched
  bool dlsym_used = false;  // and a hooked function was asked for through it
  std::string library_path;
  std::size_t slots = 0;
  std::vector<std::string> resolved_before;
  std::string target_path;
  std::vector<std::string> faults;
};

class Interposer {
 public:
  // `hooks` and `target_prefix` (the file name prefix of the library that defines the hooked functions) must live
  // as long as the process: a patched library may call a hook at any time, also during exit.
  Interposer(std::vector<Hook*> hooks, std::string target_prefix);

  // Patches the loaded library whose file name starts with `library_prefix`. Harmless when repeated; patches anew
  // where the library was loaded again meanwhile. Does nothing where it is not loaded.
  State attach(std::string_view library_prefix);

  // Makes the hooks pass calls through, which they know from active(), and puts the patched slots back, unless
  // `in_use` says that the library holds objects which only the hooks understand. Pointers that the library took
  // through dlsym meanwhile stay in any case.
  State detach(const std::function<bool()>& in_use = [] { return false; });

  State state() const;
  bool active() const { return active_.load(); }
  // Attached, and no function was resolved before.
  bool complete() const { return complete_.load(); }

  // The address of `name` in the library that defines the hooked functions, or null.
  void* target_symbol(const char* name) const;

  // Notes an internal fault, after which the real function was called. At most a few distinct ones are kept.
  void note_fault(const std::string& text) noexcept;

  // What dlsym(handle, name) of the patched library returns: `found`, or the hook in its place.
  void* substitute(const char* name, void* found);

 private:
  struct Patch {
    void** slot;
    void* original;
    void* replacement;
  };

  bool write_slot(const ElfImage& image, void** slot, void* value);
  std::vector<std::string> find_resolved(const ElfImage& image, const std::vector<const Hook*>& hooks) const;
  State snapshot() const;
  void forget_mapping();

  std::vector<Hook*> hooks_;
  std::unordered_map<std::string_view, Hook*> by_name_;
  std::string target_prefix_;
  std::string library_prefix_;

  mutable std::mutex mutex_;
  std::atomic<bool> active_{false};
  std::atomic<bool> complete_{false};
  std::vector<Patch> patches_;
  std::uintptr_t patched_base_ = 0;
  State state_;

  mutable std::mutex fault_mutex_;
  std::vector<std::string> faults_;
  std::atomic<bool> dlsym_used_{false};
};

// The dlsym that patched libraries call. It serves one interposer, set before the first patch.
void serve_dlsym(Interposer* interposer);

}  // namespace ortlock::interpose
