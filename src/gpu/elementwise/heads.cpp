// SplitHeads and MergeHeads: the layouts of attention among the patches of an image. Grid: x walks a row, y the rows; a
// thread handles four values: two pairs of a head, or four zeros after its values. Bound: bandwidth.
#include "dialect.h"

#include "gpu/number_types.h"
#include "ops/vision.h"

namespace lb::gpu {

LB_KERNEL(split_heads_kernel, SplitHeads, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int per_head = p.padded / 4, item = block_id() * n_threads() + thread_id(), row = block_id_y();
  if (item >= 3 * p.heads * per_head) return;
  const int part = item / (p.heads * per_head), head = item / per_head % p.heads, half = p.dim / 2;
  int at = 2 * (item % per_head), other = 0;  // columns of the first and second values of both pairs
  f32x2 a = {}, b = {};
  if (at < half) {
    const float* x = p.x + long(row) * p.row_stride + long(part) * p.part_stride + long(head) * p.dim;
    const int pair = at;
    const PairColumns columns = pair_columns(pair, p.dim, p.is_by_axis);  // the next pair's follow them
    at = columns.at, other = columns.at + columns.distance;
    a = load<f32x2>(x + at), b = load<f32x2>(x + other);
    if (p.bias != nullptr) {
      const float* bias = p.bias + (long(part) * p.heads + head) * p.dim;
      const auto a_bias = load<f32x2>(bias + at), b_bias = load<f32x2>(bias + other);
      LB_UNROLL
      for (int j = 0; j < 2; ++j) a[j] += a_bias[j], b[j] += b_bias[j];
    }
    if (part < 2) {
      const auto cos = load<f32x2>(p.cos + long(row) * half + pair), sin = load<f32x2>(p.sin + long(row) * half + pair);
      LB_UNROLL
      for (int j = 0; j < 2; ++j) {
        const float first = a[j], second = b[j];
        a[j] = first * cos[j] - second * sin[j];
        b[j] = second * cos[j] + first * sin[j];
      }
    }
  } else {
    at = 4 * (item % per_head);
    other = at + 2;
  }
  if (part == 0) {
    if (p.q == nullptr) return;
    float* q = p.q + (long(head) * p.rows + row) * p.padded;
    store(q + at, a);
    store(q + other, b);
    return;
  }
  void* pages = part == 1 ? p.k : p.v;
  const int slot = p.first + row;
  const long to = ((long(slot / kPageSlots) * p.heads + head) * kPageSlots + slot % kPageSlots) * p.padded;
  if (p.type == KvType::kF32) {
    store(static_cast<float*>(pages) + to + at, a);
    store(static_cast<float*>(pages) + to + other, b);
  } else {
    store(static_cast<f16*>(pages) + to + at, Vec<f16, 2>{to_f16(a[0]), to_f16(a[1])});
    store(static_cast<f16*>(pages) + to + other, Vec<f16, 2>{to_f16(b[0]), to_f16(b[1])});
  }
}

LB_KERNEL(merge_heads_kernel, MergeHeads, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int i = 4 * (block_id() * n_threads() + thread_id()), row = block_id_y();
  if (i >= p.heads * p.dim) return;
  const int head = i / p.dim, column = i % p.dim;
  store(p.y + long(row) * p.heads * p.dim + i, load<f32x4>(p.x + (long(head) * p.rows + row) * p.padded + column));
}

}  // namespace lb::gpu
