#include "interpose/elf_image.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace ortlock::interpose {
namespace {

#if defined(__x86_64__)
constexpr unsigned kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kMachine = EM_AARCH64;
#else
#error "ortlock knows the relocations of x86-64 and aarch64 only"
#endif

std::uintptr_t page_floor(std::uintptr_t address) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return address & ~(page - 1);
}

std::string_view file_name(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

int protection_of(ElfW(Word) flags) {
  return ((flags & PF_R) ? PROT_READ : 0) | ((flags & PF_W) ? PROT_WRITE : 0) | ((flags & PF_X) ? PROT_EXEC : 0);
}

}  // namespace

bool is_symbol_slot(unsigned machine, std::uint64_t relocation_type) {
  switch (machine) {
    case EM_X86_64:
      return relocation_type == R_X86_64_JUMP_SLOT || relocation_type == R_X86_64_GLOB_DAT ||
             relocation_type == R_X86_64_64;
    case EM_AARCH64:
      return relocation_type == R_AARCH64_JUMP_SLOT || relocation_type == R_AARCH64_GLOB_DAT ||
             relocation_type == R_AARCH64_ABS64;
    default:
      return false;
  }
}

std::optional<ElfImage> ElfImage::find(std::string_view prefix) {
  struct Search {
    std::string_view prefix;
    std::optional<ElfImage> found;
  } search{prefix, std::nullopt};

  const auto visit = [](dl_phdr_info* info, std::size_t, void* data) -> int {
    auto& wanted = *static_cast<Search*>(data);
    const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
    if (file_name(path).substr(0, wanted.prefix.size()) != wanted.prefix) return 0;
    ElfImage image;
    image.path_ = path;
    image.base_ = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& header = info->dlpi_phdr[i];
      const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
      const std::uintptr_t end = begin + header.p_memsz;
      if (header.p_type == PT_LOAD) image.segments_.push_back({{begin, end}, protection_of(header.p_flags)});
      if (header.p_type == PT_DYNAMIC) image.dynamic_ = reinterpret_cast<const void*>(begin);
      // The dynamic linker rounds both ends down, so a page that also holds writable data stays writable.
      if (header.p_type == PT_GNU_RELRO) image.relro_ = MemoryRange{page_floor(begin), page_floor(end)};
    }
    if (!image.dynamic_) return 0;
    wanted.found = std::move(image);
    return 1;
  };
  dl_iterate_phdr(visit, &search);
  return std::move(search.found);
}

void ElfImage::visit_slots(const std::function<void(const char*, void**)>& visit) const {
  // glibc stores absolute addresses in the mapped dynamic section, other C libraries leave offsets.
  const auto address = [this](ElfW(Addr) value) { return value >= base_ ? value : base_ + value; };

  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  std::uintptr_t plain = 0, calls = 0;
  std::size_t plain_size = 0, calls_size = 0;
  for (auto* entry = static_cast<const ElfW(Dyn)*>(dynamic_); entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(address(entry->d_un.d_ptr)); break;
      case DT_STRTAB: strings = reinterpret_cast<const char*>(address(entry->d_un.d_ptr)); break;
      case DT_RELA: plain = address(entry->d_un.d_ptr); break;
      case DT_RELASZ: plain_size = entry->d_un.d_val; break;
      case DT_JMPREL: calls = address(entry->d_un.d_ptr); break;
      case DT_PLTRELSZ: calls_size = entry->d_un.d_val; break;
      default: break;
    }
  }
  if (!symbols || !strings) return;

  const auto walk = [&](std::uintptr_t table, std::size_t bytes) {
    const auto* relocations = reinterpret_cast<const ElfW(Rela)*>(table);
    for (std::size_t i = 0; table && i < bytes / sizeof(ElfW(Rela)); ++i) {
      const auto& relocation = relocations[i];
      // An addend would make the slot point beside the symbol; no call slot has one.
      if (!is_symbol_slot(kMachine, ELF64_R_TYPE(relocation.r_info)) || relocation.r_addend != 0) continue;
      const auto& symbol = symbols[ELF64_R_SYM(relocation.r_info)];
      if (symbol.st_name == 0) continue;
      visit(strings + symbol.st_name, reinterpret_cast<void**>(base_ + relocation.r_offset));
    }
  };
  walk(plain, plain_size);
  walk(calls, calls_size);
}

std::vector<MemoryRange> ElfImage::writable_ranges() const {
  std::vector<MemoryRange> ranges;
  for (const auto& segment : segments_) {
    if (!(segment.protection & PROT_WRITE)) continue;
    auto begin = segment.range.begin;
    if (relro_ && relro_->end > begin && relro_->begin <= begin) begin = std::min(relro_->end, segment.range.end);
    if (begin < segment.range.end) ranges.push_back({begin, segment.range.end});
  }
  return ranges;
}

int ElfImage::protection_at(std::uintptr_t address) const {
  if (relro_ && relro_->contains(page_floor(address))) return PROT_READ;
  for (const auto& segment : segments_) {
    if (segment.range.contains(address)) return segment.protection;
  }
  return PROT_NONE;
}

MemoryRange ElfImage::span() const {
  MemoryRange span{UINTPTR_MAX, 0};
  for (const auto& segment : segments_) {
    span.begin = std::min(span.begin, segment.range.begin);
    span.end = std::max(span.end, segment.range.end);
  }
  return span;
}

}  // namespace ortlock::interpose
