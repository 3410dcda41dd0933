// Scratch memory of gated_delta_chain: the pairs kernel's results for each chunk, as operands of two bf16 parts.
#pragma once

#include "gpu/delta_net/gated_delta.h"
#include "gpu/delta_net/split_bf16.h"

namespace lb::gpu {

static_assert(kChainDk == 128 && kChainColumns == 32 && kMaxTree == 64);

using KeyRows = Parts<kMaxTree, kChainDk>;
using Square = Parts<kMaxTree, kMaxTree>;
using State = Parts<kChainColumns, kChainDk>;       // S^T
using ColumnRows = Parts<kChainColumns, kMaxTree>;  // residual and delta, transposed

LB_DEVICE int rows_of_chunk(const GatedDelta& p, int chunk) { return min(kMaxTree, p.rows - chunk * kMaxTree); }
// Keys, then queries, of a chunk and key head: [4][64, 128], high and low parts of each.
LB_DEVICE bf16* rows_work(const DeltaWork& p, int chunk, int k_head) {
  return reinterpret_cast<bf16*>(p.work + (long(chunk) * p.op.n_k_heads + k_head) * kChainRowFloats);
}
// M diag(beta), then P, of a chunk and value head: [4][64, 64], high and low parts of each. 16x16 blocks above the
// diagonal are neither written nor read. Then [2][64] fp32: e^cs, e^{cs_63 - cs}.
LB_DEVICE bf16* pairs_work(const DeltaWork& p, int chunk, int v_head) {
  const long n_chunks = n_chunks_of(p.op);
  return reinterpret_cast<bf16*>(p.work + n_chunks * p.op.n_k_heads * kChainRowFloats +
                                 (long(chunk) * p.op.n_v_heads + v_head) * kChainPairFloats);
}
inline constexpr int kRowsValues = kMaxTree * kChainDk, kPairValues = kMaxTree * kMaxTree;
static_assert(kChainRowFloats == 2 * kRowsValues && kChainPairFloats == 2 * kPairValues + 2 * kMaxTree);

LB_DEVICE float* gates_work(bf16* pairs) { return reinterpret_cast<float*>(pairs + 4 * kPairValues); }

}  // namespace lb::gpu
