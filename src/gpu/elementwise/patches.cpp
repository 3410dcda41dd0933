// ReadPatches: bytes of an image to rows of pixels, a value per thread. AddPositions, AddAxisPositions: the bilinear
// position table, or one of each axis; PoolPatches: the mean of a block of patches; four values per thread. Grid: x
// walks a row, y the rows. Bound: bandwidth.
#include "dialect.h"

#include "ops/vision.h"

namespace lb::gpu {

LB_KERNEL(read_patches_kernel, ReadPatches, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int plane = p.patch * p.patch, i = block_id() * n_threads() + thread_id();
  if (i >= 3 * plane) return;
  const int row = block_id_y(), channel = i / plane, y = i % plane / p.patch, x = i % p.patch;
  const PatchPlace place = patch_place(p.first + row, p.columns, p.merge);
  const long pixel = (long(place.row) * p.patch + y) * p.columns * p.patch + long(place.column) * p.patch + x;
  p.y[long(row) * 3 * plane + i] = p.level[256 * channel + p.rgb[3 * pixel + channel]];
}

// The position of a patch in the table: the entries before and after it, and its distance from the first.
struct TableAt {
  int before, after;
  float part;

  LB_DEVICE TableAt(int at, int n, int side) {
    const float exact = n == 1 ? 0.0f : float((side - 1) * at) / float(n - 1);
    before = min(int(exact), side - 1);
    after = min(before + 1, side - 1);
    part = exact - float(before);
  }
};

LB_KERNEL(add_positions_kernel, AddPositions, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int i = 4 * (block_id() * n_threads() + thread_id());
  if (i >= p.dim) return;
  const int row = block_id_y();
  const PatchPlace place = patch_place(p.first + row, p.columns, p.merge);
  const TableAt y(place.row, p.height, p.side), x(place.column, p.columns, p.side);
  const auto entry = [&](int r, int c) { return load<f32x4>(p.table + (long(r) * p.side + c) * p.dim + i); };
  const f32x4 corners[4] = {entry(y.before, x.before), entry(y.before, x.after), entry(y.after, x.before),
                            entry(y.after, x.after)};
  const float shares[4] = {(1 - y.part) * (1 - x.part), (1 - y.part) * x.part, y.part * (1 - x.part), y.part * x.part};
  float* to = p.y + long(row) * p.dim + i;
  auto sum = load<f32x4>(to);
  LB_UNROLL
  for (int corner = 0; corner < 4; ++corner) {
    LB_UNROLL
    for (int j = 0; j < 4; ++j) sum[j] += shares[corner] * corners[corner][j];
  }
  store(to, sum);
}

LB_KERNEL(add_axis_positions_kernel, AddAxisPositions, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int i = 4 * (block_id() * n_threads() + thread_id());
  if (i >= p.dim) return;
  const int row = block_id_y();
  const PatchPlace place = patch_place(p.first + row, p.columns, p.merge);
  const auto x = load<f32x4>(p.table + long(place.column) * p.dim + i);
  const auto y = load<f32x4>(p.table + (long(p.side) + place.row) * p.dim + i);
  float* to = p.y + long(row) * p.dim + i;
  auto sum = load<f32x4>(to);
  LB_UNROLL
  for (int j = 0; j < 4; ++j) sum[j] += x[j] + y[j];
  store(to, sum);
}

LB_KERNEL(pool_patches_kernel, PoolPatches, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int i = 4 * (block_id() * n_threads() + thread_id());
  if (i >= p.dim) return;
  const int row = block_id_y();
  f32x4 sum = {};
  for (int k = 0; k < p.block; ++k) {
    const auto x = load<f32x4>(p.x + (long(row) * p.block + k) * p.dim + i);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) sum[j] += x[j];
  }
  LB_UNROLL
  for (int j = 0; j < 4; ++j) sum[j] = sum[j] / float(p.block) * p.factor;
  if (p.bias != nullptr) {
    const auto bias = load<f32x4>(p.bias + i), scale = load<f32x4>(p.scale + i);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) sum[j] = (sum[j] - bias[j]) * scale[j];
  }
  store(p.y + long(row) * p.dim + i, sum);
}

}  // namespace lb::gpu
