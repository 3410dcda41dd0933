// Expands matrices to BF16, row by row.
#include "weights/host_copies.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "quant/half.h"

namespace lb {
namespace {

constexpr int kTaskRows = 64;

void expand_rows(const Expansion& m, int first, int end) {
  std::vector<float> values(m.n_in);
  for (int row = first; row < end; ++row) {
    m.read(row, values.data());
    std::ranges::transform(values, m.to + static_cast<size_t>(row) * m.n_in, quant::f32_to_bf16);
  }
}

}  // namespace

void HostCopies::expand(int n_threads, const std::function<void(size_t, size_t)>& progress) {
  if (pending.empty()) return;
  ThreadPool pool(n_threads);
  size_t done = 0, total = 0;
  for (const Expansion& m : pending) total += static_cast<size_t>(m.n_out) * m.n_in;
  for (const Expansion& m : pending) {
    pool.parallel_for((m.n_out + kTaskRows - 1) / kTaskRows, [&](int task, int) {
      expand_rows(m, task * kTaskRows, std::min(m.n_out, (task + 1) * kTaskRows));
    });
    done += static_cast<size_t>(m.n_out) * m.n_in;
    if (progress) progress(done, total);
  }
  pending.clear();
}

}  // namespace lb
