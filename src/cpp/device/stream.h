// Where ops run. Today the CPU; the GPU backends add their own construction, callers of run(op, stream) do not change.
// A Stream owns its workers and its scratch; both are sized when it is made, so running an op allocates nothing.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

namespace lb {

namespace cpu {
struct Kernels;
}

// The instruction sets the CPU bodies are built for. kScalar is the readable reference.
enum class Isa { kScalar, kPortable, kAvx2, kAvx512 };
std::string_view name(Isa isa);
Isa best_isa();  // the fastest this machine runs
bool is_available(Isa isa);

struct StreamOptions {
  int n_threads = 1;
  Isa isa = Isa::kPortable;
  size_t shared_scratch_bytes = 0;  // for run(): quantised activations, partial results of split attention
  size_t thread_scratch_bytes = 0;  // for one body: an unpacked weight panel, a page of keys
};

class Stream {
 public:
  explicit Stream(const StreamOptions& options);

  ThreadPool& pool() { return pool_; }
  const cpu::Kernels& kernels() const { return *kernels_; }
  Isa isa() const { return isa_; }
  void upload(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

  // 64-byte aligned; the bytes hold until the next op. Asking for more than planned is our bug.
  std::byte* shared_scratch(size_t bytes);
  std::byte* thread_scratch(int thread, size_t bytes);
  static size_t planned_bytes(const StreamOptions& options);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  using Block = std::unique_ptr<std::byte[], Free>;
  static Block allocate(size_t bytes);

  ThreadPool pool_;
  Isa isa_;
  const cpu::Kernels* kernels_;
  size_t shared_bytes_, thread_bytes_;
  Block shared_;
  std::vector<Block> per_thread_;
};

}  // namespace lb
