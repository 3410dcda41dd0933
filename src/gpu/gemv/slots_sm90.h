// Bulk copies of weight rows into slots of shared memory (sm_90). A slot holds the rows' planes one after another;
// PlaneRows::InSlot reads it.
#pragma once

#include "gpu/gemv/formats.h"
#include "gpu/gemv/gemv.h"
#include "transfer.h"

namespace lb::gpu {

// Called by one thread. Copies the block's rows [row, row + slot_rows), cut off at its last row, into `slot`. `full`
// completes when the bytes have arrived. At least one row must exist.
LB_DEVICE void copy_rows(const Gemv& p, const GemvBlock& block, int row, int slot_rows, uint8_t* slot,
                         CountedBarrier* full) {
  const GemvMatrix& product = p.matrices[block.matrix];
  const int rows = min(slot_rows, block.n_rows - row);
  int bytes = 0;
  LB_UNROLL
  for (int i = 0; i < quant::kMaxPlanes; ++i) bytes += rows * p.row_bytes[i];
  barrier_expect(full, bytes);
  LB_UNROLL
  for (int i = 0; i < quant::kMaxPlanes; ++i) {
    if (p.row_bytes[i] == 0) break;
    copy_bulk(slot, plane(product, i) + long(block.begin + row) * p.row_bytes[i], rows * p.row_bytes[i], full);
    slot += slot_rows * p.row_bytes[i];
  }
}

}  // namespace lb::gpu
