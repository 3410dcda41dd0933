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

void gated_delta(const GatedDelta& op, int v_head, int begin, int end, std::byte* scratch) {
  const int KH = op.n_k_heads, VH = op.n_v_heads, dk = op.dk, dv = op.dv;
  const int k_head = key_head(op, v_head);
  float* S = op.S + long(v_head) * dk * dv;
  auto q = [&](int i) { return op.q + i * op.row_stride + long(k_head) * dk; };
  auto k = [&](int i) { return op.k + i * op.row_stride + long(k_head) * dk; };
  auto delta = [&](int i) { return op.delta + (long(i) * VH + v_head) * dv; };

  if (const int n = n_accepted(op.accepted); n > 0) {
    const int in = filled_buffer(op);
    const int32_t* path = op.accepted.path;
    auto cs = [&](int i) { return op.cs_pending[in][long(i) * VH + v_head]; };
    const float last = cs(path[n - 1]);
    for (int d = 0; d < dk; ++d)
      for (int c = begin; c < end; ++c) {
        float s = std::exp(last) * S[long(d) * dv + c];
        for (int p = 0; p < n; ++p) {
          const int j = path[p];
          s += op.k_pending[in][(long(j) * KH + k_head) * dk + d] * (std::exp(last - cs(j)) * delta(j)[c]);
        }
        S[long(d) * dv + c] = s;
      }
  }

  float* cs = reinterpret_cast<float*>(scratch);  // [64]
  float* kk = cs + kMaxTree;                      // [64, 64] E_ij k_i.k_j
  float* qk = kk + kMaxTree * kMaxTree;           // [64, 64] E_ij q_i.k_j
  for (int i = 0; i < op.rows; ++i) {
    const int parent = parent_of(op.tree, i);
    cs[i] = op.g[long(i) * VH + v_head] + (parent < 0 ? 0 : cs[parent]);
    for (int j = 0; j <= i; ++j) {
      const float decay = sees(op.tree, i, j) ? std::exp(cs[i] - cs[j]) : 0;
      kk[i * kMaxTree + j] = decay * dot(k(i), k(j), dk);
      qk[i * kMaxTree + j] = decay * dot(q(i), k(j), dk);
    }
  }
  for (int i = 0; i < op.rows; ++i)
    for (int c = begin; c < end; ++c) {
      float k_state = 0, q_state = 0;
      for (int d = 0; d < dk; ++d) {
        k_state += k(i)[d] * S[long(d) * dv + c];
        q_state += q(i)[d] * S[long(d) * dv + c];
      }
      float error = op.v[i * op.row_stride + long(v_head) * dv + c] - std::exp(cs[i]) * k_state;
      for (int j = 0; j < i; ++j) error -= kk[i * kMaxTree + j] * delta(j)[c];
      delta(i)[c] = op.beta[long(i) * VH + v_head] * error;
      float out = std::exp(cs[i]) * q_state;
      for (int j = 0; j <= i; ++j) out += qk[i * kMaxTree + j] * delta(j)[c];
      op.o[(long(i) * VH + v_head) * dv + c] = out;
    }
}

}  // namespace lb::cpu::scalar
