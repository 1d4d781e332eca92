#include "cudnn/functions.h"

#include <array>

#include "cudnn/hooks.h"

namespace ortlock::cudnn {
namespace {

constexpr std::array<const char*, kFunctionCount> kNames{{
#define ORTLOCK_NAME(name, ...) #name,
    ORTLOCK_CUDNN_HOOKED(ORTLOCK_NAME)
#undef ORTLOCK_NAME
}};

}  // namespace

const char* function_name(Function function) { return kNames[static_cast<std::size_t>(function)]; }

const std::vector<interpose::Hook*>& hook_table() {
  static const auto* table = new std::vector<interpose::Hook*>{
#define ORTLOCK_HOOK(name, ...) new interpose::Hook(#name, reinterpret_cast<void*>(&name##_hook)),
      ORTLOCK_CUDNN_HOOKED(ORTLOCK_HOOK)
#undef ORTLOCK_HOOK
  };
  return *table;
}

interpose::Interposer& interposer() {
  static auto* instance = [] {
    auto* made = new interpose::Interposer(hook_table(), "libcudnn.so");
    interpose::serve_dlsym(made);
    return made;
  }();
  return *instance;
}

void* real_address(Function function) {
  interpose::Hook& hook = *hook_table()[static_cast<std::size_t>(function)];
  void* known = hook.real.load(std::memory_order_acquire);
  if (known) return known;
  // The provider never asked for this one; its cuDNN has it all the same.
  void* found = interposer().target_symbol(hook.name);
  if (!found) return nullptr;
  return hook.real.compare_exchange_strong(known, found) ? found : known;
}

}  // namespace ortlock::cudnn
