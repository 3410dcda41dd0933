// Computes the file's end from the ELF section table.
#include "device/elf.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace lb::gpu {
namespace {

// Whether `bytes` from `offset` end at or before `limit`, without overflow.
bool fits(size_t offset, size_t bytes, size_t limit) { return offset <= limit && bytes <= limit - offset; }

}  // namespace

size_t elf_bytes(const std::byte* image, size_t limit) {
  Elf64_Ehdr header;
  if (limit < sizeof header) return 0;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return 0;
  const size_t table_bytes = size_t(header.e_shnum) * sizeof(Elf64_Shdr);
  if (header.e_shentsize != sizeof(Elf64_Shdr) || !fits(header.e_shoff, table_bytes, limit)) return 0;
  size_t end = header.e_shoff + table_bytes;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (!fits(section.sh_offset, section.sh_size, limit)) return 0;
    end = std::max<size_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

}  // namespace lb::gpu
