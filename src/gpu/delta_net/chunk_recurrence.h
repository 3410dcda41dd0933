// Body of the gated_delta_chunks kernels: S stays in shared memory; chunk after chunk, it computes deltas and o and
// folds the chunk into S.
#pragma once

#include "gpu/delta_net/chunk_tiles.h"

namespace lb::gpu {

// Stages a matrix [64, 64] of the scratch memory: its first kPadded rows and columns.
template <int kPadded>
LB_DEVICE void stage_matrix(const float* from, float* to) {
  constexpr int kParts = kPadded / 4;
  for (int i = thread_id(); i < kPadded * kParts; i += n_threads())
    copy_async<16>(to + i / kParts * Padded<kPadded>::kStride + i % kParts * 4,
                   from + i / kParts * kMaxTree + i % kParts * 4);
}

inline constexpr int kFoldDepth = 128, kFoldRows = 32;  // a tile of the fold: rows of keys, values per row
inline constexpr int kFoldStride = kFoldDepth + 4;
static_assert(kFoldRows * kFoldStride <= Padded<kMaxTree>::kTileFloats);

LB_DEVICE void stage_fold(const GatedDelta& p, int chunk, int k_head, int d0, int first_row, float* tile) {
  constexpr int kParts = kFoldDepth / 4;
  for (int i = thread_id(); i < kFoldRows * kParts; i += n_threads()) {
    const int row = i / kParts, d = d0 + i % kParts * 4;
    if (d < p.dk)
      copy_async<16>(tile + row * kFoldStride + d - d0,
                     p.k + (long(chunk) * kMaxTree + first_row + row) * p.row_stride + long(k_head) * p.dk + d);
  }
}

// The tiles that a chunk reads, in order: panels of keys and queries, M diag(beta), P, then the keys again for the
// fold.
struct ChunkTiles {
  int n_panels, n_folds;
  LB_DEVICE explicit ChunkTiles(const GatedDelta& p)
      : n_panels((p.dk + kPanelDepth - 1) / kPanelDepth),
        n_folds((p.dk + kFoldDepth - 1) / kFoldDepth * (kMaxTree / kFoldRows)) {}
  LB_DEVICE int per_chunk() const { return n_panels + 2 + n_folds; }
  LB_DEVICE int in_all(int n_chunks) const { return n_chunks * per_chunk() - n_folds; }

  template <int kPadded>
  LB_DEVICE void stage(const DeltaWork& p, const Slice& slice, int tile, float* to) const {
    const int chunk = tile / per_chunk(), i = tile % per_chunk(), fold = i - n_panels - 2;
    if (i < n_panels)
      stage_panel<kPadded>(p.op, chunk, slice.k_head, i * kPanelDepth, to);
    else if (fold < 0)
      stage_matrix<kPadded>(chunk_work(p, chunk, slice.v_head) + (i - n_panels) * kMaxTree * kMaxTree, to);
    else
      stage_fold(p.op, chunk, slice.k_head, fold / 2 * kFoldDepth, fold % 2 * kFoldRows, to);
  }
};
static_assert(kMaxTree == 2 * kFoldRows);

// A thread's part of a chunk's [kPadded, kColumns] results: four columns of every kRowLanes-th row.
template <int kColumns, int kPadded>
struct ChunkTile {
  static constexpr int kColumnLanes = kColumns / 4, kRowLanes = kChunkThreads / kColumnLanes;
  static constexpr int kRows = kPadded / kRowLanes;
  static_assert(kRows * kRowLanes == kPadded);
  using Sums = float[kRows][4];

  int row = thread_id() / kColumnLanes, column = thread_id() % kColumnLanes * 4;

  // k_state += k S and q_state += q S, over the kPanelDepth values of a panel. state: [kPanelDepth, kColumns].
  LB_DEVICE void add_state(const float* panel, const float* state, Sums& k_state, Sums& q_state) const {
    LB_UNROLL_BY(2)
    for (int d = 0; d < kPanelDepth; d += 4) {
      f32x4 s[4];
      LB_UNROLL
      for (int e = 0; e < 4; ++e) s[e] = load<f32x4>(state + (d + e) * kColumns + column);
      LB_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const f32x4 k = load<f32x4>(panel + (row + i * kRowLanes) * kPanelStride + d);
        const f32x4 q = load<f32x4>(panel + (kPadded + row + i * kRowLanes) * kPanelStride + d);
        LB_UNROLL
        for (int e = 0; e < 4; ++e) {
          LB_UNROLL
          for (int c = 0; c < 4; ++c) {
            k_state[i][c] = fma(k[e], s[e][c], k_state[i][c]);
            q_state[i][c] = fma(q[e], s[e][c], q_state[i][c]);
          }
        }
      }
    }
  }

  // sums += matrix x. matrix [kPadded, kPadded] is zero above its diagonal blocks; x: [kPadded, kColumns].
  LB_DEVICE void add_lower(const float* matrix, const float* x, Sums& sums) const {
    LB_UNROLL
    for (int b = 0; b < kRows; ++b) {
      LB_UNROLL_BY(2)
      for (int j = b * kRowLanes; j < (b + 1) * kRowLanes; j += 4) {
        f32x4 v[4];
        LB_UNROLL
        for (int e = 0; e < 4; ++e) v[e] = load<f32x4>(x + (j + e) * kColumns + column);
        LB_UNROLL
        for (int i = b; i < kRows; ++i) {
          const f32x4 m = load<f32x4>(matrix + (row + i * kRowLanes) * Padded<kPadded>::kStride + j);
          LB_UNROLL
          for (int e = 0; e < 4; ++e) {
            LB_UNROLL
            for (int c = 0; c < 4; ++c) sums[i][c] = fma(m[e], v[e][c], sums[i][c]);
          }
        }
      }
    }
  }
};

// S <- decay S + sum_j k_j delta_j^T for a full chunk of 64 rows. state: S [dk, kColumns] in shared memory; deltas
// [64, kColumns], already weighted by e^{cs_63 - cs_j}.
template <int kColumns, class Tiles>
LB_DEVICE void fold_chunk(const GatedDelta& p, float decay, const float* deltas, Tiles& tiles, float* state) {
  constexpr int kColumnLanes = kColumns / 4, kApart = kChunkThreads / kColumnLanes * 4, kBlocks = kFoldDepth / kApart;
  const int column = thread_id() % kColumnLanes * 4, own_d = thread_id() / kColumnLanes * 4;
  for (int d0 = own_d; d0 - own_d < p.dk; d0 += kFoldDepth) {
    f32x4 s[kBlocks][4] = {};
    LB_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      if (d0 + b * kApart >= p.dk) continue;
      LB_UNROLL
      for (int e = 0; e < 4; ++e) {
        s[b][e] = load<f32x4>(state + (d0 + b * kApart + e) * kColumns + column);
        LB_UNROLL
        for (int c = 0; c < 4; ++c) s[b][e][c] *= decay;
      }
    }
    for (int first_row = 0; first_row < kMaxTree; first_row += kFoldRows) {
      const float* keys = tiles.take() + own_d;
      LB_UNROLL_BY(4)
      for (int row = 0; row < kFoldRows; ++row) {
        const f32x4 delta = load<f32x4>(deltas + (first_row + row) * kColumns + column);
        LB_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
          const f32x4 k = load<f32x4>(keys + row * kFoldStride + b * kApart);
          LB_UNROLL
          for (int e = 0; e < 4; ++e) {
            LB_UNROLL
            for (int c = 0; c < 4; ++c) s[b][e][c] = fma(k[e], delta[c], s[b][e][c]);
          }
        }
      }
      block_barrier();
    }
    LB_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      if (d0 + b * kApart >= p.dk) continue;
      LB_UNROLL
      for (int e = 0; e < 4; ++e) store(state + (d0 + b * kApart + e) * kColumns + column, s[b][e]);
    }
  }
}

// Loads the block's slice of S to shared memory, [depth, kColumns], with zeros beyond S. If there are accepted rows (n
// > 0), folds them first and writes S back.
template <int kColumns>
LB_DEVICE void open_state(const GatedDelta& p, const Slice& slice, int n, Path* path, int depth, float* state) {
  const Fold fold = read_path(p, slice.v_head, n, path);
  for (int d = slice.row_lane; d < depth; d += kSliceRows * slice.n_row_lanes) {
    StateRows<1> s;
    read_state(p, slice, d, s);
    if (fold.n > 0) {
      fold_path(p, slice, fold, path, d, s);
      write_state(p, slice, d, s);
    }
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i)
      if (d + i * slice.n_row_lanes < depth)
        store(state + (d + i * slice.n_row_lanes) * kColumns + slice.column - slice.first_column, s[0][i]);
  }
}

LB_DEVICE f32x4 vector_of(const float (&v)[4]) { return {v[0], v[1], v[2], v[3]}; }

template <int kColumns, int kPadded>
LB_DEVICE void run_chunks(const DeltaWork& p, float* memory, Path* path) {
  using Tile = ChunkTile<kColumns, kPadded>;
  const GatedDelta& op = p.op;
  const int n_chunks = n_chunks_of(op);
  const Slice slice = slice_of_thread<kColumns>(op);
  const ChunkTiles order(op);
  const int depth = order.n_panels * kPanelDepth;
  float* buffers = memory;
  float* deltas = buffers + kRingFloats;        // [64, kColumns]
  float* state = deltas + kMaxTree * kColumns;  // [depth, kColumns]

  // S and the accepted rows may be read before wait_for_previous(): they are older than the pairs kernel, which lets
  // this kernel start only after everything before it is done. For a long chain, the fold kernel has already folded
  // them.
  open_state<kColumns>(op, slice, n_chunks == 1 ? n_accepted(op) : 0, path, depth, state);
  wait_for_previous();
  dependents_may_launch();
  auto tiles = ring_of<kPadded>(buffers, order.in_all(n_chunks),
                                [&](int i, float* to) { order.template stage<kPadded>(p, slice, i, to); });

  const Tile tile;
  const long row_values = long(op.n_v_heads) * op.dv;  // between rows of o and of delta
  const long head_offset = long(slice.v_head) * op.dv + slice.column;
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    const bool is_last = chunk == n_chunks - 1;
    const int rows = rows_of_chunk(op, chunk);
    const float* cs = chunk_work(p, chunk, slice.v_head) + 2 * kMaxTree * kMaxTree;
    f32x4 v[Tile::kRows];
    float own_cs[Tile::kRows];
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = tile.row + i * Tile::kRowLanes;
      own_cs[i] = cs[row];
      v[i] = {};
      if (row < rows && slice.is_inside)
        v[i] = load<f32x4>(op.v + (long(chunk) * kMaxTree + row) * op.row_stride + head_offset);
    }
    const float last_cs = is_last ? 0.0f : cs[kMaxTree - 1];

    float k_state[Tile::kRows][4] = {}, out[Tile::kRows][4] = {};
    for (int d = 0; d < depth; d += kPanelDepth) {
      tile.add_state(tiles.take(), state + d * kColumns, k_state, out);
      block_barrier();
    }
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const float decay = exp_nonpositive(own_cs[i]);
      LB_UNROLL
      for (int c = 0; c < 4; ++c) {
        v[i][c] -= decay * k_state[i][c];
        out[i][c] *= decay;
      }
      store(deltas + (tile.row + i * Tile::kRowLanes) * kColumns + tile.column, v[i]);
    }

    float delta[Tile::kRows][4] = {};
    tile.add_lower(tiles.take(), deltas, delta);
    block_barrier();
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = tile.row + i * Tile::kRowLanes;
      const f32x4 own = vector_of(delta[i]);
      store(deltas + row * kColumns + tile.column, own);
      if (is_last && row < rows && slice.is_inside) store(op.delta + row * row_values + head_offset, own);
    }
    tile.add_lower(tiles.take(), deltas, out);
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = tile.row + i * Tile::kRowLanes;
      if (row < rows && slice.is_inside)
        store(op.o + (long(chunk) * kMaxTree + row) * row_values + head_offset, vector_of(out[i]));
    }
    if (is_last) break;

    block_barrier();  // all threads have read the deltas
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const float weight = exp_nonpositive(last_cs - own_cs[i]);
      LB_UNROLL
      for (int c = 0; c < 4; ++c) delta[i][c] *= weight;
      store(deltas + (tile.row + i * Tile::kRowLanes) * kColumns + tile.column, vector_of(delta[i]));
    }
    fold_chunk<kColumns>(op, exp_nonpositive(last_cs), deltas, tiles, state);
  }
  if (n_chunks == 1) return;
  for (int d = slice.row_lane; d < op.dk; d += slice.n_row_lanes)  // take() has barriers: all threads have folded
    if (slice.is_inside)
      store(op.S + (long(slice.v_head) * op.dk + d) * op.dv + slice.column,
            load<f32x4>(state + d * kColumns + slice.column - slice.first_column));
}

}  // namespace lb::gpu
