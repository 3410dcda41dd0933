// Implements arenas as anonymous mappings.
#include "base/memory.h"

#include <sys/mman.h>

#include <atomic>

namespace lb {
namespace {

std::byte* map(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LB_CHECK(p != MAP_FAILED, kMemory, "the system refused to reserve ", bytes, " bytes; try a smaller context");
  return static_cast<std::byte*>(p);
}

std::atomic<size_t> reserved = 0;

}  // namespace

Arena::Arena(size_t bytes) : Memory(map(bytes), bytes) { reserved += bytes; }

Arena::~Arena() {
  if (data() != nullptr) ::munmap(data(), size());
  reserved -= size();
}

size_t Arena::reserved_bytes() { return reserved; }

}  // namespace lb
