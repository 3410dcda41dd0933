// Gives each row of an append the row before it in its sequence, across appends. It follows the protocol of a recurrent
// layer (ops/delta_net.h): the rows of an append stay pending, and the next append folds the accepted ones.
#pragma once

#include <stdint.h>

#include "ops/append.h"

namespace lb {

// `before` is the last committed row: pending[path[n - 1]] if n rows were accepted, else history. y[r] = x[parent(r)],
// or `before` if the row has no parent (chain: row 0).
// Then history = the row before the last chunk of kMaxTree rows: `before`, or in a longer chain the last row of the
// previous chunk. pending = the rows of the last chunk. One call takes all rows of an append, on every stream.
struct PreviousRow {  // rows == 0: x and y are null; history = before
  const float* x;     // [rows, dim]
  float* history;     // [dim] zeros at the start
  float* pending;     // [kMaxTree, dim] in: rows of the previous append's last chunk; out: of this append's
  float* y;           // [rows, dim]; must not overlap x
  Accepted accepted;
  Tree tree;
  int rows, dim;
};

}  // namespace lb
