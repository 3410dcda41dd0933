// The reference bodies: plain loops that follow the equations in ops/*.h. cpu/kernels.h defines the ranges.
#pragma once

#include "cpu/kernels.h"

namespace lb::cpu::scalar {

void embed_rows(const Embed&, int begin, int end);
void rms_norm(const RmsNorm&, int begin, int end);
void gated_rms_norm(const GatedRmsNorm&, int begin, int end);
void rope(const Rope&, int begin, int end);
void swiglu(const SwiGlu&, int begin, int end);
void geglu(const GeGlu&, int begin, int end);
void soft_cap(float* x, long n, float cap);
void clamped_swiglu(const float* gate, const float* up, float* y, int n, float limit);

void top_tokens(const TopTokens&, int begin, int end);
void block_conv(const BlockConv&, int begin, int end);

void causal_conv(const CausalConv&, int begin, int end);
void delta_prepare(const DeltaPrepare&, int begin, int end);
void gated_delta(const GatedDelta&, int v_head, int begin, int end, std::byte* scratch);

void kv_append(const KvAppend&, int begin, int end);
void attention(const Attention&, int kv_head, int row_begin, int row_end, int begin, int end, float* m, float* l,
               float* o, std::byte* scratch);
void attention_add(int n, int head_dim, const float* from_m, const float* from_l, const float* from_o, float* m,
                   float* l, float* o);
void attention_finish(const Attention&, int head_begin, int head_end, int row_begin, int row_end, const float* l,
                      const float* o);

void key_sums(const KeyScores&, int kv_head, int begin, int end, float* parts, std::byte* scratch);
void key_scores(const KeyScores&, int kv_head, int begin, int end, const float* sums, std::byte* scratch);

void quantize_q8(const float* x, int n_in, int stride, int8_t* q, float* scale, int32_t* sum);
void linear_q8(const Linear&, const Q8Rows& x, int begin, int end, std::byte* scratch);
void linear_f32(const Linear&, int begin, int end, std::byte* scratch);

inline float sigmoid(float x) { return 1.0f / (1.0f + __builtin_expf(-x)); }
inline float silu(float x) { return x * sigmoid(x); }

}  // namespace lb::cpu::scalar
