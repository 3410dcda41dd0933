// Reading the shape of an append, and which key head a value head reads. Everything is static: files of every
// instruction set include this (see kernels.h).
#pragma once

#include "ops/append.h"
#include "ops/delta_net.h"

namespace lb::cpu {

[[maybe_unused]] static inline int parent_of(const Tree& tree, int row) {
  return tree.parent ? tree.parent[row] : row - 1;
}

// Row `row` itself and its ancestors, one bit each; only for appends of at most 64 rows.
[[maybe_unused]] static inline uint64_t ancestors_of(const Tree& tree, int row) {
  return tree.ancestors ? tree.ancestors[row] : ~uint64_t{0} >> (63 - row);
}

[[maybe_unused]] static inline bool sees(const Tree& tree, int row, int other) {
  return tree.ancestors ? tree.ancestors[row] >> other & 1 : other <= row;
}

[[maybe_unused]] static inline int key_head(const GatedDelta& op, int v_head) {
  return op.order == HeadOrder::kGrouped ? v_head / (op.n_v_heads / op.n_k_heads) : v_head % op.n_k_heads;
}

[[maybe_unused]] static inline int n_accepted(const Accepted& accepted) { return accepted.n ? *accepted.n : 0; }

// Which of the two pending buffers the previous append has filled; this one fills the other.
[[maybe_unused]] static inline int filled_buffer(const GatedDelta& op) { return (*op.buffer + op.flip) % 2; }

}  // namespace lb::cpu
