// Behind a product: sums of rows become y, as words or plain.
#pragma once

#include "activation.h"
#include "launch/megakernel_shape.h"
#include "mega_codes.h"

namespace lb::gpu {

// Of a pass of rows, in shared memory.
struct RowSums {
  float v[kPassSums];                // [matrices, row_warps, pass_rows]
  float squares[kMegaThreads / 32];  // of x, of each warp, where it is a norm's; in a step's first pass
};

LB_DEVICE float factor_of(const ProductTask& p, const float* squares) {
  float sum = 0;
  LB_UNROLL
  for (int i = 0; i < kMegaThreads / 32; i += 4) {
    const f32x4 v = load<f32x4>(squares + i);
    sum += v[0] + v[1] + (v[2] + v[3]);
  }
  return rsqrt_fast(sum * p.mean_of + p.eps);
}

// What becomes of a row's sums, [matrices, row_warps] of them, pass_rows apart. added: the word of what is added, if it
// was there.
LB_DEVICE void finish_row(const ProductTask& p, const float* sums, int row, float factor, Word added,
                          const PhaseWait& wait) {
  const int n_matrices = p.up != nullptr ? 2 : 1, row_warps = p.row_threads / 32;
  float products[2] = {};
  LB_UNROLL
  for (int matrix = 0; matrix < 2; ++matrix) {
    LB_UNROLL_BY(1)
    for (int warp = 0; warp < row_warps && matrix < n_matrices; ++warp)
      products[matrix] += sums[(matrix * row_warps + warp) * p.pass_rows];
  }
  float y[1] = {};
  if (n_matrices > 1) {
    y[0] = silu(factor * products[0]) * (factor * products[1]);
  } else {
    if (p.add_words.at >= 0) {
      y[0] = value_of_word(added);
      if (uint32_t(added >> 32) != wait.number_of(p.add_words))
        read_words<1>(wait, {mega_state().words + p.add_words.at + row}, {wait.number_of(p.add_words)}, y);
    } else if (p.op.add != nullptr) {
      y[0] = p.op.add[row];
    }
    y[0] += factor * products[0];
  }
  if (p.writes_codes != 0) {
    const int run = row / kRoundRun;  // of a warp's lanes
    write_run(p.y_words + run * (kRoundRun / 4), p.y_words + p.op.n_out / 4 + run, y[0], wait);
  } else if (p.y_words >= 0) {
    wait.write(p.y_words + row, y[0]);
  }
  if (p.writes_y != 0) p.op.y[row] = y[0];
}

}  // namespace lb::gpu
