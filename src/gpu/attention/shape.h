// What the attention kernels and their launch functions must agree on. Read by host and device.
#pragma once

#include <stddef.h>

#include "ops/attention.h"
#include "ops/round_rows.h"
#include "quant/half.h"

namespace lb::gpu {

// Parameters of every attention kernel. The context is cut into n_splits runs of whole pages; where they lie follows
// from *n_past in the kernel. One split: the result goes to op.o, gated. Several: its softmax stays open in the
// partials, m as an exponent of 2, and a run that a row sees nothing of has m = -inf, l = 0 and no o. Splits that have
// no pages leave nothing.
struct AttentionSplits {
  Attention op;
  int n_splits;
  int ring;               // tiles of K or V that shared memory has room for
  float* m;               // [n_splits, rows, n_heads]
  float* l;               // [n_splits, rows, n_heads]
  float* o;               // [n_splits, rows, n_heads, head_dim]
  RoundedRows rounded{};  // by the merge: also op.o as RoundRows makes it, [rows, n_heads * head_dim]; null: no
};

// A block has four warps and one KV head. Queries are the rows times the query heads of that KV head.
inline constexpr int kAttentionThreads = 128, kAttentionWarps = 4;
inline constexpr int kDecodeQueries = 16;  // attention_decode: each warp has them all, and a quarter of the slots
inline constexpr int kFp32Queries = 8, kFp32Slots = 16;
inline constexpr int kMergeThreads = 256;
inline constexpr int kMaxSplits = 512;
inline constexpr int kPrepareThreads = 128, kMaxPreparedDim = 512;  // attention_prepare: a warp a head of a row

// Queries of a block of attention_prefill, a warp having 16 n_tiles, and the slots of its tiles: what registers allow.
LB_FN constexpr int prefill_queries(int n_tiles) { return 16 * kAttentionWarps * n_tiles; }
LB_FN constexpr int prefill_slots(int head_dim, int n_tiles) { return head_dim * n_tiles > 128 ? 32 : 64; }

// Rows of a tile of 16-bit operands start in different banks, 16-byte aligned.
LB_FN constexpr int operand_stride(int head_dim) { return head_dim + 8; }
LB_FN constexpr size_t operand_bytes(int rows, int head_dim) { return size_t(rows) * operand_stride(head_dim) * 2; }
inline constexpr int kOperandScratch = 16 * 24;  // values for to_operand, of each warp

// Shared memory: queries, scratch, (few: m and l of 4 warps and of the block,) ring. The ring of attention_decode is
// four rings, one of each warp, and later holds half of each warp's o.
LB_FN constexpr size_t decode_shared_bytes(int head_dim, int ring) {
  return operand_bytes(kDecodeQueries, head_dim) * (1 + kAttentionWarps * ring) +
         size_t(kAttentionWarps) * kOperandScratch * 2 + sizeof(float) * 2 * kDecodeQueries * (kAttentionWarps + 1);
}
LB_FN constexpr size_t prefill_shared_bytes(int head_dim, int n_tiles, int ring) {
  return operand_bytes(prefill_queries(n_tiles), head_dim) + size_t(kAttentionWarps) * kOperandScratch * 2 +
         operand_bytes(prefill_slots(head_dim, n_tiles), head_dim) * ring;
}

// attention_prefill_sm90: a warpgroup brings tiles, two have 64 queries each. Tiles hold as many slots as registers
// have room for scores, and queries of 256 values lie in shared memory.
inline constexpr int kSm90BlockThreads = 384, kSm90GroupThreads = kSm90BlockThreads / 3, kSm90Queries = 128;
LB_FN constexpr int sm90_slots(int head_dim) { return head_dim > 128 ? 64 : 128; }
LB_FN constexpr int sm90_stages(int head_dim) { return head_dim > 128 ? 2 : 3; }  // of K, and of V
LB_FN constexpr size_t sm90_query_bytes(int head_dim) {
  return head_dim > 128 ? size_t(kSm90Queries) * head_dim * 2 : 0;
}
LB_FN constexpr size_t sm90_shared_bytes(int head_dim) {
  constexpr size_t kAlignment = 1024;  // of tiles: what the launch's memory may have to give for it
  return kAlignment + sm90_query_bytes(head_dim) +
         size_t(2) * sm90_stages(head_dim) * sm90_slots(head_dim) * head_dim * 2 +
         size_t(kSm90Queries / 16) * kOperandScratch * 2;
}

// fp32: queries, slots of K or of V, scores, and the factor of each query's sums so far.
LB_FN constexpr size_t fp32_shared_bytes(int head_dim) {
  return sizeof(float) * (size_t(kFp32Queries + kFp32Slots) * (head_dim + 4) + kFp32Queries * (kFp32Slots + 1));
}

}  // namespace lb::gpu
