// Vector bodies of Gated DeltaNet; equations in ops/delta_net.h.
//   One row: bandwidth bound; S (4 dk dv bytes per value head) is read and written once. A block of rows of S is
//   folded, and read for the new row while it is in L1. More rows: compute bound; about 64 (3 dk dv + dk 64 + dv 64)
//   multiply-adds per 64 rows and value head, all of them products of body_matmul.h.
#pragma once

#include "cpu/body_matmul.h"
#include "cpu/body_norm.h"
#include "cpu/kernels.h"
#include "cpu/tree.h"

namespace lb::cpu {
namespace {

constexpr int kMaxTaps = 8;

void causal_conv(const CausalConv& op, int begin, int end) {
  const int n_past = op.n_taps - 1, n_folded = n_accepted(op.accepted);
  for (int t = 0; t < n_past; ++t) {
    // The new history is the tail of [history, accepted rows]. A source is never overwritten before it is read, because
    // it has the index of its destination or a later one.
    const int from = t + n_folded;
    const float* source = from < n_past ? op.history + long(from) * op.channels
                                        : op.pending + long(op.accepted.path[from - n_past]) * op.channels;
    float* to = op.history + long(t) * op.channels;
    if (source != to) __builtin_memcpy(to + begin, source + begin, sizeof(float) * (end - begin));
  }
  if (op.rows == 0) return;                // a fold without rows has no weights
  const float* input[kMaxTree][kMaxTaps];  // the input row of each tap of each row
  for (int r = 0; r < op.rows; ++r)
    for (int j = n_past, row = r, past = n_past; j >= 0; --j) {
      input[r][j] = row >= 0 ? op.x + long(row) * op.channels : op.history + long(--past) * op.channels;
      if (row >= 0) row = parent_of(op.tree, row);
    }
  for (int c = begin; c < end; c += kLanes) {
    const int n = end - c;
    vf tap[kMaxTaps] = {};
    for (int j = 0; j < op.n_taps; ++j)
      for (int i = 0; i < kLanes && i < n; ++i) tap[j][i] = op.w[long(c + i) * op.n_taps + j];
    for (int r = 0; r < op.rows; ++r) {
      const vf own = load(input[r][n_past] + c, n);
      vf sum = tap[n_past] * own;
      for (int j = n_past - 1; j >= 0; --j) sum = fma(tap[j], load(input[r][j] + c, n), sum);
      store(op.y + long(r) * op.channels + c, silu(sum), n);
      store(op.pending + long(r) * op.channels + c, own, n);
    }
  }
}

inline void normalise(float* x, int n, float eps, float factor) {
  const float scale = factor / __builtin_sqrtf(sum_of_squares(x, n) + eps);
  for (int i = 0; i < n; i += kLanes) store(x + i, load(x + i, n - i) * scale, n - i);
}

void delta_prepare(const DeltaPrepare& op, int begin, int end) {
  const float q_factor = 1.0f / __builtin_sqrtf(static_cast<float>(op.dk));
  for (int r = begin; r < end; ++r) {
    for (int h = 0; h < op.n_k_heads; ++h) {
      normalise(op.q + r * op.row_stride + long(h) * op.dk, op.dk, op.eps, q_factor);
      normalise(op.k + r * op.row_stride + long(h) * op.dk, op.dk, op.eps, 1.0f);
    }
    float* g = op.g + long(r) * op.n_v_heads;
    float* beta = op.beta + long(r) * op.n_v_heads;
    for (int h = 0; h < op.n_v_heads; ++h) {
      const float x = g[h] + op.dt_bias[h];
      g[h] = op.a_neg[h] * (x > 20 ? x : __builtin_log1pf(__builtin_expf(x)));
    }
    for (int h = 0; h < op.n_v_heads; h += kLanes)
      store(beta + h, sigmoid(load(beta + h, op.n_v_heads - h)), op.n_v_heads - h);
  }
}

// One value head and a range of its columns.
struct DeltaHead {
  const GatedDelta& op;
  int v_head, k_head, begin, n;  // columns [begin, begin + n)
  float* S;                      // [dk, dv], at the first column
  const float* q(int i) const { return op.q + i * op.row_stride + long(k_head) * op.dk; }
  const float* k(int i) const { return op.k + i * op.row_stride + long(k_head) * op.dk; }
  const float* v(int i) const { return op.v + i * op.row_stride + long(v_head) * op.dv + begin; }
  float* delta(int i) const { return op.delta + (long(i) * op.n_v_heads + v_head) * op.dv + begin; }
  float* o(int i) const { return op.o + (long(i) * op.n_v_heads + v_head) * op.dv + begin; }
  float g(int i) const { return op.g[long(i) * op.n_v_heads + v_head]; }
  float beta(int i) const { return op.beta[long(i) * op.n_v_heads + v_head]; }
};

// The accepted path, packed: S <- decay S + keys^T deltas.
struct Fold {
  const float* keys;    // [n, dk]
  const float* deltas;  // [n, columns], each e^{cs_l - cs_j} delta_j
  float decay;
  int n;
};

inline Fold pack_fold(const DeltaHead& head, float* keys, float* deltas) {
  const GatedDelta& op = head.op;
  const Accepted& accepted = op.accepted;
  const int n = n_accepted(accepted);
  if (n == 0) return {keys, deltas, 1, 0};
  const int in = filled_buffer(op);
  auto cs = [&](int p) { return op.cs_pending[in][long(accepted.path[p]) * op.n_v_heads + head.v_head]; };
  const float last = cs(n - 1);
  for (int p = 0; p < n; ++p) {
    const int row = accepted.path[p];
    __builtin_memcpy(keys + long(p) * op.dk, op.k_pending[in] + (long(row) * op.n_k_heads + head.k_head) * op.dk,
                     sizeof(float) * op.dk);
    const vf decay = exp(splat(last - cs(p)));
    for (int c = 0; c < head.n; c += kLanes)
      store(deltas + long(p) * head.n + c, decay * load(head.delta(row) + c, head.n - c), head.n - c);
  }
  return {keys, deltas, exp(splat(last))[0], n};
}

// Folds into rows [d, d + n_rows) and columns [c, c + n) of S. Every fold goes through this function, so a fold alone
// and a fold before a step give the same bits.
inline void fold_block(const DeltaHead& head, const Fold& fold, int d, int n_rows, int c, int n) {
  if (fold.n == 0) return;
  multiply(Product<float>{fold.keys + d, 1, head.op.dk, fold.deltas + c, head.n, head.S + long(d) * head.op.dv + c,
                          head.op.dv, n_rows, n, fold.n, &fold.decay});
}

// One new row: sums S^T k and S^T q in one pass over S.
template <int kVectors>
inline void step_columns(const DeltaHead& head, const Fold& fold, float k_dot_q, float decay, int c, int n) {
  const GatedDelta& op = head.op;
  vf k_state[kVectors] = {}, q_state[kVectors] = {};
  for (int d = 0; d < op.dk; d += kBlockRows) {
    const int rows = op.dk - d < kBlockRows ? op.dk - d : kBlockRows;
    fold_block(head, fold, d, rows, c, n);
    for (int r = d; r < d + rows; ++r) {
      const vf k = splat(head.k(0)[r]), q = splat(head.q(0)[r]);
      for (int v = 0; v < kVectors; ++v) {
        const vf s = load(head.S + long(r) * op.dv + c + v * kLanes, n - v * kLanes);
        k_state[v] = fma(k, s, k_state[v]);
        q_state[v] = fma(q, s, q_state[v]);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const int at = c + v * kLanes, left = n - v * kLanes;
    const vf delta = head.beta(0) * (load(head.v(0) + at, left) - decay * k_state[v]);
    store(head.delta(0) + at, delta, left);
    store(head.o(0) + at, fma(splat(k_dot_q), delta, decay * q_state[v]), left);
  }
}

inline void step(const DeltaHead& head, const Fold& fold) {
  vf sum = {};
  for (int d = 0; d < head.op.dk; d += kLanes)
    sum = fma(load(head.k(0) + d, head.op.dk - d), load(head.q(0) + d, head.op.dk - d), sum);
  const float k_dot_q = hsum(sum), decay = exp(splat(head.g(0)))[0];
  constexpr int kWide = kBlockVectors * kLanes;
  int c = 0;
  for (; c + kWide <= head.n; c += kWide) step_columns<kBlockVectors>(head, fold, k_dot_q, decay, c, kWide);
  for (; c < head.n; c += kLanes)
    step_columns<1>(head, fold, k_dot_q, decay, c, head.n - c < kLanes ? head.n - c : kLanes);
}

// The interactions of the rows of a chunk.
struct Chunk {
  float* cs;       // [64]
  float* kk;       // [64, 64] -beta_i E_ij k_i.k_j for strict ancestors j, else 0
  float* qk;       // [64, 64] E_ij q_i.k_j for ancestors j or i itself, else 0
  float* keys;     // [rows, dk] -beta_i e^{cs_i} k_i
  float* queries;  // [rows, dk] e^{cs_i} q_i
};

inline void pair_rows(const DeltaHead& head, const Chunk& chunk, float* keys_across) {
  const GatedDelta& op = head.op;
  const int rows = op.rows, dk = op.dk;
  for (int i = 0; i < rows; ++i) {
    const int parent = parent_of(op.tree, i);
    chunk.cs[i] = head.g(i) + (parent < 0 ? 0.0f : chunk.cs[parent]);
  }
  for (int i = rows; i < kMaxTree; ++i) chunk.cs[i] = 0;
  // [dk, 64], zero beyond the last row
  for (int i = 0; i < kMaxTree; ++i) {
    const float* k = i < rows ? head.k(i) : nullptr;
    for (int d = 0; d < dk; ++d) keys_across[long(d) * kMaxTree + i] = k ? k[d] : 0.0f;
  }
  for (int i = 0; i < rows; i += kBlockRows) {
    const int n = rows - i < kBlockRows ? rows - i : kBlockRows;
    const int cols = (i + n + kLanes - 1) / kLanes * kLanes;  // pairs (row, earlier row) only
    const long at = long(i) * kMaxTree;
    multiply(Product<float>{head.k(i), op.row_stride, 1, keys_across, kMaxTree, chunk.kk + at, kMaxTree, n, cols, dk,
                            nullptr});
    multiply(Product<float>{head.q(i), op.row_stride, 1, keys_across, kMaxTree, chunk.qk + at, kMaxTree, n, cols, dk,
                            nullptr});
  }
  for (int i = 0; i < rows; ++i) {
    const uint64_t seen = ancestors_of(op.tree, i);
    const float beta = head.beta(i);
    const int block_end =
        i / kBlockRows * kBlockRows + kBlockRows;  // products read whole blocks: clear above the diagonal
    for (int j = 0; j < (block_end < rows ? block_end : rows); j += kLanes) {
      const vi bits = splat(static_cast<int32_t>(seen >> j & 0xffff));
      const vi is_seen = (bits >> lane_index() & 1) == 1;
      // Masked before exp: the exponent of a pair that shares no path is unbounded.
      const vf decay = exp(is_seen ? chunk.cs[i] - load(chunk.cs + j) : splat(-kInfinity));
      float* kk = chunk.kk + i * kMaxTree + j;
      float* qk = chunk.qk + i * kMaxTree + j;
      store(qk, decay * load(qk));
      store(kk, -beta * decay * load(kk));
    }
    chunk.kk[i * kMaxTree + i] = 0;
    const vf decay = exp(splat(chunk.cs[i]));
    for (int d = 0; d < dk; d += kLanes) {
      store(chunk.keys + long(i) * dk + d, -beta * decay * load(head.k(i) + d, dk - d), dk - d);
      store(chunk.queries + long(i) * dk + d, decay * load(head.q(i) + d, dk - d), dk - d);
    }
  }
}

// Columns [c, c + n): deltas by forward substitution, then the outputs.
inline void solve_columns(const DeltaHead& head, const Chunk& chunk, float* deltas, int c, int n) {
  const GatedDelta& op = head.op;
  const float one = 1;
  const float* S = head.S + c;
  const long o_row = long(op.n_v_heads) * op.dv;
  for (int i = 0; i < op.rows; ++i)
    for (int at = 0; at < n; at += kLanes)
      store(deltas + long(i) * n + at, head.beta(i) * load(head.v(i) + c + at, n - at), n - at);
  multiply(Product<float>{chunk.keys, op.dk, 1, S, op.dv, deltas, n, op.rows, n, op.dk, &one});
  multiply(Product<float>{chunk.queries, op.dk, 1, S, op.dv, head.o(0) + c, o_row, op.rows, n, op.dk, nullptr});
  for (int i = 0; i < op.rows; i += kBlockRows) {
    const int rows = op.rows - i < kBlockRows ? op.rows - i : kBlockRows;
    const float* kk = chunk.kk + i * kMaxTree;
    multiply(Product<float>{kk, kMaxTree, 1, deltas, n, deltas + long(i) * n, n, rows, n, i, &one});
    for (int r = 1; r < rows; ++r)
      multiply(Product<float>{kk + r * kMaxTree + i, kMaxTree, 1, deltas + long(i) * n, n, deltas + long(i + r) * n, n,
                              1, n, r, &one});
    multiply(
        Product<float>{chunk.qk + i * kMaxTree, kMaxTree, 1, deltas, n, head.o(i) + c, o_row, rows, n, i + rows, &one});
  }
  for (int i = 0; i < op.rows; ++i) __builtin_memcpy(head.delta(i) + c, deltas + long(i) * n, sizeof(float) * n);
}

void gated_delta(const GatedDelta& op, int v_head, int begin, int end, std::byte* scratch) {
  const int k_head = key_head(op, v_head);
  const DeltaHead head{op, v_head, k_head, begin, end - begin, op.S + long(v_head) * op.dk * op.dv + begin};
  const long n_keys = long(kMaxTree) * op.dk;
  float* keys = reinterpret_cast<float*>(scratch);  // delta_thread_scratch() counts this layout
  float* queries = keys + n_keys;
  float* keys_across = queries + n_keys;
  float* kk = keys_across + n_keys;
  float* qk = kk + kMaxTree * kMaxTree;
  float* cs = qk + kMaxTree * kMaxTree;
  float* deltas = cs + kMaxTree;  // [64, columns]

  const Fold fold = pack_fold(head, keys, deltas);
  if (op.rows == 1) return step(head, fold);
  fold_block(head, fold, 0, op.dk, 0, head.n);
  if (op.rows == 0) return;
  const Chunk chunk{cs, kk, qk, keys, queries};
  pair_rows(head, chunk, keys_across);
  constexpr int kWide = kBlockVectors * kLanes;  // columns of S and of the deltas that stay in L1
  for (int c = 0; c < head.n; c += kWide)
    solve_columns(head, chunk, deltas, c, head.n - c < kWide ? head.n - c : kWide);
}

}  // namespace
}  // namespace lb::cpu
