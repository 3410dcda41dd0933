// What one append is: rows computed after n_past committed tokens, as a chain or as a tree.
#pragma once

#include <stdint.h>

namespace lb {

inline constexpr int kMaxTree = 64;     // rows of a tree, and of one Gated DeltaNet chunk: one bit each in a mask
inline constexpr int kPageTokens = 64;  // tokens of a KV page

// Shape of an append. A chain: row i follows row i-1. A tree: parent[i] < i, -1 hangs off the committed
// sequence, and ancestors[i] has bit j set when j is i or an ancestor of i.
struct Tree {
  const int32_t* parent;      // [rows]; null: chain
  const uint64_t* ancestors;  // [rows]; null: chain
};

// Numbers that change from one append to the next are read through a pointer, so that a launch which was recorded once
// can be replayed.

// Rows of the previous append that were accepted: their indices, oldest first. *n == 0: none.
struct Accepted {
  const int32_t* path;  // [*n], at most kMaxTree
  const int32_t* n;
};

}  // namespace lb
