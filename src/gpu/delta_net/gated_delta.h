// Common parts of the Gated DeltaNet kernels and of the megakernel's recurrence: heads, pending buffers, a thread's
// part of a slice of S, and the fold. Every fold of pending rows goes through fold_path, so a separate fold and a fold
// before new rows give the same bits.
#pragma once

#include "gpu/activation.h"
#include "gpu/delta_net/shape.h"

namespace lb::gpu {

LB_DEVICE int key_head(const GatedDelta& p, int v_head) {
  return p.order == HeadOrder::kGrouped ? v_head / (p.n_v_heads / p.n_k_heads) : v_head % p.n_k_heads;
}
LB_DEVICE bool is_first_of_key_head(const GatedDelta& p, int v_head) {
  return p.order == HeadOrder::kGrouped ? v_head % (p.n_v_heads / p.n_k_heads) == 0 : v_head < p.n_k_heads;
}
LB_DEVICE int n_chunks_of(const GatedDelta& p) { return (p.rows + kMaxTree - 1) / kMaxTree; }
LB_DEVICE int n_accepted(const GatedDelta& p) { return p.accepted.n ? *p.accepted.n : 0; }

// Index of the pending buffer after n chunks of this append. n = 0: the previous append's buffer.
LB_DEVICE int buffer_after(const GatedDelta& p, int key_buffer, int chunks) {
  return (key_buffer + p.flip + chunks) % 2;
}
LB_DEVICE int buffer_after(const GatedDelta& p, int chunks) { return buffer_after(p, *p.buffer, chunks); }
LB_DEVICE float* keys_in(const GatedDelta& p, int buffer) { return buffer ? p.k_pending[1] : p.k_pending[0]; }
LB_DEVICE float* cs_in(const GatedDelta& p, int buffer) { return buffer ? p.cs_pending[1] : p.cs_pending[0]; }

// The accepted rows, oldest first, and their weights e^{cs_l - cs_j}.
struct Path {
  int32_t rows[kMaxTree];
  float weights[kMaxTree];
};
struct Fold {
  int n;
  float decay;  // e^{cs_l}
  const float* keys;
};

// Reads the accepted path to shared memory. Every thread of the block must call it; `thread` is its index among the
// `team_threads` that share a path. Ends with a barrier.
LB_DEVICE Fold read_path(const GatedDelta& p, int v_head, int n, Path* path, int thread, int team_threads) {
  if (n == 0) return {0, 1, nullptr};
  const int buffer = buffer_after(p, 0);
  const float* cs = cs_in(p, buffer) + v_head;
  const float last = cs[long(p.accepted.path[n - 1]) * p.n_v_heads];
  for (int i = thread; i < n; i += team_threads) {
    const int32_t row = p.accepted.path[i];
    store(&path->rows[i], row);
    store(&path->weights[i], exp_nonpositive(last - cs[long(row) * p.n_v_heads]));
  }
  block_barrier();
  return {n, exp_nonpositive(last), keys_in(p, buffer)};
}
LB_DEVICE Fold read_path(const GatedDelta& p, int v_head, int n, Path* path) {
  return read_path(p, v_head, n, path, thread_id(), n_threads());
}

// A thread's part of a slice of S: four columns, and rows row_lane + i * n_row_lanes. A block's y coordinate is its
// value head. A block holds one slice, or several adjacent slices of kStepColumns columns.
struct Slice {
  int v_head, k_head, first_column, column, row_lane, n_row_lanes;
  bool is_inside;  // column < dv: the last slice may be narrower
};
template <int kColumns, int kSlices = 1>
LB_DEVICE Slice slice_of_thread(const GatedDelta& p) {
  static_assert(kSlices == 1 || kColumns == kStepColumns);
  constexpr int kLanes = kColumns / 4;
  Slice slice;
  slice.v_head = block_id_y();
  slice.k_head = key_head(p, slice.v_head);
  slice.first_column = block_id() * kColumns * kSlices;
  slice.column = slice.first_column + thread_id() % kLanes * 4;
  slice.row_lane = thread_id() / kLanes;
  slice.n_row_lanes = n_threads() / kLanes;
  slice.is_inside = slice.column < p.dv;
  return slice;
}

// A thread's rows of S in registers, for kSlices slices.
template <int kSlices>
using StateRows = f32x4[kSlices][kSliceRows];

// Rows first_row + i * n_row_lanes of S, [VH, dk, dv]; zeros beyond dk and dv.
template <int kSlices>
LB_DEVICE void read_state(const GatedDelta& p, const Slice& slice, int first_row, StateRows<kSlices>& s) {
  LB_UNROLL
  for (int j = 0; j < kSlices; ++j) {
    const int column = slice.column + j * kStepColumns;
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      const int d = first_row + i * slice.n_row_lanes;
      s[j][i] = {};
      if (column < p.dv && d < p.dk) s[j][i] = load<f32x4>(p.S + (long(slice.v_head) * p.dk + d) * p.dv + column);
    }
  }
}
template <int kSlices>
LB_DEVICE void write_state(const GatedDelta& p, const Slice& slice, int first_row, const StateRows<kSlices>& s) {
  LB_UNROLL
  for (int j = 0; j < kSlices; ++j) {
    const int column = slice.column + j * kStepColumns;
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      const int d = first_row + i * slice.n_row_lanes;
      if (column < p.dv && d < p.dk) store(p.S + (long(slice.v_head) * p.dk + d) * p.dv + column, s[j][i]);
    }
  }
}

// S <- decay S + sum_j k_j (weight_j delta_j)^T, in the order of the path, with loads of kBatch rows in flight.
template <int kBatch = 4, int kSlices>
LB_DEVICE void fold_path(const GatedDelta& p, const Slice& slice, const Fold& fold, const Path* path, int first_row,
                         StateRows<kSlices>& s) {
  LB_UNROLL
  for (int j = 0; j < kSlices; ++j) {
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      LB_UNROLL
      for (int c = 0; c < 4; ++c) s[j][i][c] *= fold.decay;
    }
  }
  for (int first = 0; first < fold.n; first += kBatch) {
    f32x4 deltas[kBatch][kSlices];
    float keys[kBatch][kSliceRows];
    LB_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int at = min(first + b, fold.n - 1);  // rows beyond the end get weight 0
      const int32_t row = load<int32_t>(&path->rows[at]);
      const float weight = first + b < fold.n ? load<float>(&path->weights[at]) : 0.0f;
      LB_UNROLL
      for (int j = 0; j < kSlices; ++j) {
        const int column = slice.column + j * kStepColumns;
        deltas[b][j] = {};
        if (column < p.dv)
          deltas[b][j] = load<f32x4>(p.delta + (long(row) * p.n_v_heads + slice.v_head) * p.dv + column);
        LB_UNROLL
        for (int c = 0; c < 4; ++c) deltas[b][j][c] *= weight;
      }
      const float* key = fold.keys + (long(row) * p.n_k_heads + slice.k_head) * p.dk;
      LB_UNROLL
      for (int i = 0; i < kSliceRows; ++i) {
        const int d = first_row + i * slice.n_row_lanes;
        keys[b][i] = d < p.dk ? key[d] : 0.0f;
      }
    }
    LB_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      LB_UNROLL
      for (int j = 0; j < kSlices; ++j) {
        LB_UNROLL
        for (int i = 0; i < kSliceRows; ++i) {
          LB_UNROLL
          for (int c = 0; c < 4; ++c) s[j][i][c] = fma(keys[b][i], deltas[b][j][c], s[j][i][c]);
        }
      }
    }
  }
}

}  // namespace lb::gpu
