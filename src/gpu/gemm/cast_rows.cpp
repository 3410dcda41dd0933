// CastRows: converts x to 16-bit numbers, padded with zeros to whole chunks, for GEMMs that multiply 16-bit numbers.
// Grid: x walks a row, y the rows; a thread converts 16 values. Bound: bandwidth, 6 bytes per value.
#include "dialect.h"

#include "gpu/gemm/shape.h"
#include "gpu/narrow.h"

namespace lb::gpu {

LB_KERNEL(cast_rows_kernel, CastRows, 256, 1) {
  const int n_out = p.is_tiled ? tiled_values(p.n_in) : x16_values(p.n_in),
            first = (block_id() * n_threads() + thread_id()) * 16;
  dependents_may_launch();
  wait_for_previous();
  if (first >= n_out) return;
  const float* from = p.x + long(block_id_y()) * p.n_in + first;
  float v[16];
  if (first + 16 <= p.n_in && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const f32x4 four = load<f32x4>(from + 4 * i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) v[4 * i + j] = four[j];
    }
  } else {
    LB_UNROLL
    for (int i = 0; i < 16; ++i) v[i] = first + i < p.n_in ? from[i] : 0.0f;
  }
  uint16_t plain[16], moved[16];
  LB_UNROLL
  for (int i = 0; i < 16; ++i) moved[expanded_index(i)] = plain[i] = narrow(v[i], p.type);
  const int row = block_id_y(), chunk = first / kHalfValues, piece = first % kHalfValues / 8;
  const long tile_row = long(chunk) * padded_rows(p.rows) + row;
  uint16_t* to = static_cast<uint16_t*>(p.y) + (p.is_tiled ? tile_row * kHalfValues : long(row) * n_out + first);
  LB_UNROLL
  for (int half = 0; half < 2; ++half) {
    Vec<uint16_t, 8> out;
    LB_UNROLL
    for (int i = 0; i < 8; ++i) out[i] = p.is_permuted ? moved[8 * half + i] : plain[8 * half + i];
    store(to + 8 * (p.is_tiled ? (piece + half) ^ row % 8 : half), out);
  }
}

}  // namespace lb::gpu
