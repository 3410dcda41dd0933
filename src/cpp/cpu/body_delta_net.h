// Vector bodies of Gated DeltaNet; equations in ops/delta_net.h.
//   Rows come one after the other, each from the state after its parent, so a row has the same bits in every append. A
//   pass over a block of columns of S folds the rows between two states, in registers, and reads the new row's sums.
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

// A row to fold: S <- decay S + key delta^T.
struct Fold {
  const float* key;    // [dk]
  const float* delta;  // [columns]
  float decay;
};

// The accepted rows of the previous append. Their deltas are copied, because new rows take their place.
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
  float k_dot_q[kMaxTree];  // of the row's own key and query
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

// A block of n columns of a state, [dk] rows of a stride.
struct Columns {
  float* at;
  long stride;
};

// Folds `from` into `to` on columns [c, c + n), and sums the new state's products with k and q: S^T k and S^T q.
template <int kVectors>
inline void pass(const DeltaHead& head, const Columns& from, const Columns& to, const Fold* folds, int n_folds, int c,
                 int n, const float* k, const float* q, vf* k_state, vf* q_state) {
  const float* source = from.at;
  float* target = to.at;
  for (int d = 0; d < head.op.dk; ++d, source += from.stride, target += to.stride) {
    vf s[kVectors];
    for (int v = 0; v < kVectors; ++v) s[v] = load(source + v * kLanes, n - v * kLanes);
    for (int f = 0; f < n_folds; ++f) {
      const vf key = splat(folds[f].key[d]), decay = splat(folds[f].decay);
      for (int v = 0; v < kVectors; ++v)
        s[v] = fma(key, load(folds[f].delta + c + v * kLanes, n - v * kLanes), decay * s[v]);
    }
    if (n_folds > 0)
      for (int v = 0; v < kVectors; ++v) store(target + v * kLanes, s[v], n - v * kLanes);
    for (int v = 0; k != nullptr && v < kVectors; ++v) {
      k_state[v] = fma(splat(k[d]), s[v], k_state[v]);
      q_state[v] = fma(splat(q[d]), s[v], q_state[v]);
    }
  }
}

// Columns [c, c + n). `work` has [dk, kVectors] vectors.
template <int kVectors>
inline void delta_columns(const DeltaHead& head, const Rows& rows, const Fold* accepted, int n_accepted, int c, int n,
                          float* work) {
  const GatedDelta& op = head.op;
  const Columns committed{head.S + c, op.dv}, scratch{work, kVectors * kLanes};
  if (op.rows == 0)
    return pass<kVectors>(head, committed, committed, accepted, n_accepted, c, n, nullptr, nullptr, nullptr, nullptr);
  int reached = -1;  // the row after which `scratch` has the state; -1: none, the state is the committed one
  for (int i = 0; i < op.rows; ++i) {
    const int parent = parent_of(op.tree, i);
    Fold path[kMaxTree];
    int first = kMaxTree, row = parent;  // path[first ..) leads from the state `from` to the parent's
    for (; row >= 0 && row != reached; row = parent_of(op.tree, row))
      path[--first] = {head.k(row), head.delta(row), rows.decay[row]};
    const Columns& from = row < 0 ? committed : scratch;
    vf k_state[kVectors] = {}, q_state[kVectors] = {};
    if (i == 0) {
      pass<kVectors>(head, committed, committed, accepted, n_accepted, c, n, head.k(0), head.q(0), k_state, q_state);
    } else {
      pass<kVectors>(head, from, scratch, path + first, kMaxTree - first, c, n, head.k(i), head.q(i), k_state, q_state);
      if (first < kMaxTree) reached = parent;
    }
    for (int v = 0; v < kVectors; ++v) {
      const int at = c + v * kLanes, left = n - v * kLanes;
      const vf delta = head.beta(i) * (load(head.v(i) + at, left) - rows.decay[i] * k_state[v]);
      store(head.delta(i) + at, delta, left);
      store(head.o(i) + at, fma(splat(rows.k_dot_q[i]), delta, rows.decay[i] * q_state[v]), left);
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
  for (; c + kWide <= head.n; c += kWide) delta_columns<kVectors>(head, rows, accepted, n_folds, c, kWide, work);
  for (; c < head.n; c += kLanes)
    delta_columns<1>(head, rows, accepted, n_folds, c, head.n - c < kLanes ? head.n - c : kLanes, work);
}

}  // namespace
}  // namespace lb::cpu
