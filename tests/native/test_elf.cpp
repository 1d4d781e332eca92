// Relocation kinds and image ranges.
#include <elf.h>

#include "check.h"
#include "interpose/elf_image.h"

using namespace ortlock;

CASE(relocations_of_both_architectures) {
  for (const unsigned type : {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64}) {
    TRUE(interpose::is_symbol_slot(EM_X86_64, type));
  }
  for (const unsigned type : {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64}) {
    TRUE(interpose::is_symbol_slot(EM_AARCH64, type));
  }
  TRUE(!interpose::is_symbol_slot(EM_X86_64, R_X86_64_RELATIVE));
  TRUE(!interpose::is_symbol_slot(EM_X86_64, R_AARCH64_JUMP_SLOT));
  TRUE(!interpose::is_symbol_slot(EM_AARCH64, R_AARCH64_RELATIVE));
  TRUE(!interpose::is_symbol_slot(EM_AARCH64, R_X86_64_JUMP_SLOT));
  TRUE(!interpose::is_symbol_slot(EM_ARM, 22));
}

CASE(images_are_found_by_file_name) {
  TRUE(!interpose::ElfImage::find("libprovider_direct.so"));
  const Provider provider("provider_direct");
  const auto image = interpose::ElfImage::find("libprovider_direct.so");
  TRUE(image.has_value());
  EQUAL(image->path(), std::string(STAND_INS) + "/libprovider_direct.so");
  // Folder names do not count.
  TRUE(!interpose::ElfImage::find("tests"));
  const auto span = image->span();
  TRUE(span.contains(reinterpret_cast<std::uintptr_t>(provider.create)));
  for (const auto& range : image->writable_ranges()) {
    TRUE(span.begin <= range.begin && range.end <= span.end && range.begin < range.end);
    image->visit_slots([&](const char* name, void** slot) {
      // Bound at load time, so every slot is outside what the library can write.
      if (std::string(name) == "cudnnBackendFinalize") TRUE(!range.contains(reinterpret_cast<std::uintptr_t>(slot)));
    });
  }
}
