// Code objects of every vendor are 64-bit ELF files. Drivers take them without a length and read as far as the headers
// say, so a truncated one must be refused before.
#pragma once

#include <cstddef>

namespace lb::gpu {

// Bytes up to the end of the last section or of the section table; 0 when these are no 64-bit ELF headers, or when they
// point beyond `limit`.
size_t elf_bytes(const std::byte* image, size_t limit);

}  // namespace lb::gpu
