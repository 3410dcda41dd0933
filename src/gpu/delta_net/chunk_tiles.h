// Tiles of a chunk's keys and queries, and the ring in shared memory that stages them with asynchronous copies.
#pragma once

#include "gpu/delta_net/gated_delta.h"

namespace lb::gpu {

LB_DEVICE int rows_of_chunk(const GatedDelta& p, int chunk) { return min(kMaxTree, p.rows - chunk * kMaxTree); }
LB_DEVICE float* chunk_work(const DeltaWork& p, int chunk, int v_head) {
  return p.work + (long(chunk) * p.op.n_v_heads + v_head) * kPairFloats;
}
// Bit mask of row i and its ancestors.
LB_DEVICE uint64_t seen_by(const Tree& tree, int i) {
  return tree.ancestors ? tree.ancestors[i] : ~uint64_t{0} >> (63 - i);
}

// Sizes that depend on kPadded, the rows of a chunk after padding with zeros: 32 or 64.
template <int kPadded>
struct Padded {
  static constexpr int kGroups = kPadded / 16;
  static constexpr int kStride = kPadded + 4;                     // row stride of a square matrix in shared memory
  static constexpr int kTileFloats = 2 * kPadded * kPanelStride;  // one panel: keys, then queries
  static constexpr int kDepth = kRingFloats / kTileFloats;        // tiles in the ring
  static_assert(kPadded * kStride <= kTileFloats);
};

// A ring for tiles 0 to n - 1 in order; tile i is staged while tile i - (kDepth - 1) is used.
template <int kDepth, int kFloats, class Stage>
struct Ring {
  float* buffers;
  int n;
  Stage stage;
  int next = 0;

  LB_DEVICE Ring(float* buffers_, int n_, Stage stage_) : buffers(buffers_), n(n_), stage(stage_) {
    for (int i = 0; i < kDepth - 1; ++i) {
      if (i < n) stage(i, buffers + i * kFloats);
      copy_commit();
    }
  }
  // Waits for the next tile. The caller needs a barrier between a tile's last use and the next take().
  LB_DEVICE const float* take() {
    const int ahead = next + kDepth - 1;
    if (ahead < n) stage(ahead, buffers + ahead % kDepth * kFloats);
    copy_commit();
    copy_wait<kDepth - 1>();
    block_barrier();
    return buffers + next++ % kDepth * kFloats;
  }
};
template <int kPadded, class Stage>
LB_DEVICE auto ring_of(float* buffers, int n, Stage stage) {
  return Ring<Padded<kPadded>::kDepth, Padded<kPadded>::kTileFloats, Stage>(buffers, n, stage);
}

// Stages one panel: kPanelDepth values from d on of the chunk's keys, then of its queries. Zeros beyond the last row
// and beyond dk. panel: [2 kPadded, kPanelStride].
template <int kPadded>
LB_DEVICE void stage_panel(const GatedDelta& p, int chunk, int k_head, int d, float* panel) {
  constexpr int kParts = kPanelDepth / 4;
  const int rows = rows_of_chunk(p, chunk);
  for (int i = thread_id(); i < 2 * kPadded * kParts; i += n_threads()) {
    const int part = i % kParts * 4, row = i / kParts % kPadded;
    float* to = panel + i / kParts * kPanelStride + part;
    const float* from = i < kPadded * kParts ? p.k : p.q;
    if (row < rows && d + part < p.dk)
      copy_async<16>(to, from + (long(chunk) * kMaxTree + row) * p.row_stride + long(k_head) * p.dk + d + part);
    else
      store(to, f32x4{});
  }
}

}  // namespace lb::gpu
