// Stream-K fix-up: y = sum of a tile's partial sums (+ add), for tiles that several blocks share. The sums are added in
// the order of the blocks. If one block computed a whole tile, y is already complete and the fix-up block returns.
// Grid: x is a shared tile, y eight of its rows, one row per warp. Bound: bandwidth, 4 bytes per partial sum.
#include "dialect.h"

#include "gpu/gemm/shape.h"

namespace lb::gpu {

LB_KERNEL(gemm_sum_kernel, Gemm, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int tile = p.n_whole_tiles + block_id(), out_tile = tile / p.n_row_tiles;
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
    float sum = from[(2l * first + 1) * slot];  // slot 1: the tile is the last one of its first block
    for (int block = first + 1; block <= last; ++block) sum += from[2l * block * slot];
    const long at = long(row) * product.n_out + first_out + out;
    product.y[at] = product.add != nullptr ? sum + product.add[at] : sum;
  }
}

}  // namespace lb::gpu
