// Gated DeltaNet, one channel or value column at a time.
#include <cmath>

#include "cpu/scalar/scalar.h"
#include "cpu/tree.h"

namespace lb::cpu::scalar {
namespace {

float dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace

void causal_conv(const CausalConv& op, int begin, int end) {
  const int n_past = op.n_taps - 1, n_folded = n_accepted(op.accepted);
  for (int c = begin; c < end; ++c) {
    // The new history is the tail of [history, accepted rows]. A source is never overwritten before it is read, because
    // it has the index of its destination or a later one.
    for (int t = 0; t < n_past; ++t) {
      const int from = t + n_folded;
      op.history[long(t) * op.channels + c] = from < n_past
                                                  ? op.history[long(from) * op.channels + c]
                                                  : op.pending[long(op.accepted.path[from - n_past]) * op.channels + c];
    }
    for (int r = 0; r < op.rows; ++r) {
      float sum = 0;
      int row = r, past = n_past;
      for (int j = op.n_taps - 1; j >= 0; --j) {
        const float input = row >= 0 ? op.x[long(row) * op.channels + c] : op.history[long(--past) * op.channels + c];
        sum += op.w[long(c) * op.n_taps + j] * input;
        if (row >= 0) row = parent_of(op.tree, row);
      }
      op.y[long(r) * op.channels + c] = silu(sum);
    }
    for (int r = 0; r < op.rows; ++r) op.pending[long(r) * op.channels + c] = op.x[long(r) * op.channels + c];
  }
}

void delta_prepare(const DeltaPrepare& op, int begin, int end) {
  for (int r = begin; r < end; ++r) {
    for (int h = 0; h < op.n_k_heads; ++h) {
      float* q = op.q + r * op.row_stride + long(h) * op.dk;
      float* k = op.k + r * op.row_stride + long(h) * op.dk;
      const float q_scale = 1 / std::sqrt((dot(q, q, op.dk) + op.eps) * op.dk);
      const float k_scale = 1 / std::sqrt(dot(k, k, op.dk) + op.eps);
      for (int i = 0; i < op.dk; ++i) q[i] *= q_scale;
      for (int i = 0; i < op.dk; ++i) k[i] *= k_scale;
    }
    for (int h = 0; h < op.n_v_heads; ++h) {
      float& g = op.g[long(r) * op.n_v_heads + h];
      float& beta = op.beta[long(r) * op.n_v_heads + h];
      g = op.a_neg[h] * softplus(g + op.dt_bias[h]);
      beta = sigmoid(beta);
    }
  }
}

// Each row's state follows from S along the row's path, so a row has the same bits in every append.
void gated_delta(const GatedDelta& op, int v_head, int begin, int end, std::byte* scratch) {
  const int KH = op.n_k_heads, VH = op.n_v_heads, dk = op.dk, dv = op.dv;
  const int k_head = key_head(op, v_head);
  float* S = op.S + long(v_head) * dk * dv;
  float* state = reinterpret_cast<float*>(scratch);  // [dk] one column
  auto q = [&](int i) { return op.q + i * op.row_stride + long(k_head) * dk; };
  auto k = [&](int i) { return op.k + i * op.row_stride + long(k_head) * dk; };
  auto delta = [&](int i) { return op.delta + (long(i) * VH + v_head) * dv; };
  auto decay = [&](int i) { return std::exp(op.g[long(i) * VH + v_head]); };

  const int in = filled_buffer(op);
  for (int p = 0; p < n_accepted(op.accepted); ++p) {
    const long j = op.accepted.path[p];
    const float* key = op.k_pending[in] + (j * KH + k_head) * dk;
    const float shrink = std::exp(op.cs_pending[in][j * VH + v_head]);
    for (int d = 0; d < dk; ++d)
      for (int c = begin; c < end; ++c) S[long(d) * dv + c] = shrink * S[long(d) * dv + c] + key[d] * delta(int(j))[c];
  }

  for (int i = 0; i < op.rows; ++i) {
    int path[kMaxTree];  // the row's ancestors, the oldest last
    int n = 0;
    for (int row = parent_of(op.tree, i); row >= 0; row = parent_of(op.tree, row)) path[n++] = row;
    for (int c = begin; c < end; ++c) {
      for (int d = 0; d < dk; ++d) state[d] = S[long(d) * dv + c];
      for (int p = n - 1; p >= 0; --p)
        for (int d = 0; d < dk; ++d) state[d] = decay(path[p]) * state[d] + k(path[p])[d] * delta(path[p])[c];
      const float error = op.v[i * op.row_stride + long(v_head) * dv + c] - decay(i) * dot(k(i), state, dk);
      delta(i)[c] = op.beta[long(i) * VH + v_head] * error;
      op.o[(long(i) * VH + v_head) * dv + c] = decay(i) * dot(q(i), state, dk) + dot(q(i), k(i), dk) * delta(i)[c];
    }
  }
}

}  // namespace lb::cpu::scalar
