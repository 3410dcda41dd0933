// The shape of one append: rows computed after n_past committed tokens, as a chain or as a tree.
#pragma once

#include <stdint.h>

namespace lb {

inline constexpr int kMaxTree = 64;     // rows of a tree, and of one Gated DeltaNet chunk: one bit each in a mask
inline constexpr int kPageTokens = 64;  // tokens of a KV page

// Chain: row i follows row i - 1. Tree: parent[i] < i; -1 is a child of the last committed token. Bit j of ancestors[i]
// is set when j is i or an ancestor of i. A draft block has masks without parents: any rows see each other.
struct Tree {
  const int32_t* parent;      // [rows]; null: chain, or draft block
  const uint64_t* ancestors;  // [rows]; null: chain
};

// Ops read every number that changes between appends through a pointer, so a recorded launch can be replayed.

// Accepted rows of the previous append: their indices, oldest first. *n == 0: none.
struct Accepted {
  const int32_t* path;  // [*n], at most kMaxTree
  const int32_t* n;
};

}  // namespace lb
