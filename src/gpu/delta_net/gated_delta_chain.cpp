// Gated DeltaNet over long chains on matrix units, dk = 128, in chunks of 64 rows (equations in ops/delta_net.h and,
// with M and P, in gated_delta_chunks.cpp). Two kernels:
//   gated_delta_chain_pairs_kernel  a block per chunk and key head: keys and queries as operands; for each of its value
//                                   heads M diag(beta), P, e^cs and the weights of rows in the fold
//   gated_delta_chain_kernel        a block per 32 columns of a value head's S, chunk after chunk
// Operands are two bf16 parts (split_bf16.h). Sums, S, gates and the inverse are fp32.
//
// All products of the chain are transposed (S^T K^T and so on). The operand that changes between products (S, the
// residual v - e^cs S^T k, delta) is then the small one, [32 columns, k]. The other operand is the tiles shared by all
// columns, which a block reads from shared memory once. A warp handles a quarter of the rows, or of S, for all 32
// columns. The next chunk's tiles are copied as soon as their buffer is free. Keys are used first and last, so they are
// double-buffered.
// Bound: matrix units, 3 x 64 (3 x 128 + 2 x 40) dv multiply-adds per chunk and value head; 93 KiB of tiles per chunk
// and block.
// Needs: 192 KiB of shared memory
#include "dialect.h"

#include "gpu/delta_net/chain_pairs.h"
#include "gpu/delta_net/chain_tiles.h"

namespace lb::gpu {

LB_KERNEL(gated_delta_chain_pairs_kernel, DeltaWork, kChainPairThreads, 2) {
  LB_SHARED(ChainGates, shared_gates, 1);
  ChainGates* gates = &shared_gates[0];
  unsigned char* memory = dynamic_shared<unsigned char>();
  const GatedDelta& op = p.op;
  const int k_head = block_id(), chunk = block_id_y(), rows = rows_of_chunk(op, chunk);
  wait_for_previous();
  dependents_may_launch();  // after the wait, so dependents may rely on everything older than this kernel
  split_rows(p, chunk, k_head, memory);
  block_barrier();

  // A warp computes 16 rows of k_i.k_j or of q_i.k_j. The long rows of the two products go to different schedulers.
  const int i = thread_id();
  const bool is_query = warp() >= 4;
  const int block = is_query ? 7 - warp() : warp();
  const KeyRows keys(memory), own(memory + (is_query ? KeyRows::kBytes : 0));
  FragmentC products[4];
  if (block == 0) multiply_rows<1>(products, own, keys);
  if (block == 1) multiply_rows<2>(products, own, keys);
  if (block == 2) multiply_rows<3>(products, own, keys);
  if (block == 3) multiply_rows<4>(products, own, keys);

  // Reuses the operands' space.
  float* a = reinterpret_cast<float*>(memory);
  float* pairs = a + kMaxTree * kMatrixStride;
  float* inverse = pairs + kMaxTree * kMatrixStride;
  float* sums = inverse + kMaxTree * kMatrixStride;
  const int n_value_heads = op.n_v_heads / op.n_k_heads;
  for (int n = 0; n < n_value_heads; ++n) {
    const int v_head = op.order == HeadOrder::kGrouped ? k_head * n_value_heads + n : k_head + n * op.n_k_heads;
    block_barrier();  // all threads are done with the previous value head
    if (i < kMaxTree) {
      const long at = (long(chunk) * kMaxTree + i) * op.n_v_heads + v_head;
      store(&gates->g[i], i < rows ? op.g[at] : 0.0f);
      store(&gates->beta[i], i < rows ? op.beta[at] : 0.0f);
    }
    block_barrier();
    if (i < kMaxTree) {
      float sum = 0;
      LB_UNROLL_BY(16)
      for (int j = 0; j < kMaxTree; ++j) {
        const float g = load<float>(&gates->g[j]);
        sum += j <= i ? g : 0.0f;
      }
      store(&gates->cs[i], sum);
      if (chunk == n_chunks_of(op) - 1 && i < rows)
        cs_in(op, buffer_after(op, chunk + 1))[long(i) * op.n_v_heads + v_head] = sum;
    }
    block_barrier();
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      if (j > block) continue;
      for_each(products[j], [&](int row_of_block, int column_of_block, float product) {
        const int row = 16 * block + row_of_block, column = 16 * j + column_of_block;
        float x = 0;
        if (column < row || (is_query && column == row)) {
          x = exp_nonpositive(load<float>(&gates->cs[row]) - load<float>(&gates->cs[column])) * product;
          if (!is_query) x *= load<float>(&gates->beta[row]);
        }
        store((is_query ? pairs : a) + row * kMatrixStride + column, x);
      });
    }
    block_barrier();
    bf16* work = pairs_work(p, chunk, v_head);
    if (i < kMaxTree) {
      invert_blocks(a, inverse);
      const float cs = load<float>(&gates->cs[i]);
      gates_work(work)[i] = exp_nonpositive(cs);
      gates_work(work)[kMaxTree + i] = exp_nonpositive(load<float>(&gates->cs[kMaxTree - 1]) - cs);
    } else {
      clear_above(inverse, kMaxTree);
      for (int unit = i - kMaxTree; unit < kUnits; unit += kChainPairThreads - kMaxTree)
        if (is_lower(unit)) write_lower(work + 2 * kPairValues, pairs, unit, {1, 1, 1, 1});
    }
    block_barrier();
    invert_below(a, inverse, sums);
    for (int unit = i; unit < kUnits; unit += kChainPairThreads)
      if (is_lower(unit)) write_lower(work, inverse, unit, load<f32x4>(&gates->beta[unit % 16 * 4]));
  }
}

// Warps 0 to 3 advance S: each computes a quarter of the rows of the residual and delta, then a quarter of S. Meanwhile
// warps 4 to 7 compute o.
LB_KERNEL(gated_delta_chain_kernel, DeltaWork, kChainThreads, 1) {
  const ChainMemory memory = {dynamic_shared<unsigned char>()};
  const GatedDelta& op = p.op;
  const int v_head = block_id_y(), first_column = block_id() * kChainColumns, n_chunks = n_chunks_of(op);
  const ChainTiles tiles = {p, memory, v_head, key_head(op, v_head), first_column, n_chunks};
  const long row_values = long(op.n_v_heads) * op.dv;  // between rows of o and of delta
  const long head_offset = long(v_head) * op.dv + first_column;
  const bool has_state = warp() < 4;
  const int block = warp() % 4, first_row = 16 * block, first_d = 32 * block;

  // The fold kernel has folded accepted rows into S. It is older than the pairs kernel, which lets this kernel start
  // only after everything before it is done. S may therefore be read before wait_for_previous().
  FragmentC state[kColumnTiles][2];  // S^T: 32 of its dk columns
  float* S = op.S + long(v_head) * kChainDk * op.dv + first_column;
  const auto each_of_state = [&](auto&& visit) {
    LB_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) {
      LB_UNROLL
      for (int h = 0; h < 2; ++h)
        for_each(state[c][h], [&](int column, int d, float& s) {
          visit(S + long(first_d + 16 * h + d) * op.dv + 16 * c + column, s);
        });
    }
  };
  const auto put_state = [&] {
    LB_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) {
      LB_UNROLL
      for (int h = 0; h < 2; ++h) write(memory.state(), 16 * c, first_d + 16 * h, state[c][h]);
    }
  };
  if (has_state) {
    each_of_state([](const float* from, float& s) { s = *from; });
    put_state();
  }
  wait_for_previous();
  dependents_may_launch();
  tiles.keys(0);
  tiles.queries_and_values(0);
  tiles.inverse(0);

  for (int chunk = 0;; ++chunk) {
    const bool is_last = chunk == n_chunks - 1;
    const int rows = rows_of_chunk(op, chunk);
    const KeyRows keys = memory.keys(chunk);
    copy_wait<1>();  // all copies except the inverse's
    block_barrier();
    tiles.pairs(chunk);
    tiles.keys(chunk + 1);

    Sums sums;  // S^T k, then the residual; in warps 4 to 7, S^T q, then o
    LB_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) fill(sums[c], 0);
    const KeyRows own(has_state ? keys.high : memory.queries().high);
    LB_UNROLL_BY(4)
    for (int d = 0; d < kChainDk; d += 16) {
      OperandB b;
      read(b, own, first_row, d);
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c) {
        OperandA s;
        read(s, memory.state(), 16 * c, d);
        add_product(sums[c], s, b);
      }
    }
    const float* decays = memory.gates(chunk) + first_row;
    LB_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) {
      for_each(sums[c], [&](int, int row, float& x) { x *= load<float>(decays + row); });
      if (!has_state) continue;
      for_each(sums[c], [&](int column, int row, float& x) {
        x = load<float>(memory.values() + (first_row + row) * kValueStride + 16 * c + column) - x;
      });
      write(memory.residual(), 16 * c, first_row, sums[c]);
    }
    copy_wait<2>();  // the inverse has arrived
    block_barrier();
    tiles.queries_and_values(chunk + 1);

    if (has_state) {
      Sums delta;
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c) fill(delta[c], 0);
      add_lower(delta, memory.residual(), memory.inverse(), block);
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c) {
        write(memory.delta(), 16 * c, first_row, delta[c]);
        if (is_last) {
          for_each(delta[c], [&](int column, int row, float x) {
            if (first_row + row < rows) op.delta[(first_row + row) * row_values + head_offset + 16 * c + column] = x;
          });
        } else {
          for_each(delta[c], [&](int, int row, float& x) { x *= load<float>(decays + kMaxTree + row); });
          write(memory.weighted(), 16 * c, first_row, delta[c]);
        }
      }
    }
    copy_wait<2>();  // P has arrived
    block_barrier();
    tiles.inverse(chunk + 1);

    if (!has_state) {
      add_lower(sums, memory.delta(), memory.pairs(), block);
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c)
        for_each(sums[c], [&](int column, int row, float x) {
          if (first_row + row < rows)
            op.o[(long(chunk) * kMaxTree + first_row + row) * row_values + head_offset + 16 * c + column] = x;
        });
    }
    if (is_last) break;
    if (!has_state) continue;

    const float decay = load<float>(memory.gates(chunk) + kMaxTree - 1);
    each_of_state([&](const float*, float& s) { s *= decay; });
    LB_UNROLL
    for (int k = 0; k < kMaxTree; k += 16) {
      OperandB b[2];
      LB_UNROLL
      for (int h = 0; h < 2; ++h) read_transposed(b[h], keys, k, first_d + 16 * h);
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c) {
        OperandA a;
        read(a, memory.weighted(), 16 * c, k);
        LB_UNROLL
        for (int h = 0; h < 2; ++h) add_product(state[c][h], a, b[h]);
      }
    }
    put_state();
  }
  if (has_state) each_of_state([](float* to, float s) { *to = s; });
}

}  // namespace lb::gpu
