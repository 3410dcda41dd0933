// Union of two draft trees.
#pragma once

#include "ops/draft.h"

namespace lb {

// The paths of both trees, which have the same root token; a path in both keeps the better score. Rows by descending
// score, so that the first n rows are the best tree of n rows; ties: the lower parent row, then a's node before b's,
// then their order there. At most max_rows rows, the root included. A tree without rows adds nothing.
Draft merge(const Draft& a, const Draft& b, int max_rows = kMaxTree);

}  // namespace lb
