// Around the products of many rows: x as 16-bit numbers before them, and after them the sums of tiles that several
// blocks have shares of.
#include "dialect.h"

#include "gpu/gemm/shape.h"
#include "gpu/narrow.h"

namespace lb::gpu {

// A thread has 16 values; grid x walks a row, y the rows. Bound: bandwidth, 6 bytes a value.
LB_KERNEL(narrow_rows_kernel, NarrowRows, 256, 1) {
  const int n_out = p.in_tiles ? tiled_values(p.n_in) : x16_values(p.n_in),
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
  for (int i = 0; i < 16; ++i) moved[expanded_place(i)] = plain[i] = narrow(v[i], p.type);
  const int row = block_id_y(), chunk = first / kHalfValues, piece = first % kHalfValues / 8;
  const long tile_row = long(chunk) * padded_rows(p.rows) + row;
  uint16_t* to = static_cast<uint16_t*>(p.y) + (p.in_tiles ? tile_row * kHalfValues : long(row) * n_out + first);
  LB_UNROLL
  for (int half = 0; half < 2; ++half) {
    Vec<uint16_t, 8> out;
    LB_UNROLL
    for (int i = 0; i < 8; ++i) out[i] = p.meets_codes ? moved[8 * half + i] : plain[8 * half + i];
    store(to + 8 * (p.in_tiles ? (piece + half) ^ row % 8 : half), out);
  }
}

// Block x is a tile of those that are shared, y eight of its rows, a row for each warp. Tiles that one block had alone
// are there already.
LB_KERNEL(gemm_sum_kernel, Gemm, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int tile = p.n_whole + block_id(), out_tile = tile / p.n_row_tiles;
  const long n_units = long(n_blocks()) * p.n_chunks, first_unit = long(block_id()) * p.n_chunks;
  const int first = int(((first_unit + 1) * p.n_blocks - 1) / n_units);
  const int last = int(((first_unit + p.n_chunks) * p.n_blocks - 1) / n_units);
  const int tile_row = block_id_y() * 8 + warp(), row = tile % p.n_row_tiles * p.tile_rows + tile_row;
  if (first == last || tile_row >= p.tile_rows || row >= p.group.products[0].rows) return;

  Linear product = p.group.products[0];
  int before = 0;
  LB_UNROLL
  for (int i = 1; i < kMaxProducts; ++i)
    if (i < p.group.n && out_tile >= p.first_tile[i]) {
      product.n_out = p.group.products[i].n_out;
      product.add = p.group.products[i].add;
      product.y = p.group.products[i].y;
      before = p.first_tile[i];
    }
  const int first_out = (out_tile - before) * p.tile_outs;
  for (int out = lane(); out < p.tile_outs && first_out + out < product.n_out; out += 32) {
    const long slot = long(p.tile_rows) * p.tile_outs;
    const float* from = p.partials + tile_row * p.tile_outs + out;
    float sum = from[(2l * first + 1) * slot];  // the tile begins in the last part of its first block
    for (int block = first + 1; block <= last; ++block) sum += from[2l * block * slot];
    const long at = long(row) * product.n_out + first_out + out;
    product.y[at] = product.add != nullptr ? sum + product.add[at] : sum;
  }
}

}  // namespace lb::gpu
