// Gated DeltaNet over a long chain of 64-row runs on matrix units (equations in ops/delta_net.h), where keys have 128
// values. The two kernels are those of gated_delta_runs.cpp in another form:
//   gated_delta_chain_pairs_kernel  a block a run of a key head: its keys and queries as operands, and for each of its
//                                   value heads M diag(beta), P, e^cs and what a row weighs in the fold
//   gated_delta_chain_kernel        a block 32 columns of a value head's S, run after run
// Operands are two bf16 numbers (delta_parts.h); sums, S, gates and the inverse are fp32.
//
// All products of the chain are made transposed, S^T K^T and so on: what changes from product to product, S, v - e^cs
// S^T k and delta, is the small operand [32 columns, k], and the tiles that all columns share are the operand from
// memory. A warp has a quarter of the rows, or of S, for all 32 columns. Tiles of the next run are copied as soon as
// their place is free; keys, which are used first and last, have two places.
// Bound: matrix units, 3 x 64 (3 x 128 + 2 x 40) dv multiply-adds a run and value head; 93 KiB of tiles a run and
// block.
// Needs: 192 KiB of shared memory
#include "dialect.h"

#include "gpu/delta_net/gated_delta.h"
#include "gpu/delta_net/split_bf16.h"

namespace lb::gpu {

static_assert(kChainKey == 128 && kChainColumns == 32 && kMaxTree == 64);

using KeyRows = Parts<kMaxTree, kChainKey>;
using Square = Parts<kMaxTree, kMaxTree>;
using State = Parts<kChainColumns, kChainKey>;      // S^T
using ColumnRows = Parts<kChainColumns, kMaxTree>;  // of v and delta, transposed

// ---- the work memory

LB_DEVICE int chain_rows(const GatedDelta& p, int run) { return min(kMaxTree, p.rows - run * kMaxTree); }
// [4][64, 128]: keys, high and low, queries, high and low.
LB_DEVICE bf16* rows_work(const DeltaWork& p, int run, int k_head) {
  return reinterpret_cast<bf16*>(p.work + (long(run) * p.op.n_k_heads + k_head) * kChainRowFloats);
}
// [4][64, 64]: M diag(beta), high and low, P, high and low; blocks of 16 above the diagonal are never written or read.
// Then [2][64] fp32: e^cs, e^{cs_63 - cs}.
LB_DEVICE bf16* pairs_work(const DeltaWork& p, int run, int v_head) {
  const long n_runs = n_runs_of(p.op);
  return reinterpret_cast<bf16*>(p.work + n_runs * p.op.n_k_heads * kChainRowFloats +
                                 (long(run) * p.op.n_v_heads + v_head) * kChainPairFloats);
}
inline constexpr int kRowsValues = kMaxTree * kChainKey, kPairValues = kMaxTree * kMaxTree;
static_assert(kChainRowFloats == 2 * kRowsValues && kChainPairFloats == 2 * kPairValues + 2 * kMaxTree);

LB_DEVICE float* gates_work(bf16* pairs) { return reinterpret_cast<float*>(pairs + 4 * kPairValues); }

// ---- pairs

inline constexpr int kMatrixStride = kMaxTree + 4;  // of a square matrix of fp32 in shared memory
inline constexpr int kSumStride = 32 + 4;
static_assert(kChainPairsBytes == 2 * KeyRows::kBytes);
static_assert((3 * kMaxTree * kMatrixStride + 32 * kSumStride) * int(sizeof(float)) <= kChainPairsBytes);

struct alignas(16) ChainGates {
  float g[kMaxTree], beta[kMaxTree], cs[kMaxTree];
};

// Keys and queries of a run into shared memory, one behind the other, and into the work memory, zeros beyond the last
// row; the last run's keys also stay for the next append.
LB_DEVICE void split_rows(const DeltaWork& p, int run, int k_head, unsigned char* memory) {
  const GatedDelta& op = p.op;
  constexpr int kUnits = kChainKey / 4, kEach = 2 * kMaxTree * kUnits / kChainPairThreads;
  const int rows = chain_rows(op, run);
  const bool is_last = run == n_runs_of(op) - 1;
  float* pending = keys_in(op, buffer_after(op, run + 1));
  bf16* work = rows_work(p, run, k_head);
  LB_UNROLL_BY(8)
  for (int i = 0; i < kEach; ++i) {
    const int unit = thread_id() + i * kChainPairThreads, column = unit % kUnits * 4, row = unit / kUnits % kMaxTree;
    const bool is_key = unit < kMaxTree * kUnits;
    f32x4 x = {};
    if (row < rows)
      x = load<f32x4>((is_key ? op.k : op.q) + (long(run) * kMaxTree + row) * op.row_stride + k_head * kChainKey +
                      column);
    if (is_last && is_key && row < rows) store(pending + (long(row) * op.n_k_heads + k_head) * kChainKey + column, x);
    Vec<bf16, 4> high, low;
    part(x, high, low);
    bf16* to = KeyRows(memory + (is_key ? 0 : KeyRows::kBytes)).at(row, column);
    store(to, high);
    store(to + KeyRows::kLow, low);
    bf16* out = work + (is_key ? 0 : 2 * kRowsValues) + row * kChainKey + column;
    store(out, high);
    store(out + kRowsValues, low);
  }
}

// Four values of a matrix [64, 64] in parts.
LB_DEVICE void write_lower(bf16* to, const float* from, int unit, const f32x4& factor) {
  const int row = unit / 16, column = unit % 16 * 4;
  f32x4 x = load<f32x4>(from + row * kMatrixStride + column);
  LB_UNROLL
  for (int i = 0; i < 4; ++i) x[i] *= factor[i];
  Vec<bf16, 4> high, low;
  part(x, high, low);
  store(to + row * kMaxTree + column, high);
  store(to + kPairValues + row * kMaxTree + column, low);
}
LB_DEVICE bool is_lower(int unit) { return unit % 16 / 4 <= unit / 16 / 16; }
inline constexpr int kUnits = kMaxTree * kMaxTree / 4;

// inverse <- (I + a)^-1, blocks of 16 on the diagonal: a column a thread, 64 threads.
LB_DEVICE void invert_blocks(const float* a, float* inverse) {
  const int block = thread_id() / 16 * 16, column = thread_id() % 16;
  float x[16];
  LB_UNROLL
  for (int i = 0; i < 16; ++i) {
    x[i] = i == column ? 1.0f : 0.0f;
    LB_UNROLL
    for (int l = 0; l < i; ++l) x[i] = fma(-load<float>(a + (block + i) * kMatrixStride + block + l), x[l], x[i]);
    store(inverse + (block + i) * kMatrixStride + block + column, x[i]);
  }
}

// Zeros in the blocks above those on the diagonal that blocks of 32 have; threads from `first` on.
LB_DEVICE void clear_above(float* inverse, int first) {
  for (int i = thread_id() - first; i < 2 * 16 * 16; i += kChainPairThreads - first)
    store(inverse + (i / 256 * 32 + i / 16 % 16) * kMatrixStride + i / 256 * 32 + 16 + i % 16, 0.0f);
}

// y = sign b x of [kSize, kSize] blocks; a thread has every 16th row and column.
template <int kSize>
LB_DEVICE void multiply_blocks(const float* b, int b_stride, const float* x, int x_stride, float* y, int y_stride,
                               float sign) {
  constexpr int kEach = kSize / 16;
  const int row = thread_id() / 16, column = thread_id() % 16;
  float sums[kEach][kEach] = {};
  LB_UNROLL_BY(4)
  for (int l = 0; l < kSize; ++l) {
    float left[kEach], right[kEach];
    LB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      left[i] = load<float>(b + (row + 16 * i) * b_stride + l);
      right[i] = load<float>(x + l * x_stride + column + 16 * i);
    }
    LB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      LB_UNROLL
      for (int j = 0; j < kEach; ++j) sums[i][j] = fma(left[i], right[j], sums[i][j]);
    }
  }
  LB_UNROLL
  for (int i = 0; i < kEach; ++i) {
    LB_UNROLL
    for (int j = 0; j < kEach; ++j) store(y + (row + 16 * i) * y_stride + column + 16 * j, sign * sums[i][j]);
  }
}

// The blocks below those that are there: of [A 0; C B] the inverse has -B^-1 C A^-1 below, first for pairs of 16, then
// of 32.
LB_DEVICE void invert_below(const float* a, float* inverse, float* sums) {
  const auto below = [](int first, int size) { return (first + size) * kMatrixStride + first; };
  const auto diagonal = [](int first) { return first * (kMatrixStride + 1); };
  LB_UNROLL
  for (int first = 0; first < kMaxTree; first += 32)
    multiply_blocks<16>(a + below(first, 16), kMatrixStride, inverse + diagonal(first), kMatrixStride,
                        sums + first / 2 * kSumStride, kSumStride, 1);
  block_barrier();
  LB_UNROLL
  for (int first = 0; first < kMaxTree; first += 32)
    multiply_blocks<16>(inverse + diagonal(first + 16), kMatrixStride, sums + first / 2 * kSumStride, kSumStride,
                        inverse + below(first, 16), kMatrixStride, -1);
  block_barrier();
  multiply_blocks<32>(a + below(0, 32), kMatrixStride, inverse, kMatrixStride, sums, kSumStride, 1);
  block_barrier();
  multiply_blocks<32>(inverse + diagonal(32), kMatrixStride, sums, kSumStride, inverse + below(0, 32), kMatrixStride,
                      -1);
  block_barrier();
}

// The products of 16 rows, the last of kBlocks, with the rows up to their own.
template <int kBlocks>
LB_DEVICE void multiply_rows(FragmentC (&products)[4], const KeyRows& rows, const KeyRows& keys) {
  LB_UNROLL
  for (int j = 0; j < kBlocks; ++j) fill(products[j], 0);
  LB_UNROLL_BY(2)
  for (int d = 0; d < kChainKey; d += 16) {
    OperandA a;
    read(a, rows, 16 * (kBlocks - 1), d);
    LB_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      OperandB b;
      read(b, keys, 16 * j, d);
      add_product(products[j], a, b);
    }
  }
}

LB_KERNEL(gated_delta_chain_pairs_kernel, DeltaWork, kChainPairThreads, 2) {
  LB_SHARED(ChainGates, shared_gates, 1);
  ChainGates* gates = &shared_gates[0];
  unsigned char* memory = dynamic_shared<unsigned char>();
  const GatedDelta& op = p.op;
  const int k_head = block_id(), run = block_id_y(), rows = chain_rows(op, run);
  wait_for_previous();
  dependents_may_launch();  // after the wait: who starts then may rely on all that lies before this kernel
  split_rows(p, run, k_head, memory);
  block_barrier();

  // A warp has 16 rows of k_i.k_j, or of q_i.k_j; the long ones of both on different schedulers.
  const int i = thread_id();
  const bool is_query = warp() >= 4;
  const int block = is_query ? 7 - warp() : warp();
  const KeyRows keys(memory), own(memory + (is_query ? KeyRows::kBytes : 0));
  FragmentC products[4];
  if (block == 0) multiply_rows<1>(products, own, keys);
  if (block == 1) multiply_rows<2>(products, own, keys);
  if (block == 2) multiply_rows<3>(products, own, keys);
  if (block == 3) multiply_rows<4>(products, own, keys);

  // The operands are used up.
  float* a = reinterpret_cast<float*>(memory);
  float* pairs = a + kMaxTree * kMatrixStride;
  float* inverse = pairs + kMaxTree * kMatrixStride;
  float* sums = inverse + kMaxTree * kMatrixStride;
  const int n_value_heads = op.n_v_heads / op.n_k_heads;
  for (int n = 0; n < n_value_heads; ++n) {
    const int v_head = op.order == HeadOrder::kGrouped ? k_head * n_value_heads + n : k_head + n * op.n_k_heads;
    block_barrier();  // what was there was read
    if (i < kMaxTree) {
      const long at = (long(run) * kMaxTree + i) * op.n_v_heads + v_head;
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
      if (run == n_runs_of(op) - 1 && i < rows)
        cs_in(op, buffer_after(op, run + 1))[long(i) * op.n_v_heads + v_head] = sum;
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
    bf16* work = pairs_work(p, run, v_head);
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

// ---- the chain

inline constexpr int kValueStride = kChainColumns + 4;

// Where what lies in shared memory.
struct ChainMemory {
  static constexpr int kGateBytes = 2 * kMaxTree * int(sizeof(float));
  static constexpr int kValueBytes = kMaxTree * kValueStride * int(sizeof(float));
  static constexpr int kQueries = 2 * KeyRows::kBytes, kInverse = kQueries + KeyRows::kBytes,
                       kPairs = kInverse + Square::kBytes, kValues = kPairs + Square::kBytes,
                       kGates = kValues + kValueBytes, kState = kGates + 2 * kGateBytes, kRest = kState + State::kBytes,
                       kDelta = kRest + ColumnRows::kBytes, kWeighted = kDelta + ColumnRows::kBytes,
                       kAll = kWeighted + ColumnRows::kBytes;
  static_assert(kAll == kChainBytes);

  unsigned char* memory;
  LB_DEVICE KeyRows keys(int run) const { return KeyRows(memory + run % 2 * KeyRows::kBytes); }
  LB_DEVICE KeyRows queries() const { return KeyRows(memory + kQueries); }
  LB_DEVICE Square inverse() const { return Square(memory + kInverse); }
  LB_DEVICE Square pairs() const { return Square(memory + kPairs); }
  LB_DEVICE float* values() const { return reinterpret_cast<float*>(memory + kValues); }
  LB_DEVICE float* gates(int run) const { return reinterpret_cast<float*>(memory + kGates + run % 2 * kGateBytes); }
  LB_DEVICE State state() const { return State(memory + kState); }
  LB_DEVICE ColumnRows rest() const { return ColumnRows(memory + kRest); }
  LB_DEVICE ColumnRows delta() const { return ColumnRows(memory + kDelta); }
  LB_DEVICE ColumnRows weighted() const { return ColumnRows(memory + kWeighted); }
};

// Unrolled, so that all addresses are one and a constant.
LB_DEVICE void copy_rows(const KeyRows& to, const bf16* from) {
  constexpr int kPieces = kChainKey / 8, kRowsAtOnce = kChainThreads / kPieces;
  const int own_row = thread_id() / kPieces, column = thread_id() % kPieces * 8;
  bf16* own_to = to.at(own_row, column);
  const bf16* own_from = from + own_row * kChainKey + column;
  LB_UNROLL
  for (int low = 0; low < 2; ++low) {
    LB_UNROLL
    for (int row = 0; row < kMaxTree; row += kRowsAtOnce)
      copy_async<16>(own_to + low * KeyRows::kLow + row * KeyRows::kStride,
                     own_from + low * kRowsValues + row * kChainKey);
  }
}
LB_DEVICE void copy_lower(const Square& to, const bf16* from) {
  constexpr int kPieces = kMaxTree / 8;
  constexpr int kRowsAtOnce = kChainThreads / kPieces;
  const int own_row = thread_id() / kPieces, column = thread_id() % kPieces * 8;
  bf16* own_to = to.at(own_row, column);
  const bf16* own_from = from + own_row * kMaxTree + column;
  LB_UNROLL
  for (int row = 0; row < kMaxTree; row += kRowsAtOnce) {
    if (column / 16 > (own_row + row) / 16) continue;
    copy_async<16>(own_to + row * Square::kStride, own_from + row * kMaxTree);
    copy_async<16>(own_to + Square::kLow + row * Square::kStride, own_from + kPairValues + row * kMaxTree);
  }
}

// A run's tiles on their way into shared memory, each as soon as its place is free.
struct ChainTiles {
  const DeltaWork& p;
  const ChainMemory& memory;
  int v_head, k_head, first_column, n_runs;

  LB_DEVICE void keys(int run) const {
    if (run < n_runs) {
      copy_rows(memory.keys(run), rows_work(p, run, k_head));
      if (thread_id() < ChainMemory::kGateBytes / 16)
        copy_async<16>(memory.gates(run) + 4 * thread_id(), gates_work(pairs_work(p, run, v_head)) + 4 * thread_id());
    }
    copy_commit();
  }
  LB_DEVICE void queries_and_values(int run) const {
    if (run < n_runs) {
      const GatedDelta& op = p.op;
      copy_rows(memory.queries(), rows_work(p, run, k_head) + 2 * kRowsValues);
      constexpr int kPieces = kChainColumns / 4, kRowsAtOnce = kChainThreads / kPieces;
      const int own_row = thread_id() / kPieces, column = thread_id() % kPieces * 4;
      float* to = memory.values() + own_row * kValueStride + column;
      const float* from =
          op.v + (long(run) * kMaxTree + own_row) * op.row_stride + long(v_head) * op.dv + first_column + column;
      LB_UNROLL
      for (int row = 0; row < kMaxTree; row += kRowsAtOnce) {
        if (own_row + row < chain_rows(op, run))
          copy_async<16>(to + row * kValueStride, from + row * op.row_stride);
        else
          store(to + row * kValueStride, f32x4{});
      }
    }
    copy_commit();
  }
  LB_DEVICE void inverse(int run) const {
    if (run < n_runs) copy_lower(memory.inverse(), pairs_work(p, run, v_head));
    copy_commit();
  }
  LB_DEVICE void pairs(int run) const {
    copy_lower(memory.pairs(), pairs_work(p, run, v_head) + 2 * kPairValues);
    copy_commit();
  }
};

inline constexpr int kColumnTiles = kChainColumns / 16;
using Sums = FragmentC[kColumnTiles];

// sums += x m^T for the 16 rows of m that end a block of kBlocks on its diagonal. Small products have sums of their
// own, so that fewer wait for each other.
template <int kBlocks>
LB_DEVICE void add_blocks(Sums& sums, const ColumnRows& x, const Square& m) {
  Sums small;
  LB_UNROLL
  for (int c = 0; c < kColumnTiles; ++c) fill(small[c], 0);
  LB_UNROLL
  for (int k = 0; k < kBlocks; ++k) {
    OperandB b;
    read(b, m, 16 * (kBlocks - 1), 16 * k);
    LB_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) {
      OperandA a;
      read(a, x, 16 * c, 16 * k);
      multiply(small[c], a.low, b.high);
      multiply(small[c], a.high, b.low);
      multiply(sums[c], a.high, b.high);
    }
  }
  LB_UNROLL
  for (int c = 0; c < kColumnTiles; ++c) add(sums[c], small[c]);
}
LB_DEVICE void add_lower(Sums& sums, const ColumnRows& x, const Square& m, int block) {
  if (block == 0) add_blocks<1>(sums, x, m);
  if (block == 1) add_blocks<2>(sums, x, m);
  if (block == 2) add_blocks<3>(sums, x, m);
  if (block == 3) add_blocks<4>(sums, x, m);
}

// Warps 0 to 3 advance S: a quarter of the rows of v - e^cs S^T k and delta, a quarter of S. Warps 4 to 7 make o beside
// them.
LB_KERNEL(gated_delta_chain_kernel, DeltaWork, kChainThreads, 1) {
  const ChainMemory memory = {dynamic_shared<unsigned char>()};
  const GatedDelta& op = p.op;
  const int n_slices = op.dv / kChainColumns, v_head = block_id() / n_slices;
  const int first_column = block_id() % n_slices * kChainColumns, n_runs = n_runs_of(op);
  const ChainTiles tiles = {p, memory, v_head, key_head(op, v_head), first_column, n_runs};
  const long row_values = long(op.n_v_heads) * op.dv;  // of o and of delta
  const long of_head = long(v_head) * op.dv + first_column;
  const bool has_state = warp() < 4;
  const int block = warp() % 4, first_row = 16 * block, first_d = 32 * block;

  // The fold of accepted rows lies before the pairs, which let this kernel start only when all before them was done.
  FragmentC state[kColumnTiles][2];  // S^T of 32 values of the keys
  float* S = op.S + long(v_head) * kChainKey * op.dv + first_column;
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

  for (int run = 0;; ++run) {
    const bool is_last = run == n_runs - 1;
    const int rows = chain_rows(op, run);
    const KeyRows keys = memory.keys(run);
    copy_wait<1>();  // all but the inverse
    block_barrier();
    tiles.pairs(run);
    tiles.keys(run + 1);

    Sums sums;  // S^T k, then v - e^cs S^T k; S^T q, then o
    LB_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) fill(sums[c], 0);
    const KeyRows own(has_state ? keys.high : memory.queries().high);
    LB_UNROLL_BY(4)
    for (int d = 0; d < kChainKey; d += 16) {
      OperandB b;
      read(b, own, first_row, d);
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c) {
        OperandA s;
        read(s, memory.state(), 16 * c, d);
        add_product(sums[c], s, b);
      }
    }
    const float* decays = memory.gates(run) + first_row;
    LB_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) {
      for_each(sums[c], [&](int, int row, float& x) { x *= load<float>(decays + row); });
      if (!has_state) continue;
      for_each(sums[c], [&](int column, int row, float& x) {
        x = load<float>(memory.values() + (first_row + row) * kValueStride + 16 * c + column) - x;
      });
      write(memory.rest(), 16 * c, first_row, sums[c]);
    }
    copy_wait<2>();  // the inverse
    block_barrier();
    tiles.queries_and_values(run + 1);

    if (has_state) {
      Sums delta;
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c) fill(delta[c], 0);
      add_lower(delta, memory.rest(), memory.inverse(), block);
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c) {
        write(memory.delta(), 16 * c, first_row, delta[c]);
        if (is_last) {
          for_each(delta[c], [&](int column, int row, float x) {
            if (first_row + row < rows) op.delta[(first_row + row) * row_values + of_head + 16 * c + column] = x;
          });
        } else {
          for_each(delta[c], [&](int, int row, float& x) { x *= load<float>(decays + kMaxTree + row); });
          write(memory.weighted(), 16 * c, first_row, delta[c]);
        }
      }
    }
    copy_wait<2>();  // the pairs
    block_barrier();
    tiles.inverse(run + 1);

    if (!has_state) {
      add_lower(sums, memory.delta(), memory.pairs(), block);
      LB_UNROLL
      for (int c = 0; c < kColumnTiles; ++c)
        for_each(sums[c], [&](int column, int row, float x) {
          if (first_row + row < rows)
            op.o[(long(run) * kMaxTree + first_row + row) * row_values + of_head + 16 * c + column] = x;
        });
    }
    if (is_last) break;
    if (!has_state) continue;

    const float decay = load<float>(memory.gates(run) + kMaxTree - 1);
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
