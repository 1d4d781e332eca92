// Attaching, detaching, attaching too late, in every style.
#include <fstream>
#include <sstream>

#include "check.h"
#include "interpose/elf_image.h"

using namespace ortlock;
using cudnn::interposer;
using cudnn::Policy;

namespace {

// Permissions of the page that holds `address`, as the kernel has them.
std::string permissions(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string flags;
    std::istringstream(line) >> std::hex >> begin >> dash >> end >> flags;
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    if (begin <= value && value < end) return flags;
  }
  return "";
}

void intercepts(const char* name, bool direct, bool dlsym, bool dlsym_used) {
  const Provider provider(name);
  const auto before = interposer().attach(std::string("lib") + name + ".so");
  TRUE(before.loaded);
  TRUE(before.attached);
  EQUAL(before.direct, direct);
  EQUAL(before.dlsym, dlsym);
  EQUAL(before.resolved_before.size(), 0U);
  const Scope scope(Policy::pin);
  void* handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kDeterministicEngine);
  EQUAL(provider.legacy(handle, kUsual, false, true), 1);
  provider.destroy(handle);
  EQUAL(interposer().state().dlsym_used, dlsym_used);
  EQUAL(interposer().state().faults.size(), 0U);
}

}  // namespace

CASE(direct_imports) { intercepts("provider_direct", true, false, false); }
CASE(lazy_imports) { intercepts("provider_lazy", true, false, false); }
CASE(through_dlsym) { intercepts("provider_dlsym", false, true, true); }
CASE(both_styles_at_once) { intercepts("provider_both", true, true, true); }

CASE(not_loaded) {
  const auto state = interposer().attach("libprovider_direct.so");
  TRUE(!state.loaded);
  TRUE(!state.attached);
  EQUAL(state.slots, 0U);
}

CASE(attaching_twice_is_harmless) {
  const Provider provider("provider_direct");
  const auto first = interposer().attach("libprovider_direct.so");
  const auto second = interposer().attach("libprovider_direct.so");
  TRUE(first.slots > 10);
  EQUAL(second.slots, first.slots);
  const Scope scope(Policy::pin);
  void* handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kDeterministicEngine);
  provider.destroy(handle);
  std::uint64_t created = 0;
  for (const auto* hook : cudnn::hook_table()) created += std::string(hook->name) == "cudnnCreate";
  EQUAL(created, 1U);
}

CASE(detaching_restores_every_slot) {
  const Provider provider("provider_direct");
  std::map<void**, void*> before;
  const auto image = interpose::ElfImage::find("libprovider_direct.so");
  image->visit_slots([&](const char*, void** slot) { before[slot] = *slot; });
  TRUE(interposer().attach("libprovider_direct.so").attached);
  std::size_t changed = 0;
  for (const auto& [slot, value] : before) changed += *slot != value;
  EQUAL(changed, interposer().state().slots);
  TRUE(!interposer().detach().attached);
  for (const auto& [slot, value] : before) EQUAL(*slot, value);
  const Scope scope(Policy::strict);
  void* handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kNondeterministicEngine);
  provider.destroy(handle);
  EQUAL(scope.records().calls, 0U);
}

CASE(after_detaching_resolved_functions_pass_calls_through) {
  const Provider provider("provider_dlsym");
  interposer().attach("libprovider_dlsym.so");
  const Scope scope(Policy::strict);
  void* handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kDeterministicEngine);
  interposer().detach();
  EQUAL(provider.convolution(handle, kUsual, false), kNondeterministicEngine);
  interposer().attach("libprovider_dlsym.so");
  EQUAL(provider.convolution(handle, kUsual, false), kDeterministicEngine);
  EQUAL(interposer().state().resolved_before.size(), 0U);
  provider.destroy(handle);
}

CASE(too_late_is_detected_and_named) {
  const Provider provider("provider_dlsym");
  void* handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kNondeterministicEngine);
  const auto state = interposer().attach("libprovider_dlsym.so");
  TRUE(state.attached);
  std::string names;
  for (const auto& name : state.resolved_before) names += name + ' ';
  EQUAL(names,
        "cudnnBackendCreateDescriptor cudnnBackendDestroyDescriptor cudnnBackendExecute cudnnBackendFinalize "
        "cudnnBackendGetAttribute cudnnBackendSetAttribute cudnnCreate ");
  // And it is true: the resolved functions bypass the hooks, those resolved from now on do not.
  const Scope scope(Policy::pin);
  EQUAL(provider.convolution(handle, kUsual, false), kNondeterministicEngine);
  EQUAL(provider.legacy(handle, kUsual, false, true), 1);
  EQUAL(interposer().attach("libprovider_dlsym.so").resolved_before.size(), state.resolved_before.size());
  provider.destroy(handle);
}

CASE(direct_imports_are_never_too_late) {
  const Provider provider("provider_direct");
  void* handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kNondeterministicEngine);
  EQUAL(interposer().attach("libprovider_direct.so").resolved_before.size(), 0U);
  const Scope scope(Policy::pin);
  EQUAL(provider.convolution(handle, kUsual, false), kDeterministicEngine);
  provider.destroy(handle);
}

CASE(page_protection_is_restored) {
  const Provider provider("provider_direct");
  const auto image = interpose::ElfImage::find("libprovider_direct.so");
  std::map<void**, std::string> before;
  image->visit_slots([&](const char*, void** slot) { before[slot] = permissions(slot); });
  TRUE(interposer().attach("libprovider_direct.so").attached);
  std::size_t read_only = 0;
  for (const auto& [slot, flags] : before) {
    EQUAL(permissions(slot), flags);
    read_only += flags == "r--p";
  }
  TRUE(read_only > 0);
  // The data after the read-only part must stay writable.
  EQUAL(provider.touch(), 1);
  interposer().detach();
  for (const auto& [slot, flags] : before) EQUAL(permissions(slot), flags);
  EQUAL(provider.touch(), 2);
}

CASE(other_libraries_are_left_alone) {
  const Provider other("other_library");
  const Provider provider("provider_direct");
  interposer().attach("libprovider_direct.so");
  const Scope scope(Policy::strict);
  void* handle = other.create();
  EQUAL(other.convolution(handle, kUsual, false), kNondeterministicEngine);
  other.destroy(handle);
  EQUAL(scope.records().calls, 0U);
  handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kDeterministicEngine);
  provider.destroy(handle);
}

CASE(loaded_again_is_patched_again) {
  {
    const Provider provider("provider_direct");
    TRUE(interposer().attach("libprovider_direct.so").attached);
    dlclose(provider.library);
  }
  const bool unloaded = !interpose::ElfImage::find("libprovider_direct.so");
  const Provider provider("provider_direct");
  TRUE(interposer().attach("libprovider_direct.so").attached);
  const Scope scope(Policy::pin);
  void* handle = provider.create();
  EQUAL(provider.convolution(handle, kUsual, false), kDeterministicEngine);
  provider.destroy(handle);
  std::cout << (unloaded ? "was unloaded in between\n" : "stayed loaded\n");
}
