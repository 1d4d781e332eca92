// One shared library as the dynamic linker mapped it: its relocation slots and its writable data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ortlock::interpose {

// True for relocations that store a symbol's address in a slot (call slots, data slots, absolute words).
// `machine` is the ELF e_machine value: 62 for x86-64, 183 for aarch64.
bool is_symbol_slot(unsigned machine, std::uint64_t relocation_type);

struct MemoryRange {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool contains(std::uintptr_t address) const { return begin <= address && address < end; }
};

class ElfImage {
 public:
  // The loaded library whose file name (without folders) starts with `prefix`; the first one if several do.
  static std::optional<ElfImage> find(std::string_view prefix);

  const std::string& path() const { return path_; }
  std::uintptr_t base() const { return base_; }

  // Calls visit(symbol name, slot address) for every slot that holds the address of an imported symbol.
  void visit_slots(const std::function<void(const char*, void**)>& visit) const;

  // Memory that the library can write at any time: its data without the part made read-only after relocation.
  std::vector<MemoryRange> writable_ranges() const;

  // PROT_* flags of the page that holds `address`, derived from the program headers as the dynamic linker applied them.
  int protection_at(std::uintptr_t address) const;

  // The span of all mapped segments.
  MemoryRange span() const;

 private:
  struct Segment {
    MemoryRange range;
    int protection;
  };

  std::string path_;
  std::uintptr_t base_ = 0;
  const void* dynamic_ = nullptr;
  std::vector<Segment> segments_;
  std::optional<MemoryRange> relro_;  // whole pages only, as the dynamic linker protects them
};

}  // namespace ortlock::interpose
