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

size_t Carver::end_of_slice(size_t start, size_t rows, size_t count, size_t bytes) {
  constexpr size_t kAlignment = 256;
  size_t size = 0;
  const bool overflows = __builtin_mul_overflow(rows, count, &size) || __builtin_mul_overflow(size, bytes, &size) ||
                         __builtin_add_overflow(size, kAlignment - 1, &size) ||
                         __builtin_add_overflow(start, size / kAlignment * kAlignment, &size);
  LB_CHECK(!overflows, kMemory, "a plan of ", rows, " x ", count, " values of ", bytes,
           " bytes needs more memory than any machine has; the model's sizes or kv_tokens are absurd");
  return size;
}

}  // namespace lb
