// The CPU bodies of the ops, once per instruction set, behind one table. Each body computes a range of its
// op's independent parts; cpu/run_*.cpp cuts an op into ranges and hands them to the thread pool.
//
// Bodies live in files compiled with that instruction set's flags. Such a file must define nothing with external
// linkage except its table (no std:: templates either): the linker would be free to keep an AVX-512 copy of an
// inline function for the whole program.
#pragma once

#include <cstddef>

#include "cpu/cpu_stream.h"
#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace lb::cpu {

// Rows of activations rounded to 8-bit blocks of 32 values.
struct Q8Rows {
  const int8_t* q;     // [rows, stride]; stride = n_in rounded up to 64, padding zero
  const float* scale;  // [rows, n_blocks]; n_blocks = stride / 32
  const int32_t* sum;  // [rows, n_blocks] sum of the block's q
  int rows, n_in, stride, n_blocks;
};

struct Kernels {
  // Elementwise and norm bodies: rows [begin, end).
  void (*embed)(const Embed&, int begin, int end);
  void (*rms_norm)(const RmsNorm&, int begin, int end);
  void (*gated_rms_norm)(const GatedRmsNorm&, int begin, int end);
  void (*rope)(const Rope&, int begin, int end);
  void (*swiglu)(const SwiGlu&, int begin, int end);
  void (*delta_prepare)(const DeltaPrepare&, int begin, int end);

  // Channels [begin, end).
  void (*causal_conv)(const CausalConv&, int begin, int end);
  // One value head, value columns [begin, end): folds into S, writes delta and o. run() then writes cs and k_out, which
  // the columns of a head and the value heads of a key head share.
  void (*gated_delta)(const GatedDelta&, int v_head, int begin, int end, std::byte* scratch);

  // Rows [begin, end) of the append into the cache.
  void (*kv_append)(const KvAppend&, int begin, int end);
  // KV head `kv_head`, rows [row_begin, row_end), slots [slot_begin, slot_end): writes for each row and each query head
  // of the group ([rows][group], o also [head_dim]) the maximum m, the sum of weights l, and the unnormalised output o.
  // A row that sees none of the slots gets m = -inf, l = 0, o = 0. slot_end <= n_past + row_end.
  void (*attention)(const Attention&, int kv_head, int row_begin, int row_end, int slot_begin, int slot_end, float* m,
                    float* l, float* o, std::byte* scratch);
  // Joins such partial results and applies the gate: split s of query head h, row r is entry
  // s * split_stride + (r - row_begin) * (head_end - head_begin) + (h - head_begin).
  void (*attention_merge)(const Attention&, int head_begin, int head_end, int row_begin, int row_end, int n_splits,
                          long split_stride, const float* m, const float* l, const float* o);

  // Weight rows [begin, end), all activation rows.
  void (*quantize_q8)(const float* x, int n_in, int stride, int8_t* q, float* scale, int32_t* sum);  // one row
  void (*linear_q8)(const Linear&, const Q8Rows& x, int begin, int end, std::byte* scratch);
  void (*linear_f32)(const Linear&, int begin, int end, std::byte* scratch);
};

// Null when this machine or this build lacks the instruction set.
const Kernels* kernels_for(Isa isa);

}  // namespace lb::cpu
