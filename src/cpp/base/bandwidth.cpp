// Sums a large buffer: the upper bound of a GEMV, which reads every weight once.
#include "base/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"

namespace lb {

double read_bandwidth(int threads, size_t bytes) {
  LB_CHECK(bytes >= (size_t{1} << 20), kInvalid, "a bandwidth test needs at least 1 MiB, got ", bytes);
  constexpr size_t kPiece = 1 << 17;  // 1 MiB of 64-bit words per task
  std::vector<uint64_t> data(bytes / sizeof(uint64_t) / kPiece * kPiece, 1);
  const int pieces = static_cast<int>(data.size() / kPiece);
  ThreadPool pool(threads);
  std::vector<uint64_t> sums(pieces);
  double best = 0;
  for (int pass = 0; pass < 6; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(pieces, [&](int piece, int) {
      const uint64_t* p = data.data() + piece * kPiece;
      uint64_t a = 0, b = 0, c = 0, d = 0;  // four independent chains, so the latency of an add is not the limit
      for (size_t i = 0; i < kPiece; i += 4) {
        a += p[i];
        b += p[i + 1];
        c += p[i + 2];
        d += p[i + 3];
      }
      sums[piece] = a + b + c + d;
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    uint64_t total = 0;
    for (uint64_t sum : sums) total += sum;
    LB_ASSERT(total == data.size());
    best = std::max(best, static_cast<double>(data.size() * sizeof(uint64_t)) / seconds / 1e9);
  }
  return best;
}

}  // namespace lb
