// Fills the matrices of host copies, row by row.
#include "weights/host_copies.h"

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"

namespace lb {
namespace {

constexpr int kTaskRows = 64;

}  // namespace

std::byte* HostCopies::allocate(size_t bytes) {
  matrices.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  matrix_bytes += bytes;
  return matrices.back().get();
}

const std::byte* HostCopies::write(RowSource source, int n_out, int n_in) {
  const size_t bytes = row_bytes(source.type, static_cast<size_t>(n_in));
  pending.push_back({std::move(source), n_out, bytes, allocate(n_out * bytes)});
  return pending.back().to;
}

const std::byte* HostCopies::join(Joined joined) {
  joined.to = allocate(joined.bytes * joined.from.size());
  pending_joins.push_back(std::move(joined));
  return pending_joins.back().to;
}

void HostCopies::fill(int n_threads, const std::function<void(size_t, size_t)>& progress) {
  if (pending.empty() && pending_joins.empty()) return;
  ThreadPool pool(n_threads);
  size_t done = 0, total = 0;
  for (const Written& m : pending) total += m.n_out * m.row_bytes;
  for (const Joined& m : pending_joins) total += m.bytes * m.from.size();
  const auto advance = [&](size_t n) {
    done += n;
    if (progress) progress(done, total);
  };
  for (const Written& m : pending) {
    pool.parallel_for((m.n_out + kTaskRows - 1) / kTaskRows, [&](int task, int) {
      for (int row = task * kTaskRows; row < std::min(m.n_out, (task + 1) * kTaskRows); ++row)
        m.source.write(row, m.to + row * m.row_bytes);
    });
    advance(m.n_out * m.row_bytes);
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
