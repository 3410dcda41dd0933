// Expands matrices to BF16, row by row.
#include "weights/host_copies.h"

#include <algorithm>
#include <cstring>

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

const std::byte* HostCopies::join(Joined joined) {
  const size_t bytes = joined.bytes * joined.from.size();
  matrices.push_back(std::make_unique_for_overwrite<uint16_t[]>((bytes + 1) / 2));
  matrix_bytes += bytes;
  joined.to = reinterpret_cast<std::byte*>(matrices.back().get());
  pending_joins.push_back(std::move(joined));
  return pending_joins.back().to;
}

void HostCopies::expand(int n_threads, const std::function<void(size_t, size_t)>& progress) {
  if (pending.empty() && pending_joins.empty()) return;
  ThreadPool pool(n_threads);
  size_t done = 0, total = 0;
  for (const Expansion& m : pending) total += static_cast<size_t>(m.n_out) * m.n_in;
  for (const Joined& m : pending_joins) total += m.bytes * m.from.size();
  const auto advance = [&](size_t n) {
    done += n;
    if (progress) progress(done, total);
  };
  for (const Expansion& m : pending) {
    pool.parallel_for((m.n_out + kTaskRows - 1) / kTaskRows, [&](int task, int) {
      expand_rows(m, task * kTaskRows, std::min(m.n_out, (task + 1) * kTaskRows));
    });
    advance(static_cast<size_t>(m.n_out) * m.n_in);
  }
  for (const Joined& m : pending_joins) {
    pool.parallel_for(static_cast<int>(m.from.size()),
                      [&](int i, int) { std::memcpy(m.to + i * m.bytes, m.from[i], m.bytes); });
    advance(m.bytes * m.from.size());
  }
  pending.clear();
  pending_joins.clear();
}

}  // namespace lb
