// The table of the ops' CPU bodies; there is one table per instruction set. A body computes a range of an op's
// independent rows, channels or heads. cpu/run_*.cpp splits an op into ranges and runs them on the thread pool.
//
// Bodies are in files compiled with the flags of their instruction set. Such a file must define nothing with external
// linkage except its table, and must not instantiate std:: templates: the linker could keep the AVX-512 copy of an
// inline function for the whole program.
#pragma once

#include <cstddef>

#include "cpu/cpu_stream.h"
#include "ops/attention.h"
#include "ops/block_conv.h"
#include "ops/delta_net.h"
#include "ops/embed.h"
#include "ops/key_scores.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/top_tokens.h"

namespace lb::cpu {

// Rows of activations quantised to 8 bits, with one scale per block of 32 values.
struct Q8Rows {
  int8_t* q;     // [rows, stride]; stride = n_in rounded up to 64, zero padding
  float* scale;  // [rows, n_blocks]; n_blocks = stride / 32
  int32_t* sum;  // [rows, n_blocks] sum of the block's q
  int rows, n_in, stride, n_blocks;

  Q8Rows from(int first, int n) const {  // rows [first, first + n)
    const long blocks = long(first) * n_blocks;
    return {q + long(first) * stride, scale + blocks, sum + blocks, n, n_in, stride, n_blocks};
  }
};

struct Kernels {
  // Elementwise and norm bodies: rows [begin, end).
  void (*embed)(const Embed&, int begin, int end);
  void (*rms_norm)(const RmsNorm&, int begin, int end);
  void (*gated_rms_norm)(const GatedRmsNorm&, int begin, int end);
  void (*rope)(const Rope&, int begin, int end);
  void (*swiglu)(const SwiGlu&, int begin, int end);
  void (*geglu)(const GeGlu&, int begin, int end);
  void (*soft_cap)(float* x, long n, float cap);  // n values
  // y = the clamped act() of MixExperts, n values; y may be gate or up.
  void (*clamped_swiglu)(const float* gate, const float* up, float* y, int n, float limit);
  void (*delta_prepare)(const DeltaPrepare&, int begin, int end);
  void (*top_tokens)(const TopTokens&, int begin, int end);
  void (*block_conv)(const BlockConv&, int begin, int end);

  // Channels [begin, end).
  void (*causal_conv)(const CausalConv&, int begin, int end);
  // One value head, value columns [begin, end): folds into S and writes delta and o. CpuStream::run() writes cs and
  // k_out, because columns share cs and value heads share k_out.
  void (*gated_delta)(const GatedDelta&, int v_head, int begin, int end, std::byte* scratch);

  // Rows [begin, end) of the append into the cache.
  void (*kv_append)(const KvAppend&, int begin, int end);
  // KV head `kv_head`, rows [row_begin, row_end), at most kMaxTree, and places [begin, end) of each row's own sequence:
  // the committed slots, then the rows of the append that it sees. A chain's rows see all rows before row_begin.
  // Writes the maximum m [rows, group], the sum of weights l [rows, group] and the unnormalised output
  // o [rows, group, head_dim]. A row that sees none of the places gets m = -inf, l = 0, o = 0.
  void (*attention)(const Attention&, int kv_head, int row_begin, int row_end, int begin, int end, float* m, float* l,
                    float* o, std::byte* scratch);
  // Adds the partial result of later places to the one of earlier places, for n queries.
  void (*attention_add)(int n, int head_dim, const float* from_m, const float* from_l, const float* from_o, float* m,
                        float* l, float* o);
  // Normalises the whole result and applies the gate, for query heads [head_begin, head_end).
  void (*attention_finish)(const Attention&, int head_begin, int head_end, int row_begin, int row_end, const float* l,
                           const float* o);

  // Slots [begin, end) of one page of a KV head. key_sums adds them to the running maximum and sum of each query,
  // parts [rows, n_heads, 2]; key_scores takes the maximum and sum over the whole context, and raises the scores.
  void (*key_sums)(const KeyScores&, int kv_head, int begin, int end, float* parts, std::byte* scratch);
  void (*key_scores)(const KeyScores&, int kv_head, int begin, int end, const float* sums, std::byte* scratch);

  // Weight rows [begin, end), all activation rows.
  void (*quantize_q8)(const float* x, int n_in, int stride, int8_t* q, float* scale, int32_t* sum);  // one row
  void (*linear_q8)(const Linear&, const Q8Rows& x, int begin, int end, std::byte* scratch);
  void (*linear_f32)(const Linear&, int begin, int end, std::byte* scratch);
};

// Null when this machine or this build lacks the instruction set.
const Kernels* kernels_for(Isa isa);

}  // namespace lb::cpu
