// Block-sparse attention of a long chain: which blocks of keys each block of queries attends to.
//
// A key block is 128 slots. A query block is sparse_rows() rows of an append and the query heads that share a KV head,
// up to 128 queries: attention kernels read K and V once for such a tile, so its heads select together.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/attention.h"

namespace lb {

inline constexpr int kSparseBlock = 128;
inline constexpr int kSparseSinks = 2;   // first key blocks of the sequence, always selected
inline constexpr int kSparseWindow = 4;  // key blocks up to the one with a query block's last row, always selected

LB_FN constexpr int sparse_rows(int group) { return group < kSparseBlock ? kSparseBlock / group : 1; }
// Key blocks of a cache; the last one may be partial.
LB_FN constexpr int sparse_blocks(int capacity) { return (capacity + kSparseBlock - 1) / kSparseBlock; }
// Query blocks of an append, of one KV head.
LB_FN constexpr int query_blocks(int rows, int group) { return (rows + sparse_rows(group) - 1) / sparse_rows(group); }

// means[h, :, b] = mean of the stored keys in slots [128 b, 128 b + 128), for the blocks that the append completes.
struct KeyMeans {
  KvLayer cache;          // V is not read
  float* means;           // [n_kv_heads, head_dim, max_blocks]
  const int32_t* n_past;  // [1]
  int rows, max_blocks;
};

// The selected blocks of each query block and KV head, ascending. The score of a block is the sum over the queries of
// softmax_b(scale * q . mean_b), over the blocks that end at or before the query's row. Selected are: blocks that score
// at least alpha times the largest score, the first kSparseSinks blocks, and the last kSparseWindow blocks up to the
// block of the query block's last row, which include the causal diagonal. Later blocks never are.
struct SelectBlocks {
  const float* q;         // [rows, n_heads, head_dim]
  const float* means;     // [n_kv_heads, head_dim, max_blocks]
  int32_t* blocks;        // [n_query_blocks, n_kv_heads, list_size] the number of blocks, then their indices
  const int32_t* n_past;  // [1]
  int rows, n_heads, n_kv_heads, head_dim;
  int n_query_blocks, list_size;  // query_blocks(); more than the key blocks of the cache
  int max_blocks;
  float scale, alpha;
};

size_t select_blocks_thread_scratch(int max_blocks);  // on the CPU

}  // namespace lb
