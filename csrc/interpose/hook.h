// A function that is intercepted: its name, what is called in its place, and the real one.
#pragma once

#include <atomic>

namespace ortlock::interpose {

struct Hook {
  const char* name;
  void* replacement;
  std::atomic<void*> real{nullptr};

  Hook(const char* hook_name, void* hook_replacement) : name(hook_name), replacement(hook_replacement) {}
};

}  // namespace ortlock::interpose
