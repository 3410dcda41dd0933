// Union of two draft trees.
#pragma once

#include "ops/draft.h"

namespace lb {

// Returns the paths of both trees, which must have the same root token; a path in both keeps the better score. Rows are
// in descending score, so that the first n rows are the best tree of n rows. Ties: lower parent row, then a before b,
// then original order. At most max_rows rows, including the root. A tree without rows adds nothing.
Draft merge(const Draft& a, const Draft& b, int max_rows = kMaxTree);

}  // namespace lb
