// Vector bodies of Gated DeltaNet; equations in ops/delta_net.h.
//   Rows are computed one by one, each from the state after its parent, so a row has the same bits in every append. A
//   pass over a block of columns of S folds, in registers, the rows between the two states, and computes the new row's
//   products with the state.
//   One row: bandwidth bound; S (4 dk dv bytes per value head) is read and written once. More rows: compute bound, 4
//   operations per value of S and row; the block of columns stays in L1.
#pragma once

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
  const float scale = inverse_root(x, n, 1.0f, eps, factor);
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

// A row to fold: S <- decay S + key delta^T.
struct Fold {
  const float* key;    // [dk]
  const float* delta;  // [columns]
  float decay;
};

// Lists the accepted rows of the previous append. Copies their deltas, because new rows overwrite them.
inline int accepted_folds(const DeltaHead& head, float* deltas, Fold* folds) {
  const GatedDelta& op = head.op;
  const int n = n_accepted(op.accepted), in = filled_buffer(op);
  for (int p = 0; p < n; ++p, deltas += head.n) {
    const long row = op.accepted.path[p];
    __builtin_memcpy(deltas, head.delta(int(row)), sizeof(float) * head.n);
    folds[p] = {op.k_pending[in] + (row * op.n_k_heads + head.k_head) * op.dk, deltas,
                exp(splat(op.cs_pending[in][row * op.n_v_heads + head.v_head]))[0]};
  }
  return n;
}

// The rows of this append.
struct Rows {
  float decay[kMaxTree];    // e^g
  float k_dot_q[kMaxTree];  // dot product of the row's key and query
};

inline void read_rows(const DeltaHead& head, Rows& rows) {
  const int dk = head.op.dk;
  for (int i = 0; i < head.op.rows; ++i) {
    vf sum = {};
    for (int d = 0; d < dk; d += kLanes) sum = fma(load(head.k(i) + d, dk - d), load(head.q(i) + d, dk - d), sum);
    rows.k_dot_q[i] = hsum(sum);
    rows.decay[i] = exp(splat(head.g(i)))[0];
  }
}

// A block of columns of a state: dk rows, `stride` values apart.
struct Columns {
  float* at;
  long stride;
};

// Columns [first, first + n) of a value head: kVectors whole vectors, or one partial vector.
template <int kVectors, bool kWhole>
struct Block {
  const DeltaHead& head;
  int first, n;
  vf load(const float* x, int v) const { return kWhole ? cpu::load(x + v * kLanes) : cpu::load(x, n); }
  void store(float* x, int v, vf value) const { kWhole ? cpu::store(x + v * kLanes, value) : cpu::store(x, value, n); }
};

// A row's products with its parent's state: S^T k and S^T q.
template <int kVectors>
struct RowSums {
  vf k[kVectors] = {}, q[kVectors] = {};
};

// Rows of S folded per iteration, so that a delta is read once for all of them.
constexpr int kFoldRows = 4;

// Folds rows [d, d + kRows) of `from` into `to` and adds their products with the row's k and q, if there is a row.
template <int kRows, int kVectors, bool kWhole>
inline void pass_rows(const Block<kVectors, kWhole>& block, const Columns& from, const Columns& to, const Fold* folds,
                      int n_folds, int d, int row, RowSums<kVectors>& sums) {
  vf s[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) s[r][v] = block.load(from.at + (d + r) * from.stride, v);
  for (int f = 0; f < n_folds; ++f) {
    const vf decay = splat(folds[f].decay);
    vf delta[kVectors];
    for (int v = 0; v < kVectors; ++v) delta[v] = block.load(folds[f].delta + block.first, v);
    for (int r = 0; r < kRows; ++r) {
      const vf key = splat(folds[f].key[d + r]);
      for (int v = 0; v < kVectors; ++v) s[r][v] = fma(key, delta[v], decay * s[r][v]);
    }
  }
  for (int r = 0; n_folds > 0 && r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) block.store(to.at + (d + r) * to.stride, v, s[r][v]);
  if (row < 0) return;
  for (int r = 0; r < kRows; ++r) {
    const vf k = splat(block.head.k(row)[d + r]), q = splat(block.head.q(row)[d + r]);
    for (int v = 0; v < kVectors; ++v) {
      sums.k[v] = fma(k, s[r][v], sums.k[v]);
      sums.q[v] = fma(q, s[r][v], sums.q[v]);
    }
  }
}

template <int kVectors, bool kWhole>
inline RowSums<kVectors> pass(const Block<kVectors, kWhole>& block, const Columns& from, const Columns& to,
                              const Fold* folds, int n_folds, int row) {
  RowSums<kVectors> sums;
  for (int d = 0; d < block.head.op.dk; d += kFoldRows)  // dk is a multiple of 8
    pass_rows<kFoldRows>(block, from, to, folds, n_folds, d, row, sums);
  return sums;
}

// work: scratch of [dk, kVectors] vectors.
template <int kVectors, bool kWhole>
inline void delta_columns(const Block<kVectors, kWhole>& block, const Rows& rows, const Fold* accepted, int n_accepted,
                          float* work) {
  const DeltaHead& head = block.head;
  const GatedDelta& op = head.op;
  const Columns committed{head.S + block.first, op.dv}, scratch{work, kVectors * kLanes};
  if (op.rows == 0) pass(block, committed, committed, accepted, n_accepted, -1);
  int reached = -1;  // `scratch` holds the state after this row; -1: it holds none yet
  for (int i = 0; i < op.rows; ++i) {
    const int parent = parent_of(op.tree, i);
    Fold path[kMaxTree];
    int first = kMaxTree, row = parent;  // path[first ..) leads from an available state to the parent's state
    for (; row >= 0 && row != reached; row = parent_of(op.tree, row))
      path[--first] = {head.k(row), head.delta(row), rows.decay[row]};
    const RowSums<kVectors> sums =
        i == 0 ? pass(block, committed, committed, accepted, n_accepted, i)
               : pass(block, row < 0 ? committed : scratch, scratch, path + first, kMaxTree - first, i);
    if (first < kMaxTree) reached = parent;
    const vf beta = splat(head.beta(i)), decay = splat(rows.decay[i]), k_dot_q = splat(rows.k_dot_q[i]);
    for (int v = 0; v < kVectors; ++v) {
      const vf delta = beta * (block.load(head.v(i) + block.first, v) - decay * sums.k[v]);
      block.store(head.delta(i) + block.first, v, delta);
      block.store(head.o(i) + block.first, v, fma(k_dot_q, delta, decay * sums.q[v]));
    }
  }
}

void gated_delta(const GatedDelta& op, int v_head, int begin, int end, std::byte* scratch) {
  const int k_head = key_head(op, v_head);
  const DeltaHead head{op, v_head, k_head, begin, end - begin, op.S + long(v_head) * op.dk * op.dv + begin};
  constexpr int kVectors = 64 / kLanes < 4 ? 64 / kLanes : 4, kWide = kVectors * kLanes;
  float* work = reinterpret_cast<float*>(scratch);  // delta_thread_scratch() counts this layout
  float* deltas = work + long(op.dk) * kWide;
  Fold accepted[kMaxTree];
  const int n_folds = accepted_folds(head, deltas, accepted);
  Rows rows;
  read_rows(head, rows);
  int c = 0;
  for (; c + kWide <= head.n; c += kWide)
    delta_columns(Block<kVectors, true>{head, c, kWide}, rows, accepted, n_folds, work);
  for (; c < head.n; c += kLanes) delta_columns(Block<1, false>{head, c, head.n - c}, rows, accepted, n_folds, work);
}

}  // namespace
}  // namespace lb::cpu
