// Body of gated_delta_pairs_kernel: a chunk's matrices that do not depend on S: M diag(beta), P and cs.
#pragma once

#include "gpu/delta_net/chunk_tiles.h"

namespace lb::gpu {

// A thread's dot products k_i.k_j and q_i.k_j, for rows i = row + 16 a and j = column + 16 b with b <= a.
template <int kPadded>
struct PairSums {
  static constexpr int kGroups = Padded<kPadded>::kGroups;
  float kk[kGroups][kGroups] = {}, qk[kGroups][kGroups] = {};

  LB_DEVICE void add(const float* panel) {
    const float* rows = panel + thread_id() / 16 * kPanelStride;
    const float* columns = panel + thread_id() % 16 * kPanelStride;
    LB_UNROLL_BY(2)
    for (int d = 0; d < kPanelDepth; d += 4) {
      f32x4 b[kGroups];
      LB_UNROLL
      for (int j = 0; j < kGroups; ++j) b[j] = load<f32x4>(columns + 16 * j * kPanelStride + d);
      LB_UNROLL
      for (int i = 0; i < kGroups; ++i) {
        const f32x4 k = load<f32x4>(rows + 16 * i * kPanelStride + d);
        const f32x4 q = load<f32x4>(rows + (kPadded + 16 * i) * kPanelStride + d);
        LB_UNROLL
        for (int j = 0; j <= i; ++j) {
          LB_UNROLL
          for (int e = 0; e < 4; ++e) {
            kk[i][j] = fma(k[e], b[j][e], kk[i][j]);
            qk[i][j] = fma(q[e], b[j][e], qk[i][j]);
          }
        }
      }
    }
  }
};

// inverse <- (I + a)^-1 for a strictly lower triangular a, [kPadded, kPadded], in blocks of 16. First the diagonal
// blocks, one column per thread; then block row b: X_bj = -X_bb sum_l a_bl X_lj. sums: scratch [16, 48]. 256 threads.
template <int kPadded>
LB_DEVICE void invert(const float* a, float* inverse, float* sums) {
  constexpr int kStride = Padded<kPadded>::kStride;
  if (thread_id() < kPadded) {
    const int block = thread_id() / 16 * 16, column = thread_id() % 16;
    float x[16];
    LB_UNROLL
    for (int i = 0; i < 16; ++i) {
      x[i] = i == column ? 1.0f : 0.0f;
      LB_UNROLL
      for (int l = 0; l < i; ++l) x[i] = fma(-load<float>(a + (block + i) * kStride + block + l), x[l], x[i]);
      store(inverse + (block + i) * kStride + block + column, x[i]);
    }
  }
  block_barrier();
  const int row = thread_id() / 16, column = thread_id() % 16;
  for (int b = 1; b < Padded<kPadded>::kGroups; ++b) {
    const float* a_row = a + (16 * b + row) * kStride;
    for (int j = 0; j < b; ++j) {
      float sum = 0;
      for (int l = 16 * j; l < 16 * b; ++l)
        sum = fma(load<float>(a_row + l), load<float>(inverse + l * kStride + 16 * j + column), sum);
      store(sums + row * 48 + 16 * j + column, sum);
    }
    block_barrier();
    float* to = inverse + (16 * b + row) * kStride;
    for (int j = 0; j < b; ++j) {
      float sum = 0;
      LB_UNROLL
      for (int l = 0; l < 16; ++l)
        sum = fma(load<float>(to + 16 * b + l), load<float>(sums + l * 48 + 16 * j + column), sum);
      store(to + 16 * j + column, -sum);
    }
    block_barrier();
  }
}

// Gates of each row of the chunk, in shared memory.
struct Gates {
  float g[kMaxTree], beta[kMaxTree], cs[kMaxTree];
};

// Every thread of the block must call it. The caller adds a barrier afterwards.
LB_DEVICE void read_gates(const GatedDelta& p, int chunk, int v_head, Gates* gates) {
  const int i = thread_id(), rows = rows_of_chunk(p, chunk);
  if (i < kMaxTree) {
    const long at = (long(chunk) * kMaxTree + i) * p.n_v_heads + v_head;
    store(&gates->g[i], i < rows ? p.g[at] : 0.0f);
    store(&gates->beta[i], i < rows ? p.beta[at] : 0.0f);
  }
  block_barrier();
  if (i >= kMaxTree) return;
  const uint64_t seen = i < rows ? seen_by(p.tree, i) : 0;
  float sum = 0;
  for (int j = 0; j < rows; ++j) {  // parents come first: each row adds its g to its parent's cs
    const float g = load<float>(&gates->g[j]);
    if (seen >> j & 1) sum += g;
  }
  store(&gates->cs[i], sum);
}

// Writes the last chunk's keys and cs to the pending buffers, for the next append.
LB_DEVICE void leave_pending(const GatedDelta& p, int chunk, int v_head, int k_head, const Gates* gates) {
  const int out = buffer_after(p, chunk + 1), rows = rows_of_chunk(p, chunk), i = thread_id();
  if (i < rows) cs_in(p, out)[long(i) * p.n_v_heads + v_head] = load<float>(&gates->cs[i]);
  if (!is_first_of_key_head(p, v_head)) return;
  const int parts = p.dk / 4;
  for (int at = i; at < rows * parts; at += n_threads()) {
    const int row = at / parts, d = at % parts * 4;
    store(keys_in(p, out) + (long(row) * p.n_k_heads + k_head) * p.dk + d,
          load<f32x4>(p.k + (long(chunk) * kMaxTree + row) * p.row_stride + long(k_head) * p.dk + d));
  }
}

template <int kPadded>
LB_DEVICE void make_pairs(const DeltaWork& p, float* buffers, float* sums, Gates* gates) {
  constexpr int kGroups = Padded<kPadded>::kGroups, kStride = Padded<kPadded>::kStride;
  const GatedDelta& op = p.op;
  const int v_head = block_id(), chunk = block_id_y(), k_head = key_head(op, v_head), rows = rows_of_chunk(op, chunk);
  const int n_panels = (op.dk + kPanelDepth - 1) / kPanelDepth;
  auto panels = ring_of<kPadded>(
      buffers, n_panels, [&](int i, float* to) { stage_panel<kPadded>(op, chunk, k_head, i * kPanelDepth, to); });
  read_gates(op, chunk, v_head, gates);
  PairSums<kPadded> products;
  for (int i = 0; i < n_panels; ++i) {
    products.add(panels.take());
    block_barrier();
  }

  float* a = buffers;  // reuses the space of the panels
  float* inverse = buffers + Padded<kPadded>::kTileFloats;
  float* scaled_inverse = chunk_work(p, chunk, v_head);
  float* pairs = scaled_inverse + kMaxTree * kMaxTree;
  LB_UNROLL
  for (int n = 0; n < kGroups; ++n) {
    const int row = thread_id() / 16 + 16 * n;
    const uint64_t seen = row < rows ? seen_by(op.tree, row) : 0;
    const float cs = load<float>(&gates->cs[row]), beta = load<float>(&gates->beta[row]);
    LB_UNROLL
    for (int m = 0; m < kGroups; ++m) {
      const int column = thread_id() % 16 + 16 * m;
      float kk = 0, qk = 0;
      if (m <= n && (seen >> column & 1)) {
        // Only for pairs on one path: the exponent of other pairs is unbounded.
        const float decay = exp_nonpositive(cs - load<float>(&gates->cs[column]));
        kk = row == column ? 0.0f : beta * decay * products.kk[n][m];
        qk = decay * products.qk[n][m];
      }
      pairs[row * kMaxTree + column] = qk;
      store(a + row * kStride + column, kk);
    }
  }
  block_barrier();
  invert<kPadded>(a, inverse, sums);
  for (int at = thread_id(); at < kPadded * kPadded; at += n_threads()) {
    const int row = at / kPadded, column = at % kPadded;
    scaled_inverse[row * kMaxTree + column] =
        column / 16 > row / 16 ? 0.0f
                               : load<float>(inverse + row * kStride + column) * load<float>(&gates->beta[column]);
  }
  if (thread_id() < kPadded) pairs[kMaxTree * kMaxTree + thread_id()] = load<float>(&gates->cs[thread_id()]);
  if (chunk == n_chunks_of(op) - 1) leave_pending(op, chunk, v_head, k_head, gates);
}

}  // namespace lb::gpu
