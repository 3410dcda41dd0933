// Anonymous mapping behind an arena.
#include "device/arena.h"

#include <sys/mman.h>

namespace lb {

Arena::Arena(size_t bytes) : data_(nullptr), size_(bytes) {
  if (bytes == 0) return;
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LB_CHECK(p != MAP_FAILED, kMemory, "the system refused to reserve ", bytes, " bytes; try a smaller context");
  data_ = static_cast<std::byte*>(p);
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void Arena::release_pages() {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_DONTNEED);
}

}  // namespace lb
