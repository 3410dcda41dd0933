// Accessors of an append's tree, of the slots that its rows see, and of a value head's key head. Every function is
// static, because files of all instruction sets include this header (see kernels.h).
#pragma once

#include "ops/append.h"
#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/select_blocks.h"

namespace lb::cpu {

[[maybe_unused]] static inline int parent_of(const Tree& tree, int row) {
  return tree.parent ? tree.parent[row] : row - 1;
}

// A bit mask of row `row` and its ancestors, for appends of at most 64 rows.
[[maybe_unused]] static inline uint64_t ancestors_of(const Tree& tree, int row) {
  return tree.ancestors ? tree.ancestors[row] : ~uint64_t{0} >> (63 - row);
}

// Tokens of the append between the committed ones and the row, for windows. A draft block has masks without parents.
[[maybe_unused]] static inline int depth_of(const Tree& tree, int row) {
  return tree.parent ? __builtin_popcountll(tree.ancestors[row]) - 1 : row;
}

// The first slot that the row sees.
[[maybe_unused]] static inline int first_slot(const Attention& op, int n_past, int row) {
  const int first = op.first_slot < n_past ? op.first_slot : n_past;
  const int in_window = op.window > 0 ? n_past + depth_of(op.tree, row) - op.window + 1 : 0;
  // A window hides rows of this append only in a chain.
  const int hidden = op.tree.ancestors && in_window > n_past ? n_past : in_window;
  return hidden > first ? hidden : first;
}

// The last row of the append that a row of a chain sees.
[[maybe_unused]] static inline int last_seen(const Attention& op, int row) {
  return op.last_seen ? op.last_seen[row] : row;
}

// The list of key blocks that the query block of `row` attends to; null: all.
[[maybe_unused]] static inline const int32_t* blocks_of(const Attention& op, int row, int kv_head) {
  if (op.blocks == nullptr) return nullptr;
  const int group = op.n_heads / op.cache.n_kv_heads;
  return op.blocks + (long(row / sparse_rows(group)) * op.cache.n_kv_heads + kv_head) * op.list_size;
}
[[maybe_unused]] static inline bool is_selected(const int32_t* blocks, int slot) {
  if (blocks == nullptr) return true;
  int i = 1;
  while (i <= blocks[0] && blocks[i] < slot / kSparseBlock) ++i;
  return i <= blocks[0] && blocks[i] == slot / kSparseBlock;
}

[[maybe_unused]] static inline int key_head(const GatedDelta& op, int v_head) {
  return op.order == HeadOrder::kGrouped ? v_head / (op.n_v_heads / op.n_k_heads) : v_head % op.n_k_heads;
}

[[maybe_unused]] static inline int n_accepted(const Accepted& accepted) { return accepted.n ? *accepted.n : 0; }

// The pending buffer that the previous append filled; this append fills the other one.
[[maybe_unused]] static inline int filled_buffer(const GatedDelta& op) { return (*op.buffer + op.flip) % 2; }

}  // namespace lb::cpu
