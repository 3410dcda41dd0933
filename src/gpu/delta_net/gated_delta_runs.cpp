// Gated DeltaNet over runs of up to 64 rows (equations in ops/delta_net.h), in two kernels. With A_ij = beta_i E_ij
// (k_i.k_j) for strict ancestors j of i and M = (I + A)^-1, a run is
//   delta = M beta (v - e^cs S^T k)        o = e^cs S^T q + P delta,  P_ij = E_ij (q_i.k_j) for ancestors or i itself
//   gated_delta_pairs_kernel  a block a run of a value head: M diag(beta), P and cs, which need no S, so all runs of a
//                             long chain at once; also leaves the last run's keys and cs pending
//   gated_delta_runs_kernel   a block a slice of columns of a value head: its part of S stays in shared memory, run
//                             after run, each folding the one before. S is read and written once an append.
// Everything fp32. Rows are padded with zeros: to 32 where an append has no more, else to 64.
//
// Tiles pass through a ring of buffers, copied while those before them are used. Threads in a row of tiles are 16 or
// more rows apart, so that the 16-byte reads of a warp fall into different banks.
// Bound: arithmetic, 64 (128 + 128 + 128 + 64) dv multiply-adds a run and value head at dk = 128, and 64 x 256 for the
// pairs.
#include "dialect.h"

#include "gpu/delta_net/gated_delta.h"

namespace lb::gpu {

LB_DEVICE int rows_of_run(const GatedDelta& p, int run) { return min(kMaxTree, p.rows - run * kMaxTree); }
LB_DEVICE float* work_of(const DeltaWork& p, int run, int v_head) {
  return p.work + (long(run) * p.op.n_v_heads + v_head) * kPairFloats;
}
// Row i itself and its ancestors, one bit each.
LB_DEVICE uint64_t seen_by(const Tree& tree, int i) {
  return tree.ancestors ? tree.ancestors[i] : ~uint64_t{0} >> (63 - i);
}

// Sizes that follow from how many rows a run has been padded to.
template <int kPadded>
struct Padded {
  static constexpr int kGroups = kPadded / 16;
  static constexpr int kStride = kPadded + 4;                     // of a square matrix in shared memory
  static constexpr int kTileFloats = 2 * kPadded * kPanelStride;  // keys and queries of a panel
  static constexpr int kDepth = kRingFloats / kTileFloats;        // of the ring
  static_assert(kPadded * kStride <= kTileFloats);
};

// Tiles 0 to n - 1 in their order, each staged kDepth - 1 tiles ahead.
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
  // The next tile. A barrier stands between its last use and the next call.
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

// Keys of a run and below them its queries, kPanelDepth values from d on; zeros beyond the last row and the head.
template <int kPadded>
LB_DEVICE void stage_panel(const GatedDelta& p, int run, int k_head, int d, float* panel) {
  constexpr int kParts = kPanelDepth / 4;
  const int rows = rows_of_run(p, run);
  for (int i = thread_id(); i < 2 * kPadded * kParts; i += n_threads()) {
    const int part = i % kParts * 4, row = i / kParts % kPadded;
    float* to = panel + i / kParts * kPanelStride + part;
    const float* from = i < kPadded * kParts ? p.k : p.q;
    if (row < rows && d + part < p.dk)
      copy_async<16>(to, from + (long(run) * kMaxTree + row) * p.row_stride + long(k_head) * p.dk + d + part);
    else
      store(to, f32x4{});
  }
}

// ---- pairs

// The sums k_i.k_j and q_i.k_j for rows i = row + 16 a, j = column + 16 b, b <= a.
template <int kPadded>
struct PairSums {
  static constexpr int kGroups = Padded<kPadded>::kGroups;
  float kk[kGroups][kGroups] = {}, qk[kGroups][kGroups] = {};

  LB_DEVICE void add(const float* panel) {
    const float* rows = panel + thread_id() / 16 * kPanelStride;
    const float* columns = panel + thread_id() % 16 * kPanelStride;
    LB_UNROLL_BY(2)
    for (int d = 0; d < kPanelDepth; d += 4) {
      f32x4 b[kGroups];
      LB_UNROLL
      for (int j = 0; j < kGroups; ++j) b[j] = load<f32x4>(columns + 16 * j * kPanelStride + d);
      LB_UNROLL
      for (int i = 0; i < kGroups; ++i) {
        const f32x4 k = load<f32x4>(rows + 16 * i * kPanelStride + d);
        const f32x4 q = load<f32x4>(rows + (kPadded + 16 * i) * kPanelStride + d);
        LB_UNROLL
        for (int j = 0; j <= i; ++j) {
          LB_UNROLL
          for (int e = 0; e < 4; ++e) {
            kk[i][j] = fma(k[e], b[j][e], kk[i][j]);
            qk[i][j] = fma(q[e], b[j][e], qk[i][j]);
          }
        }
      }
    }
  }
};

// inverse <- (I + a)^-1 for a strictly lower triangular, 16 columns and rows at a time: first the blocks on the
// diagonal, a column a thread; then row of blocks b: X_bj = -X_bb sum_l a_bl X_lj. sums: [16, 48]. 256 threads.
template <int kPadded>
LB_DEVICE void invert(const float* a, float* inverse, float* sums) {
  constexpr int kStride = Padded<kPadded>::kStride;
  if (thread_id() < kPadded) {
    const int block = thread_id() / 16 * 16, column = thread_id() % 16;
    float x[16];
    LB_UNROLL
    for (int i = 0; i < 16; ++i) {
      x[i] = i == column ? 1.0f : 0.0f;
      LB_UNROLL
      for (int l = 0; l < i; ++l) x[i] = fma(-load<float>(a + (block + i) * kStride + block + l), x[l], x[i]);
      store(inverse + (block + i) * kStride + block + column, x[i]);
    }
  }
  block_barrier();
  const int row = thread_id() / 16, column = thread_id() % 16;
  for (int b = 1; b < Padded<kPadded>::kGroups; ++b) {
    const float* of_row = a + (16 * b + row) * kStride;
    for (int j = 0; j < b; ++j) {
      float sum = 0;
      for (int l = 16 * j; l < 16 * b; ++l)
        sum = fma(load<float>(of_row + l), load<float>(inverse + l * kStride + 16 * j + column), sum);
      store(sums + row * 48 + 16 * j + column, sum);
    }
    block_barrier();
    float* to = inverse + (16 * b + row) * kStride;
    for (int j = 0; j < b; ++j) {
      float sum = 0;
      LB_UNROLL
      for (int l = 0; l < 16; ++l)
        sum = fma(load<float>(to + 16 * b + l), load<float>(sums + l * 48 + 16 * j + column), sum);
      store(to + 16 * j + column, -sum);
    }
    block_barrier();
  }
}

// Shared by the block: of each row.
struct Gates {
  float g[kMaxTree], beta[kMaxTree], cs[kMaxTree];
};

// Every thread of the block; the barrier behind it is the caller's.
LB_DEVICE void read_gates(const GatedDelta& p, int run, int v_head, Gates* gates) {
  const int i = thread_id(), rows = rows_of_run(p, run);
  if (i < kMaxTree) {
    const long at = (long(run) * kMaxTree + i) * p.n_v_heads + v_head;
    store(&gates->g[i], i < rows ? p.g[at] : 0.0f);
    store(&gates->beta[i], i < rows ? p.beta[at] : 0.0f);
  }
  block_barrier();
  if (i >= kMaxTree) return;
  const uint64_t seen = i < rows ? seen_by(p.tree, i) : 0;
  float sum = 0;
  for (int j = 0; j < rows; ++j) {  // from the root on, as a row adds its own to its parent's
    const float g = load<float>(&gates->g[j]);
    if (seen >> j & 1) sum += g;
  }
  store(&gates->cs[i], sum);
}

// The last run's keys and cs, for the next append.
LB_DEVICE void leave_pending(const GatedDelta& p, int run, int v_head, int k_head, const Gates* gates) {
  const int out = buffer_after(p, run + 1), rows = rows_of_run(p, run), i = thread_id();
  if (i < rows) cs_in(p, out)[long(i) * p.n_v_heads + v_head] = load<float>(&gates->cs[i]);
  if (!is_first_of_key_head(p, v_head)) return;
  const int parts = p.dk / 4;
  for (int at = i; at < rows * parts; at += n_threads()) {
    const int row = at / parts, d = at % parts * 4;
    store(keys_in(p, out) + (long(row) * p.n_k_heads + k_head) * p.dk + d,
          load<f32x4>(p.k + (long(run) * kMaxTree + row) * p.row_stride + long(k_head) * p.dk + d));
  }
}

template <int kPadded>
LB_DEVICE void make_pairs(const DeltaWork& p, float* buffers, float* sums, Gates* gates) {
  constexpr int kGroups = Padded<kPadded>::kGroups, kStride = Padded<kPadded>::kStride;
  const GatedDelta& op = p.op;
  const int v_head = block_id(), run = block_id_y(), k_head = key_head(op, v_head), rows = rows_of_run(op, run);
  const int n_panels = (op.dk + kPanelDepth - 1) / kPanelDepth;
  auto panels = ring_of<kPadded>(buffers, n_panels,
                                 [&](int i, float* to) { stage_panel<kPadded>(op, run, k_head, i * kPanelDepth, to); });
  read_gates(op, run, v_head, gates);
  PairSums<kPadded> products;
  for (int i = 0; i < n_panels; ++i) {
    products.add(panels.take());
    block_barrier();
  }

  float* a = buffers;  // the panels are used up
  float* inverse = buffers + Padded<kPadded>::kTileFloats;
  float* scaled_inverse = work_of(p, run, v_head);
  float* pairs = scaled_inverse + kMaxTree * kMaxTree;
  LB_UNROLL
  for (int n = 0; n < kGroups; ++n) {
    const int row = thread_id() / 16 + 16 * n;
    const uint64_t seen = row < rows ? seen_by(op.tree, row) : 0;
    const float cs = load<float>(&gates->cs[row]), beta = load<float>(&gates->beta[row]);
    LB_UNROLL
    for (int m = 0; m < kGroups; ++m) {
      const int column = thread_id() % 16 + 16 * m;
      float kk = 0, qk = 0;
      if (m <= n && (seen >> column & 1)) {
        // Only here: pairs that are not on one path have exponents of any size.
        const float decay = exp_nonpositive(cs - load<float>(&gates->cs[column]));
        kk = row == column ? 0.0f : beta * decay * products.kk[n][m];
        qk = decay * products.qk[n][m];
      }
      pairs[row * kMaxTree + column] = qk;
      store(a + row * kStride + column, kk);
    }
  }
  block_barrier();
  invert<kPadded>(a, inverse, sums);
  for (int at = thread_id(); at < kPadded * kPadded; at += n_threads()) {
    const int row = at / kPadded, column = at % kPadded;
    scaled_inverse[row * kMaxTree + column] =
        column / 16 > row / 16 ? 0.0f
                               : load<float>(inverse + row * kStride + column) * load<float>(&gates->beta[column]);
  }
  if (thread_id() < kPadded) pairs[kMaxTree * kMaxTree + thread_id()] = load<float>(&gates->cs[thread_id()]);
  if (run == n_runs_of(op) - 1) leave_pending(op, run, v_head, k_head, gates);
}

LB_KERNEL(gated_delta_pairs_kernel, DeltaWork, kPairThreads, 2) {
  LB_SHARED(f32x4, buffers, kRingFloats / 4);
  LB_SHARED(float, sums, 16 * 48);
  LB_SHARED(Gates, gates, 1);
  wait_for_previous();
  dependents_may_launch();  // after the wait: who starts then may rely on all that lies before this kernel
  float* memory = reinterpret_cast<float*>(&buffers[0]);
  if (p.op.rows <= 32)
    make_pairs<32>(p, memory, sums, &gates[0]);
  else
    make_pairs<64>(p, memory, sums, &gates[0]);
}

// ---- runs

// A matrix of the work memory.
template <int kPadded>
LB_DEVICE void stage_matrix(const float* from, float* to) {
  constexpr int kParts = kPadded / 4;
  for (int i = thread_id(); i < kPadded * kParts; i += n_threads())
    copy_async<16>(to + i / kParts * Padded<kPadded>::kStride + i % kParts * 4,
                   from + i / kParts * kMaxTree + i % kParts * 4);
}

inline constexpr int kFoldDepth = 128, kFoldRows = 32;  // a tile of the fold: so many rows of keys, so deep
inline constexpr int kFoldStride = kFoldDepth + 4;
static_assert(kFoldRows * kFoldStride <= Padded<kMaxTree>::kTileFloats);

LB_DEVICE void stage_fold(const GatedDelta& p, int run, int k_head, int d0, int first_row, float* tile) {
  constexpr int kParts = kFoldDepth / 4;
  for (int i = thread_id(); i < kFoldRows * kParts; i += n_threads()) {
    const int row = i / kParts, d = d0 + i % kParts * 4;
    if (d < p.dk)
      copy_async<16>(tile + row * kFoldStride + d - d0,
                     p.k + (long(run) * kMaxTree + first_row + row) * p.row_stride + long(k_head) * p.dk + d);
  }
}

// The tiles that a run reads, one after another: panels of keys and queries, M diag(beta), P, and keys again to fold.
struct RunTiles {
  int n_panels, n_folds;
  LB_DEVICE explicit RunTiles(const GatedDelta& p)
      : n_panels((p.dk + kPanelDepth - 1) / kPanelDepth),
        n_folds((p.dk + kFoldDepth - 1) / kFoldDepth * (kMaxTree / kFoldRows)) {}
  LB_DEVICE int of_a_run() const { return n_panels + 2 + n_folds; }
  LB_DEVICE int of_all(int n_runs) const { return n_runs * of_a_run() - n_folds; }

  template <int kPadded>
  LB_DEVICE void stage(const DeltaWork& p, const Place& at, int tile, float* to) const {
    const int run = tile / of_a_run(), i = tile % of_a_run(), fold = i - n_panels - 2;
    if (i < n_panels)
      stage_panel<kPadded>(p.op, run, at.k_head, i * kPanelDepth, to);
    else if (fold < 0)
      stage_matrix<kPadded>(work_of(p, run, at.v_head) + (i - n_panels) * kMaxTree * kMaxTree, to);
    else
      stage_fold(p.op, run, at.k_head, fold / 2 * kFoldDepth, fold % 2 * kFoldRows, to);
  }
};
static_assert(kMaxTree == 2 * kFoldRows);

// The rows and columns of a run's results that a thread makes: four columns, and every kRowLanes-th row.
template <int kColumns, int kPadded>
struct RunTile {
  static constexpr int kColumnLanes = kColumns / 4, kRowLanes = kRunThreads / kColumnLanes;
  static constexpr int kRows = kPadded / kRowLanes;
  static_assert(kRows * kRowLanes == kPadded);
  using Sums = float[kRows][4];

  int row = thread_id() / kColumnLanes, column = thread_id() % kColumnLanes * 4;

  // k_state += (rows of keys)^T S, q_state likewise, over the depth of a panel.
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

  // sums += matrix x, for a matrix that is zero above the diagonal blocks.
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

// A whole run of 64 rows into S [dk, kColumns] in shared memory; deltas [64, kColumns] are weighted.
template <int kColumns, class Tiles>
LB_DEVICE void fold_run(const GatedDelta& p, float decay, const float* deltas, Tiles& tiles, float* state) {
  constexpr int kColumnLanes = kColumns / 4, kApart = kRunThreads / kColumnLanes * 4, kBlocks = kFoldDepth / kApart;
  const int column = thread_id() % kColumnLanes * 4, of_tile = thread_id() / kColumnLanes * 4;
  for (int d0 = of_tile; d0 - of_tile < p.dk; d0 += kFoldDepth) {
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
      const float* keys = tiles.take() + of_tile;
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

// The block's slice of S into shared memory [depth, kColumns], zeros beyond it; with `n` accepted rows folded, and then
// also written back.
template <int kColumns>
LB_DEVICE void open_state(const GatedDelta& p, const Place& at, int n, Path* path, int depth, float* state) {
  const Fold fold = read_path(p, at.v_head, n, path);
  for (int d = at.row_lane; d < depth; d += kSliceRows * at.n_row_lanes) {
    f32x4 s[kSliceRows];
    read_state(p, at, d, s);
    if (fold.n > 0) {
      fold_path(p, at, fold, path, d, s);
      write_state(p, at, d, s);
    }
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i)
      if (d + i * at.n_row_lanes < depth)
        store(state + (d + i * at.n_row_lanes) * kColumns + at.column - at.first_column, s[i]);
  }
}

LB_DEVICE f32x4 vector_of(const float (&v)[4]) { return {v[0], v[1], v[2], v[3]}; }

template <int kColumns, int kPadded>
LB_DEVICE void run_all(const DeltaWork& p, float* memory, Path* path) {
  using Tile = RunTile<kColumns, kPadded>;
  const GatedDelta& op = p.op;
  const int n_runs = n_runs_of(op);
  const Place at = place_in_slice<kColumns>(op);
  const RunTiles order(op);
  const int depth = order.n_panels * kPanelDepth;
  float* buffers = memory;
  float* deltas = buffers + kRingFloats;        // [64, kColumns]
  float* state = deltas + kMaxTree * kColumns;  // [depth, kColumns]

  // S and the accepted rows are the previous append's, or a kernel's before the pairs, which let this one start only
  // when all before them was done. A long chain has folded already.
  open_state<kColumns>(op, at, n_runs == 1 ? n_accepted(op) : 0, path, depth, state);
  wait_for_previous();
  dependents_may_launch();
  auto tiles = ring_of<kPadded>(buffers, order.of_all(n_runs),
                                [&](int i, float* to) { order.template stage<kPadded>(p, at, i, to); });

  const Tile tile;
  const long row_values = long(op.n_v_heads) * op.dv;  // of o and of delta
  const long of_head = long(at.v_head) * op.dv + at.column;
  for (int run = 0; run < n_runs; ++run) {
    const bool is_last = run == n_runs - 1;
    const int rows = rows_of_run(op, run);
    const float* cs = work_of(p, run, at.v_head) + 2 * kMaxTree * kMaxTree;
    f32x4 v[Tile::kRows];
    float own_cs[Tile::kRows];
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = tile.row + i * Tile::kRowLanes;
      own_cs[i] = cs[row];
      v[i] = {};
      if (row < rows && at.is_inside) v[i] = load<f32x4>(op.v + (long(run) * kMaxTree + row) * op.row_stride + of_head);
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
      if (is_last && row < rows && at.is_inside) store(op.delta + row * row_values + of_head, own);
    }
    tile.add_lower(tiles.take(), deltas, out);
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = tile.row + i * Tile::kRowLanes;
      if (row < rows && at.is_inside)
        store(op.o + (long(run) * kMaxTree + row) * row_values + of_head, vector_of(out[i]));
    }
    if (is_last) break;

    block_barrier();  // the deltas were read
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const float weight = exp_nonpositive(last_cs - own_cs[i]);
      LB_UNROLL
      for (int c = 0; c < 4; ++c) delta[i][c] *= weight;
      store(deltas + (tile.row + i * Tile::kRowLanes) * kColumns + tile.column, vector_of(delta[i]));
    }
    fold_run<kColumns>(op, exp_nonpositive(last_cs), deltas, tiles, state);
  }
  if (n_runs == 1) return;
  for (int d = at.row_lane; d < op.dk; d += at.n_row_lanes)  // all have folded: a tile was taken since
    if (at.is_inside)
      store(op.S + (long(at.v_head) * op.dk + d) * op.dv + at.column,
            load<f32x4>(state + d * kColumns + at.column - at.first_column));
}

LB_KERNEL(gated_delta_runs16_kernel, DeltaWork, kRunThreads, 1) {
  LB_SHARED(Path, path, 1);
  if (p.op.rows <= 32)
    run_all<16, 32>(p, dynamic_shared<float>(), &path[0]);
  else
    run_all<16, 64>(p, dynamic_shared<float>(), &path[0]);
}
LB_KERNEL(gated_delta_runs32_kernel, DeltaWork, kRunThreads, 1) {
  LB_SHARED(Path, path, 1);
  if (p.op.rows <= 32)
    run_all<32, 32>(p, dynamic_shared<float>(), &path[0]);
  else
    run_all<32, 64>(p, dynamic_shared<float>(), &path[0]);
}

}  // namespace lb::gpu
