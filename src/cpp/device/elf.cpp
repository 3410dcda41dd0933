// Computes the file's end from the ELF section table.
#include "device/elf.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace lb::gpu {
namespace {

// The structs of <elf.h>, which not every system has.
struct ElfHeader {
  char magic[4];
  uint8_t bits, endianness, rest_of_identity[10];
  uint16_t type, machine;
  uint32_t version;
  uint64_t entry, segments, sections;  // offsets of the tables
  uint32_t flags;
  uint16_t header_bytes, segment_bytes, n_segments, section_bytes, n_sections, names;
};
struct ElfSection {
  uint32_t name, type;
  uint64_t flags, address, offset, bytes;
  uint32_t link, info;
  uint64_t alignment, entry_bytes;
};
static_assert(sizeof(ElfHeader) == 64 && sizeof(ElfSection) == 64);
constexpr uint8_t k64Bits = 2;
constexpr uint32_t kNoSection = 0, kNoBits = 8;  // types of sections without bytes in the file

// Whether `bytes` from `offset` end at or before `limit`, without overflow.
bool fits(size_t offset, size_t bytes, size_t limit) { return offset <= limit && bytes <= limit - offset; }

}  // namespace

size_t elf_bytes(const std::byte* image, size_t limit) {
  ElfHeader header;
  if (limit < sizeof header) return 0;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.magic, "\177ELF", sizeof header.magic) != 0 || header.bits != k64Bits) return 0;
  const size_t table_bytes = size_t(header.n_sections) * sizeof(ElfSection);
  if (header.section_bytes != sizeof(ElfSection) || !fits(header.sections, table_bytes, limit)) return 0;
  size_t end = header.sections + table_bytes;
  for (size_t i = 0; i < header.n_sections; ++i) {
    ElfSection section;
    std::memcpy(&section, image + header.sections + i * sizeof section, sizeof section);
    if (section.type == kNoBits || section.type == kNoSection) continue;
    if (!fits(section.offset, section.bytes, limit)) return 0;
    end = std::max<size_t>(end, section.offset + section.bytes);
  }
  return end;
}

}  // namespace lb::gpu
