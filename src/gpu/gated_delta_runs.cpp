// Gated DeltaNet over runs of up to 64 rows (equations in ops/delta_net.h), in two kernels. With A_ij = beta_i E_ij
// (k_i.k_j) for strict ancestors j of i and M = (I + A)^-1, a run is
//   delta = M beta (v - e^cs S^T k)        o = e^cs S^T q + P delta,  P_ij = E_ij (q_i.k_j) for ancestors or i itself
//   gated_delta_pairs_kernel  a block a run of a value head: M diag(beta), P and cs, which need no S, so all runs of a
//                             long chain at once; also leaves the last run's keys and cs pending
//   gated_delta_runs_kernel   a block a slice of columns of a value head: its part of S stays in shared memory, run
//                             after run, each folding the one before. S is read and written once an append.
// Everything fp32. Rows are padded to a multiple of 32 with zeros.
// Bound: arithmetic, 64 (128 + 128 + 128 + 64) dv multiply-adds a run and value head at dk = 128, and 64 x 256 for the
// pairs. A sum of products runs over what two threads in a row of the grid have in common: rows of threads 16 apart, so
// that 16-byte reads of a warp fall into different banks.
#include "dialect.h"

#include "gated_delta.h"

namespace lb::gpu {

inline constexpr int kPairStride = kMaxTree + 4;  // of a 64 x 64 matrix in shared memory

LB_DEVICE int padded_rows(int rows) { return (rows + 31) / 32 * 32; }
LB_DEVICE int rows_of_run(const GatedDelta& p, int run) { return min(kMaxTree, p.rows - run * kMaxTree); }
LB_DEVICE float* work_of(const DeltaWork& p, int run, int v_head) {
  return p.work + (long(run) * p.op.n_v_heads + v_head) * kPairFloats;
}

// Keys of a run into rows [0, padded), queries into rows [64, 64 + padded) of a panel: kPanelDepth values from d on,
// zeros beyond the last row and the head. Asynchronous.
LB_DEVICE void stage_panel(const GatedDelta& p, int run, int k_head, int d, float* panel) {
  constexpr int kParts = kPanelDepth / 4;
  const int rows = rows_of_run(p, run), padded = padded_rows(rows);
  for (int i = thread_id(); i < 2 * padded * kParts; i += n_threads()) {
    const int part = i % kParts * 4, pair = i / kParts;
    const bool is_query = pair >= padded;
    const int row = is_query ? pair - padded : pair;
    float* to = panel + ((is_query ? kMaxTree : 0) + row) * kPanelStride + part;
    const float* from = (is_query ? p.q : p.k) + (long(run) * kMaxTree + row) * p.row_stride + long(k_head) * p.dk;
    if (row < rows && d + part < p.dk)
      copy_async<16>(to, from + d + part);
    else
      store(to, f32x4{});
  }
}

// ---- pairs

// The sums k_i.k_j and q_i.k_j for rows i = row + 16 a, j = column + 16 b, b <= a.
struct PairSums {
  float kk[4][4] = {}, qk[4][4] = {};

  LB_DEVICE void add(const float* panel, int n_groups) {
    const float* rows = panel + thread_id() / 16 * kPanelStride;
    const float* columns = panel + thread_id() % 16 * kPanelStride;
    for (int d = 0; d < kPanelDepth; d += 4) {
      f32x4 b[4];
      LB_UNROLL
      for (int j = 0; j < 4; ++j)
        if (j < n_groups) b[j] = load<f32x4>(columns + 16 * j * kPanelStride + d);
      LB_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i >= n_groups) continue;
        const f32x4 k = load<f32x4>(rows + 16 * i * kPanelStride + d);
        const f32x4 q = load<f32x4>(rows + (kMaxTree + 16 * i) * kPanelStride + d);
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
LB_DEVICE void invert(const float* a, float* inverse, float* sums, int n_groups) {
  if (thread_id() < 16 * n_groups) {
    const int block = thread_id() / 16 * 16, column = thread_id() % 16;
    float x[16];
    LB_UNROLL
    for (int i = 0; i < 16; ++i) {
      x[i] = i == column ? 1.0f : 0.0f;
      LB_UNROLL
      for (int l = 0; l < i; ++l) x[i] = fma(-load<float>(a + (block + i) * kPairStride + block + l), x[l], x[i]);
      store(inverse + (block + i) * kPairStride + block + column, x[i]);
    }
  }
  block_barrier();
  const int row = thread_id() / 16, column = thread_id() % 16;
  for (int b = 1; b < n_groups; ++b) {
    const float* of_row = a + (16 * b + row) * kPairStride;
    for (int j = 0; j < b; ++j) {
      float sum = 0;
      for (int l = 16 * j; l < 16 * b; ++l)
        sum = fma(load<float>(of_row + l), load<float>(inverse + l * kPairStride + 16 * j + column), sum);
      store(sums + row * 48 + 16 * j + column, sum);
    }
    block_barrier();
    float* to = inverse + (16 * b + row) * kPairStride;
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

LB_KERNEL(gated_delta_pairs_kernel, DeltaWork, kPairThreads, 1) {
  LB_SHARED(f32x4, panel_memory, kBufferFloats / 4);
  LB_SHARED(f32x4, a_memory, kMaxTree * kPairStride / 4);
  LB_SHARED(float, sums_memory, 16 * 48);
  LB_SHARED(float, g, kMaxTree);
  LB_SHARED(float, beta, kMaxTree);
  LB_SHARED(float, cs, kMaxTree);
  wait_for_previous();
  dependents_may_launch();  // after the wait: who starts then may rely on all that lies before this kernel
  const GatedDelta& op = p.op;
  const int v_head = block_id(), run = block_id_y(), k_head = key_head(op, v_head);
  const int rows = rows_of_run(op, run), padded = padded_rows(rows), n_groups = padded / 16;
  float* panel = reinterpret_cast<float*>(&panel_memory[0]);
  float* a = reinterpret_cast<float*>(&a_memory[0]);

  const int i = thread_id();
  if (i < kMaxTree) {
    const long at = (long(run) * kMaxTree + i) * op.n_v_heads + v_head;
    g[i] = i < rows ? op.g[at] : 0.0f;
    beta[i] = i < rows ? op.beta[at] : 0.0f;
  }
  block_barrier();
  if (i < kMaxTree) {  // in the order of a sum from the root on
    const uint64_t seen = i < rows && op.tree.ancestors ? op.tree.ancestors[i] : ~uint64_t{0} >> (63 - i);
    float sum = 0;
    for (int j = 0; j < padded; ++j) {
      const float decay = g[j];
      if (seen >> j & 1) sum += decay;
    }
    cs[i] = sum;
  }

  PairSums products;
  for (int d = 0; d < op.dk; d += kPanelDepth) {
    stage_panel(op, run, k_head, d, panel);
    copy_commit();
    copy_wait<0>();
    block_barrier();
    products.add(panel, n_groups);
    block_barrier();
  }

  float* scaled_inverse = work_of(p, run, v_head);
  float* pairs = scaled_inverse + kMaxTree * kMaxTree;
  float* cs_of_run = pairs + kMaxTree * kMaxTree;
  LB_UNROLL
  for (int n = 0; n < 4; ++n) {
    if (n >= n_groups) continue;
    const int row = thread_id() / 16 + 16 * n;
    const uint64_t seen = row >= rows ? 0 : op.tree.ancestors ? op.tree.ancestors[row] : ~uint64_t{0} >> (63 - row);
    const float own_cs = cs[row], own_beta = beta[row];
    LB_UNROLL
    for (int m = 0; m < 4; ++m) {
      if (m >= n_groups) continue;
      const int column = thread_id() % 16 + 16 * m;
      const float other = cs[column];
      // Masked before the exponential: pairs that are not on one path have exponents of any size.
      const float decay = m <= n && (seen >> column & 1) ? exp_nonpositive(own_cs - other) : 0.0f;
      pairs[row * kMaxTree + column] = decay * products.qk[n][m];
      store(a + row * kPairStride + column, row == column ? 0.0f : own_beta * decay * products.kk[n][m]);
    }
  }
  block_barrier();
  float* inverse = panel;
  static_assert(kBufferFloats >= kMaxTree * kPairStride);
  float* sums = sums_memory;
  invert(a, inverse, sums, n_groups);
  for (int at = thread_id(); at < padded * padded; at += n_threads()) {
    const int row = at / padded, column = at % padded;
    const float scale = beta[column];
    scaled_inverse[row * kMaxTree + column] =
        column / 16 > row / 16 ? 0.0f : scale * load<float>(inverse + row * kPairStride + column);
  }
  if (i < padded) cs_of_run[i] = cs[i];

  const int n_runs = n_runs_of(op);
  if (run != n_runs - 1) return;
  const int out = buffer_after(op, n_runs);
  if (i < rows) cs_in(op, out)[long(i) * op.n_v_heads + v_head] = cs[i];
  if (!is_first_of_key_head(op, v_head)) return;
  for (int at = thread_id(); at < rows * op.dk; at += n_threads()) {
    const int row = at / op.dk, d = at % op.dk;
    keys_in(op, out)[(long(row) * op.n_k_heads + k_head) * op.dk + d] =
        op.k[(long(run) * kMaxTree + row) * op.row_stride + long(k_head) * op.dk + d];
  }
}

// ---- runs

// Steps 0 to n - 1, each staged into one of two buffers while the one before is used.
template <class Stage, class Use>
LB_DEVICE void pipeline(int n, float* buffers, Stage&& stage, Use&& use) {
  stage(0, buffers);
  copy_commit();
  for (int i = 0; i < n; ++i) {
    if (i + 1 < n) stage(i + 1, buffers + (i + 1) % 2 * kBufferFloats);
    copy_commit();
    copy_wait<1>();
    block_barrier();
    use(i, buffers + i % 2 * kBufferFloats);
    block_barrier();
  }
}

// A matrix of the work memory into shared memory. Asynchronous.
LB_DEVICE void stage_matrix(const float* from, int n, float* to) {
  for (int i = thread_id(); i < n * n / 4; i += n_threads()) {
    const int row = i / (n / 4), column = i % (n / 4) * 4;
    copy_async<16>(to + row * kPairStride + column, from + row * kMaxTree + column);
  }
}

// The rows and columns of a run's results that a thread makes: four columns, and every kRowLanes-th row.
template <int kColumns>
struct RunTile {
  static constexpr int kColumnLanes = kColumns / 4, kRowLanes = kRunThreads / kColumnLanes;
  static constexpr int kRows = kMaxTree / kRowLanes;
  static_assert(kRowLanes <= 32, "rows are padded to a multiple of 32");
  using Sums = float[kRows][4];

  int row = thread_id() / kColumnLanes, column = thread_id() % kColumnLanes * 4;

  // k_state += (rows of keys)^T S, q_state likewise, over the depth of a panel.
  LB_DEVICE void add_state(const float* panel, const float* state, int n_groups, Sums& k_state, Sums& q_state) const {
    for (int d = 0; d < kPanelDepth; d += 4) {
      f32x4 s[4];
      LB_UNROLL
      for (int e = 0; e < 4; ++e) s[e] = load<f32x4>(state + (d + e) * kColumns + column);
      LB_UNROLL
      for (int i = 0; i < kRows; ++i) {
        if (i >= n_groups) continue;
        const f32x4 k = load<f32x4>(panel + (row + i * kRowLanes) * kPanelStride + d);
        const f32x4 q = load<f32x4>(panel + (kMaxTree + row + i * kRowLanes) * kPanelStride + d);
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
  LB_DEVICE void add_lower(const float* matrix, const float* x, int n_groups, Sums& sums) const {
    LB_UNROLL
    for (int b = 0; b < kRows; ++b) {
      if (b >= n_groups) continue;
      for (int j = b * kRowLanes; j < (b + 1) * kRowLanes; j += 4) {
        f32x4 v[4];
        LB_UNROLL
        for (int e = 0; e < 4; ++e) v[e] = load<f32x4>(x + (j + e) * kColumns + column);
        LB_UNROLL
        for (int i = b; i < kRows; ++i) {
          if (i >= n_groups) continue;
          const f32x4 m = load<f32x4>(matrix + (row + i * kRowLanes) * kPairStride + j);
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

inline constexpr int kFoldDepth = 128, kFoldRows = 32;  // a panel of the fold: so many rows of keys, so deep
inline constexpr int kFoldStride = kFoldDepth + 4;

LB_DEVICE void stage_fold(const GatedDelta& p, int run, int k_head, int d0, int first_row, float* panel) {
  constexpr int kParts = kFoldDepth / 4;
  for (int i = thread_id(); i < kFoldRows * kParts; i += n_threads()) {
    const int row = i / kParts, d = d0 + i % kParts * 4;
    if (d < p.dk)
      copy_async<16>(panel + row * kFoldStride + d - d0,
                     p.k + (long(run) * kMaxTree + first_row + row) * p.row_stride + long(k_head) * p.dk + d);
  }
}

// A whole run of 64 rows into S [dk, kColumns] in shared memory; deltas [64, kColumns] are weighted.
template <int kColumns>
LB_DEVICE void fold_run(const GatedDelta& p, int run, int k_head, float decay, const float* deltas, float* buffers,
                        float* state) {
  constexpr int kColumnLanes = kColumns / 4, kApart = kRunThreads / kColumnLanes * 4, kTiles = kFoldDepth / kApart;
  const int column = thread_id() % kColumnLanes * 4, of_panel = thread_id() / kColumnLanes * 4;
  constexpr int kPanels = kMaxTree / kFoldRows;
  const int n_depths = (p.dk + kFoldDepth - 1) / kFoldDepth;
  f32x4 s[kTiles][4] = {};
  pipeline(
      n_depths * kPanels, buffers,
      [&](int i, float* panel) {
        stage_fold(p, run, k_head, i / kPanels * kFoldDepth, i % kPanels * kFoldRows, panel);
      },
      [&](int i, const float* panel) {
        const int d0 = i / kPanels * kFoldDepth + of_panel;
        LB_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          if (i % kPanels > 0 || d0 + t * kApart >= p.dk) continue;
          LB_UNROLL
          for (int e = 0; e < 4; ++e) {
            s[t][e] = load<f32x4>(state + (d0 + t * kApart + e) * kColumns + column);
            LB_UNROLL
            for (int c = 0; c < 4; ++c) s[t][e][c] *= decay;
          }
        }
        for (int row = 0; row < kFoldRows; ++row) {
          const f32x4 delta = load<f32x4>(deltas + (i % kPanels * kFoldRows + row) * kColumns + column);
          LB_UNROLL
          for (int t = 0; t < kTiles; ++t) {
            const f32x4 k = load<f32x4>(panel + row * kFoldStride + of_panel + t * kApart);
            LB_UNROLL
            for (int e = 0; e < 4; ++e) {
              LB_UNROLL
              for (int c = 0; c < 4; ++c) s[t][e][c] = fma(k[e], delta[c], s[t][e][c]);
            }
          }
        }
        LB_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          if (i % kPanels < kPanels - 1 || d0 + t * kApart >= p.dk) continue;
          LB_UNROLL
          for (int e = 0; e < 4; ++e) store(state + (d0 + t * kApart + e) * kColumns + column, s[t][e]);
        }
      });
}

template <int kColumns>
LB_DEVICE void gated_delta_runs(const DeltaWork& p, float* state, float* cs, Path* path) {
  using Tile = RunTile<kColumns>;
  const GatedDelta& op = p.op;
  const int n_runs = n_runs_of(op);
  const Place at = place_in_slice<kColumns>(op);
  const int depth = (op.dk + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
  float* buffers = state + depth * kColumns;
  float* deltas = buffers + 2 * kBufferFloats;  // [64, kColumns]

  // S and the accepted rows are the previous append's, or a kernel's before the pairs, which let this one start only
  // when all before them was done. A long chain has folded already.
  const Fold fold = read_path(op, at.v_head, n_runs == 1 ? n_accepted(op) : 0, path);
  for (int d = at.row_lane; d < depth; d += kSliceRows * at.n_row_lanes) {
    f32x4 s[kSliceRows];
    read_state(op, at, d, s);
    if (fold.n > 0) {
      fold_path(op, at, fold, path, d, s);
      write_state(op, at, d, s);
    }
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i)
      if (d + i * at.n_row_lanes < depth)
        store(state + (d + i * at.n_row_lanes) * kColumns + at.column - at.first_column, s[i]);
  }
  wait_for_previous();
  dependents_may_launch();

  const Tile tile;
  const long row_values = long(op.n_v_heads) * op.dv;  // of o and of delta
  const long of_head = long(at.v_head) * op.dv + at.column;
  for (int run = 0; run < n_runs; ++run) {
    const bool is_last = run == n_runs - 1;
    const int rows = rows_of_run(op, run), padded = padded_rows(rows), n_groups = padded / Tile::kRowLanes;
    const float* work = work_of(p, run, at.v_head);
    f32x4 v[Tile::kRows];
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = tile.row + i * Tile::kRowLanes;
      v[i] = {};
      if (row < rows && at.is_inside) v[i] = load<f32x4>(op.v + (long(run) * kMaxTree + row) * op.row_stride + of_head);
    }
    if (thread_id() < padded) store(cs + thread_id(), work[2 * kMaxTree * kMaxTree + thread_id()]);

    float k_state[Tile::kRows][4] = {}, q_state[Tile::kRows][4] = {};
    pipeline(
        depth / kPanelDepth, buffers,
        [&](int i, float* panel) { stage_panel(op, run, at.k_head, i * kPanelDepth, panel); },
        [&](int i, const float* panel) {
          tile.add_state(panel, state + i * kPanelDepth * kColumns, n_groups, k_state, q_state);
        });

    float* inverse = buffers;
    float* pairs = buffers + kBufferFloats;
    stage_matrix(work, padded, inverse);
    stage_matrix(work + kMaxTree * kMaxTree, padded, pairs);
    copy_commit();
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      if (i >= n_groups) continue;
      const int row = tile.row + i * Tile::kRowLanes;
      const float decay = exp_nonpositive(load<float>(cs + row));
      LB_UNROLL
      for (int c = 0; c < 4; ++c) {
        v[i][c] -= decay * k_state[i][c];
        q_state[i][c] *= decay;
      }
      store(deltas + row * kColumns + tile.column, v[i]);
    }
    copy_wait<0>();
    block_barrier();
    float delta[Tile::kRows][4] = {};
    tile.add_lower(inverse, deltas, n_groups, delta);
    block_barrier();
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      if (i >= n_groups) continue;
      const int row = tile.row + i * Tile::kRowLanes;
      f32x4 own;
      LB_UNROLL
      for (int c = 0; c < 4; ++c) own[c] = delta[i][c];
      store(deltas + row * kColumns + tile.column, own);
      if (is_last && row < rows && at.is_inside) store(op.delta + row * row_values + of_head, own);
    }
    block_barrier();
    tile.add_lower(pairs, deltas, n_groups, q_state);
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = tile.row + i * Tile::kRowLanes;
      f32x4 out;
      LB_UNROLL
      for (int c = 0; c < 4; ++c) out[c] = q_state[i][c];
      if (row < rows && at.is_inside) store(op.o + (long(run) * kMaxTree + row) * row_values + of_head, out);
    }
    if (is_last) break;

    block_barrier();  // the deltas were read
    const float last = load<float>(cs + kMaxTree - 1);
    LB_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = tile.row + i * Tile::kRowLanes;
      const float weight = exp_nonpositive(last - load<float>(cs + row));
      f32x4 weighted;
      LB_UNROLL
      for (int c = 0; c < 4; ++c) weighted[c] = weight * delta[i][c];
      store(deltas + row * kColumns + tile.column, weighted);
    }
    fold_run<kColumns>(op, run, at.k_head, exp_nonpositive(last), deltas, buffers, state);
  }
  if (n_runs == 1) return;
  for (int d = at.row_lane; d < op.dk; d += at.n_row_lanes)
    if (at.is_inside)
      store(op.S + (long(at.v_head) * op.dk + d) * op.dv + at.column,
            load<f32x4>(state + d * kColumns + at.column - at.first_column));
}

LB_KERNEL(gated_delta_runs16_kernel, DeltaWork, kRunThreads, 1) {
  LB_SHARED(float, cs, kMaxTree);
  LB_SHARED(Path, path, 1);
  gated_delta_runs<16>(p, dynamic_shared<float>(), cs, &path[0]);
}
LB_KERNEL(gated_delta_runs32_kernel, DeltaWork, kRunThreads, 1) {
  LB_SHARED(float, cs, kMaxTree);
  LB_SHARED(Path, path, 1);
  gated_delta_runs<32>(p, dynamic_shared<float>(), cs, &path[0]);
}

}  // namespace lb::gpu
