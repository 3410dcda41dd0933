// A tree of tokens that a drafter proposes after the newest token of a sequence.
#pragma once

#include <stdint.h>

#include "ops/append.h"

namespace lb {

// Node 0 is the root: the newest token, which is sampled and not yet computed. A chain is a tree with one path.
struct Draft {
  int32_t rows;                  // nodes, the root included; 0: nothing is proposed
  int32_t tokens[kMaxTree];      // [rows]
  int32_t parents[kMaxTree];     // [rows] below the node's own index; -1 of the root
  int32_t depths[kMaxTree];      // [rows] 0 of the root
  float scores[kMaxTree];        // [rows] natural logarithm of the path's probability; 0 of the root
  uint64_t ancestors[kMaxTree];  // [rows] as in Tree

  void start(int32_t root) {
    rows = 1;
    tokens[0] = root, parents[0] = -1, depths[0] = 0, scores[0] = 0, ancestors[0] = 1;
  }
  // rows < kMaxTree
  void add(int32_t token, int32_t parent, float score) {
    const int i = rows++;
    tokens[i] = token, parents[i] = parent, depths[i] = depths[parent] + 1, scores[i] = score;
    ancestors[i] = ancestors[parent] | uint64_t(1) << i;
  }
};

}  // namespace lb
