// Gated DeltaNet of up to 32 rows, a tree or a chain, one by one: a row has the bits of a step after its parent, and a
// path folds as steps would fold it (GatedDelta::by_row). Without rows: only the fold.
//
// A block holds a slice of 16 columns of one value head's S in registers, as in gated_delta_step. A row that follows
// the previous one folds that row into the registers. A row on another branch rereads the committed S and folds its
// ancestors. S itself only takes the accepted path.
// Bound: latency, a reduction and a barrier per row; 8 dk dv bytes per value head.
#include "dialect.h"

#include "gpu/batched.h"
#include "gpu/delta_net/gated_delta.h"
#include "gpu/delta_net/step_sums.h"

namespace lb::gpu {

// Rows in shared memory. deltas: [rows][kStepColumns] of the block's columns.
struct alignas(16) RowsMemory {
  float decays[kByRowRows], betas[kByRowRows], k_dot_q[kByRowRows];
  int32_t parents[kByRowRows];
  float v[kByRowRows * kStepColumns], deltas[kByRowRows * kStepColumns];
  float sums[2 * kStepThreads / 32 * kStepSums];  // double-buffered: one barrier per row
};

// A thread's four rows of a key.
struct KeyPart {
  float d[kSliceRows];
  LB_DEVICE KeyPart(const float* key, const Slice& slice, int dk) {
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      const int at = slice.row_lane + i * slice.n_row_lanes;
      d[i] = at < dk ? key[at] : 0.0f;
    }
  }
};

// S <- decay S + k delta^T
LB_DEVICE void fold_row(StateRows<1>& s, float decay, const KeyPart& key, const f32x4& delta) {
  LB_UNROLL
  for (int i = 0; i < kSliceRows; ++i) {
    LB_UNROLL
    for (int c = 0; c < 4; ++c) s[0][i][c] = fma(key.d[i], delta[c], decay * s[0][i][c]);
  }
}

// Folds the accepted path of the previous append, oldest row first.
LB_DEVICE void fold_accepted(const GatedDelta& op, const Slice& slice, int n, StateRows<1>& s) {
  const int buffer = buffer_after(op, 0);
  for (int i = 0; i < n; ++i) {
    const long row = op.accepted.path[i];
    f32x4 delta = {};
    if (slice.is_inside) delta = load<f32x4>(op.delta + (row * op.n_v_heads + slice.v_head) * op.dv + slice.column);
    const KeyPart key(keys_in(op, buffer) + (row * op.n_k_heads + slice.k_head) * op.dk, slice, op.dk);
    fold_row(s, exp_nonpositive(cs_in(op, buffer)[row * op.n_v_heads + slice.v_head]), key, delta);
  }
}

// Brings what does not depend on S to shared memory, and writes pending keys and gates. Ends with a barrier.
LB_DEVICE void bring_rows(const GatedDelta& op, const Slice& slice, RowsMemory* memory) {
  const int out = buffer_after(op, 1);
  for (int row = warp(); row < op.rows; row += n_warps()) {
    const float* k = op.k + row * op.row_stride + long(slice.k_head) * op.dk;
    const float* q = op.q + row * op.row_stride + long(slice.k_head) * op.dk;
    float k_dot_q = 0;
    for (int d = lane(); d < op.dk; d += 32) k_dot_q = fma(k[d], q[d], k_dot_q);
    k_dot_q = warp_sum(k_dot_q);
    const int column = slice.first_column + lane();
    if (lane() < kStepColumns)
      store(&memory->v[row * kStepColumns + lane()],
            column < op.dv ? op.v[row * op.row_stride + long(slice.v_head) * op.dv + column] : 0.0f);
    if (lane() == 0) {
      const long gate = long(row) * op.n_v_heads + slice.v_head;
      const float g = op.g[gate];
      store(&memory->decays[row], exp_nonpositive(g));
      store(&memory->betas[row], op.beta[gate]);
      store(&memory->k_dot_q[row], k_dot_q);
      store(&memory->parents[row], int32_t(op.tree.parent ? max(op.tree.parent[row], -1) : row - 1));
      if (slice.first_column == 0) cs_in(op, out)[gate] = g;
    }
    if (slice.first_column == 0 && is_first_of_key_head(op, slice.v_head))
      for (int d = lane(); d < op.dk; d += 32)
        keys_in(op, out)[(long(row) * op.n_k_heads + slice.k_head) * op.dk + d] = k[d];
  }
  block_barrier();
}

LB_DEVICE void gated_delta_rows(const GatedDelta& op, RowsMemory* memory) {
  if (op.rows == 0) wait_for_previous();  // no DeltaInputs precedes a fold
  const Slice slice = slice_of_thread<kStepColumns>(op);
  const int n = n_accepted(op);
  StateRows<1> s;
  read_state(op, slice, slice.row_lane, s);
  fold_accepted(op, slice, n, s);
  if (n > 0) write_state(op, slice, slice.row_lane, s);
  if (op.rows == 0) return;
  wait_for_previous();
  dependents_may_launch();
  bring_rows(op, slice, memory);

  const auto part_of = [&](const float* from, int row) {
    return KeyPart(from + row * op.row_stride + long(slice.k_head) * op.dk, slice, op.dk);
  };
  const int own_columns = thread_id() % kLanesOfRow * 4;  // of the slice
  KeyPart key = part_of(op.k, 0), query = part_of(op.q, 0);
  for (int row = 0;;) {
    float both[8] = {};  // S^T k of four columns, then S^T q of them
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      LB_UNROLL
      for (int c = 0; c < 4; ++c) {
        both[c] = fma(key.d[i], s[0][i][c], both[c]);
        both[4 + c] = fma(query.d[i], s[0][i][c], both[4 + c]);
      }
    }
    float* sums = memory->sums + row % 2 * (kStepThreads / 32 * kStepSums);
    sum_over_warp(both, sums + warp() * kStepSums);
    const int next = min(row + 1, op.rows - 1);
    const KeyPart next_key = part_of(op.k, next), next_query = part_of(op.q, next);
    block_barrier();

    float state = 0;  // every warp adds the sums, so no second barrier is needed
    for (int w = 0; w < n_warps(); ++w) state += load<float>(&sums[w * kStepSums + lane()]);
    const float q_state = shuffle_xor(state, kStepColumns);  // lanes 0 to 15 have S^T k, 16 to 31 S^T q
    const float decay = load<float>(&memory->decays[row]);
    const int at = row * kStepColumns + lane() % kStepColumns, column = slice.first_column + lane();
    const float own = load<float>(&memory->betas[row]) * (load<float>(&memory->v[at]) - decay * state);
    f32x4 delta;
    LB_UNROLL
    for (int c = 0; c < 4; ++c) delta[c] = shuffle(own, own_columns + c);
    if (warp() == 0 && lane() < kStepColumns) {
      store(&memory->deltas[at], own);
      if (column < op.dv) {
        const long to = (long(row) * op.n_v_heads + slice.v_head) * op.dv + column;
        op.delta[to] = own;
        op.o[to] = fma(load<float>(&memory->k_dot_q[row]), own, decay * q_state);
      }
    }
    if (++row == op.rows) return;

    const int parent = load<int32_t>(&memory->parents[row]);
    if (parent == row - 1) {
      fold_row(s, decay, key, delta);
    } else {
      uint32_t path = 0;  // bit mask of the ancestors
      for (int i = parent; i >= 0; i = load<int32_t>(&memory->parents[i])) path |= 1u << i;
      read_state(op, slice, slice.row_lane, s);
      for (int i = 0; i <= parent; ++i)
        if (path >> i & 1)
          fold_row(s, load<float>(&memory->decays[i]), part_of(op.k, i),
                   load<f32x4>(&memory->deltas[i * kStepColumns + own_columns]));
    }
    key = next_key, query = next_query;
  }
}

LB_KERNEL(gated_delta_rows_kernel, DeltaWork, kStepThreads, 1) {
  LB_SHARED(RowsMemory, memory, 1);
  gated_delta_rows(p.op, &memory[0]);
}
LB_KERNEL(gated_delta_rows_kernel_batched, Batched<GatedDelta>, kStepThreads, 1) {
  LB_SHARED(RowsMemory, memory, 1);
  gated_delta_rows(p.of[block_id_z()], &memory[0]);
}

}  // namespace lb::gpu
