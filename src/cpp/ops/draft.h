// A tree of tokens that a drafter proposes after the newest token of a sequence.
#pragma once

#include <stdint.h>

#include "ops/append.h"

namespace lb {

// Node 0 is the root: the newest token, sampled but not yet computed. A chain is a tree with one path.
struct Draft {
  int32_t rows;                  // nodes, the root included; 0: nothing is proposed
  int32_t tokens[kMaxTree];      // [rows]
  int32_t parents[kMaxTree];     // [rows] below the node's own index; -1 of the root
  int32_t depths[kMaxTree];      // [rows] 0 of the root
  float scores[kMaxTree];        // [rows] natural logarithm of the path's probability; 0 of the root
  uint64_t ancestors[kMaxTree];  // [rows] as in Tree
};

}  // namespace lb
