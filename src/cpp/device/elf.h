// Code objects of every vendor are 64-bit ELF files. Drivers take no length and trust the ELF headers, so a truncated
// file must be rejected before it reaches the driver.
#pragma once

#include <cstddef>

namespace lb::gpu {

// Size of the ELF file: the end of its last section or of its section table, whichever is later. 0 when the image has
// no 64-bit ELF headers or they point beyond `limit`.
size_t elf_bytes(const std::byte* image, size_t limit);

}  // namespace lb::gpu
