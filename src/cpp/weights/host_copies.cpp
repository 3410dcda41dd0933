// Expands matrices to BF16 and repacks blocks, row by row.
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

std::byte* HostCopies::allocate(size_t bytes) {
  matrices.push_back(std::make_unique_for_overwrite<uint16_t[]>((bytes + 1) / 2));
  matrix_bytes += bytes;
  return reinterpret_cast<std::byte*>(matrices.back().get());
}

const std::byte* HostCopies::join(Joined joined) {
  joined.to = allocate(joined.bytes * joined.from.size());
  pending_joins.push_back(std::move(joined));
  return pending_joins.back().to;
}

const std::byte* HostCopies::repack(Repacked matrix) {
  matrix.to = allocate(matrix.row_bytes * matrix.rows);
  pending_repacks.push_back(std::move(matrix));
  return pending_repacks.back().to;
}

void HostCopies::expand(int n_threads, const std::function<void(size_t, size_t)>& progress) {
  if (pending.empty() && pending_joins.empty() && pending_repacks.empty()) return;
  ThreadPool pool(n_threads);
  size_t done = 0, total = 0;
  for (const Expansion& m : pending) total += static_cast<size_t>(m.n_out) * m.n_in;
  for (const Joined& m : pending_joins) total += m.bytes * m.from.size();
  for (const Repacked& m : pending_repacks) total += m.row_bytes * m.rows;
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
  for (const Repacked& m : pending_repacks) {
    pool.parallel_for((m.rows + kTaskRows - 1) / kTaskRows, [&](int task, int) {
      for (int row = task * kTaskRows; row < std::min(m.rows, (task + 1) * kTaskRows); ++row)
        m.write(row, m.to + row * m.row_bytes);
    });
    advance(m.row_bytes * m.rows);
  }
  pending.clear();
  pending_joins.clear();
  pending_repacks.clear();
}

}  // namespace lb
