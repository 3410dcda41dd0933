// Chooses the instruction set and allocates the scratch of a CPU stream.
#include "cpu/cpu_stream.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "cpu/kernels.h"

namespace lb {

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

bool is_available(Isa isa) { return cpu::kernels_for(isa) != nullptr; }

Isa best_isa() {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2})
    if (is_available(isa)) return isa;
  return Isa::kPortable;
}

void CpuStream::Free::operator()(std::byte* p) const { std::free(p); }

CpuStream::Block CpuStream::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  LB_CHECK(p != nullptr, kMemory, "cannot allocate ", bytes, " bytes of CPU scratch");
  return Block(static_cast<std::byte*>(p));
}

CpuStream::CpuStream(const CpuStreamOptions& options)
    : Stream(kOpBodies<CpuStream>, "runs on devices only"),
      pool_(options.n_threads),
      isa_(options.isa),
      kernels_(cpu::kernels_for(options.isa)),
      shared_bytes_(options.shared_scratch_bytes),
      thread_bytes_(options.thread_scratch_bytes),
      shared_(allocate(options.shared_scratch_bytes)) {
  LB_CHECK(kernels_ != nullptr, kUnsupported, "this processor cannot run the ", name(isa_), " CPU kernels");
  for (int i = 0; i < options.n_threads; ++i) per_thread_.push_back(allocate(thread_bytes_));
}

std::byte* CpuStream::shared_scratch(size_t bytes) {
  LB_ASSERT(bytes <= shared_bytes_);
  return shared_.get();
}

std::byte* CpuStream::thread_scratch(int thread, size_t bytes) {
  LB_ASSERT(bytes <= thread_bytes_);
  return per_thread_[thread].get();
}

size_t CpuStream::planned_bytes(const CpuStreamOptions& options) {
  return options.shared_scratch_bytes + options.n_threads * options.thread_scratch_bytes;
}

std::unique_ptr<Memory> CpuStream::reserve(size_t bytes) { return std::make_unique<Arena>(bytes); }
void CpuStream::upload(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void CpuStream::download(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void CpuStream::copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void CpuStream::zero(void* to, size_t bytes) { std::memset(to, 0, bytes); }

}  // namespace lb
