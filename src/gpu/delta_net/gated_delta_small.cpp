// Gated DeltaNet of 2 to 32 rows, a tree or a chain, in one launch, for dk = 128 (equations in ops/delta_net.h). A
// block handles 32 columns of a value head's S. With up to 32 rows, the products that do not depend on S are small, so
// every block recomputes them:
//   k_i.k_j, q_i.k_j, S^T k and S^T q   together, on matrix units, from operands of two bf16 parts (split_bf16.h)
//   delta                               by forward substitution, a row per lane
//   o                                   from S^T q and the deltas, in fp32; optionally with the gated norm (DeltaWork)
// Loading S and the accepted rows, and the fold, precede wait_for_previous(), as in gated_delta_step.
// Bound: latency of five barriers and of instruction fetch (the code runs once, so it is short); 16 KiB of S per block,
// and 1 KiB of keys and queries per row and block.
// Needs: 192 KiB of shared memory
#include "dialect.h"

#include "gpu/delta_net/gated_delta.h"
#include "gpu/delta_net/split_bf16.h"
#include "gpu/round_block.h"

namespace lb::gpu {

static_assert(kChainDk == 128 && kSmallDeltaColumns == 32 && kSmallDeltaRows == 32 && kSmallDeltaThreads == 256);
inline constexpr int kColumnLanes = kSmallDeltaColumns / 4;
static_assert(kSmallDeltaColumns == kRoundBlock && kSmallDeltaThreads / 32 * 4 == kSmallDeltaColumns);

struct alignas(16) SmallGates {
  float g[kSmallDeltaRows], beta[kSmallDeltaRows], cs[kSmallDeltaRows];
  uint32_t seen[kSmallDeltaRows];  // bit mask of row i and its ancestors
};

// Layout of dynamic shared memory, with rows padded to kPadded.
template <int kPadded>
struct SmallMemory {
  using Operands = Parts<2 * kPadded + kSmallDeltaColumns, kChainDk>;
  static constexpr int kStride = kPadded + kSmallDeltaColumns + 4;
  static_assert(Operands::kBytes + 2 * kPadded * kStride * 4 == small_delta_bytes(kPadded));
  unsigned char* memory;

  // [2 kPadded + 32, 128]: queries, keys, then columns of S.
  LB_DEVICE Operands operands() const { return Operands(memory); }
  // A query's products with the kPadded keys, then with the 32 columns of S (key_products: a key's products). Later the
  // products with keys become P (A for keys). For keys, the products with S become deltas.
  LB_DEVICE float* query_products(int row) const {
    return reinterpret_cast<float*>(memory + Operands::kBytes) + row * kStride;
  }
  LB_DEVICE float* key_products(int row) const { return query_products(kPadded + row); }
};

// Loads the block's slice of S, folds the accepted rows, and stores the slice's columns as operands. A thread holds
// four rows of four columns.
template <int kPadded>
LB_DEVICE void open_small_state(const GatedDelta& p, Slice slice, Path* path, const SmallMemory<kPadded>& memory) {
  const int first = slice.row_lane * kSliceRows;
  slice.n_row_lanes = 1;
  StateRows<1> s;
  read_state(p, slice, first, s);
  const Fold fold = read_path(p, slice.v_head, n_accepted(p), path);
  if (fold.n > 0) {
    fold_path<2>(p, slice, fold, path, first, s);
    write_state(p, slice, first, s);
  }
  LB_UNROLL
  for (int c = 0; c < 4; ++c) {
    f32x4 column;
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) column[i] = s[0][i][c];
    put_parts(memory.operands(), 2 * kPadded + slice.column - slice.first_column + c, first, column);
  }
}

// Stores keys, queries and gates in shared memory, keys and queries as operands, with zeros beyond the last row. Also
// writes the pending keys.
template <int kPadded>
LB_DEVICE void bring_rows(const GatedDelta& p, const Slice& slice, const SmallMemory<kPadded>& memory,
                          SmallGates* gates) {
  constexpr int kUnits = kChainDk / 4, kTeams = kSmallDeltaThreads / kUnits, kEach = kPadded / kTeams;
  const int i = thread_id(), column = i % kUnits * 4, team = i / kUnits;
  f32x4 q[kEach] = {}, k[kEach] = {};
  long from = team * p.row_stride + slice.k_head * kChainDk + column;
  LB_UNROLL
  for (int n = 0; n < kEach; ++n, from += kTeams * p.row_stride)
    if (team + n * kTeams < p.rows) q[n] = load<f32x4>(p.q + from), k[n] = load<f32x4>(p.k + from);
  if (i < kPadded) {
    const bool is_row = i < p.rows;
    store(&gates->g[i], is_row ? p.g[long(i) * p.n_v_heads + slice.v_head] : 0.0f);
    store(&gates->beta[i], is_row ? p.beta[long(i) * p.n_v_heads + slice.v_head] : 0.0f);
    const uint32_t seen = p.tree.ancestors && is_row ? uint32_t(p.tree.ancestors[i]) : ~0u >> (31 - i);
    store(&gates->seen[i], is_row ? seen : 0u);
  }
  const int pending_stride = p.n_k_heads * kChainDk;
  float* pending = keys_in(p, buffer_after(p, 1)) + team * pending_stride + slice.k_head * kChainDk + column;
  const int n_pending = slice.first_column == 0 && is_first_of_key_head(p, slice.v_head) ? p.rows : 0;
  LB_UNROLL
  for (int n = 0; n < kEach; ++n, pending += kTeams * pending_stride) {
    const int row = team + n * kTeams;
    if (row < n_pending) store(pending, k[n]);
    put_parts(memory.operands(), row, column, q[n]);
    put_parts(memory.operands(), kPadded + row, column, k[n]);
  }
}

// Computes cs of each row: the sum of g over the row and its ancestors. Called by one warp.
LB_DEVICE void sum_gates(const GatedDelta& p, const Slice& slice, SmallGates* gates) {
  const uint32_t seen = load<uint32_t>(&gates->seen[lane()]);
  float sum = 0;
  LB_UNROLL_BY(4)
  for (int j = 0; j < p.rows; ++j) {  // parents come first: each row adds its g to its parent's cs
    const float g = load<float>(&gates->g[j]);
    if (seen >> j & 1) sum += g;
  }
  store(&gates->cs[lane()], sum);
  if (slice.first_column == 0 && lane() < p.rows)
    cs_in(p, buffer_after(p, 1))[long(lane()) * p.n_v_heads + slice.v_head] = sum;
}

// Multiplies 16 rows of operands by 16 other rows, over dk. Products with a low part have separate accumulators, for
// shorter dependency chains.
template <class Operands>
LB_DEVICE void multiply_keys(FragmentC& c, const Operands& operands, int row, int other) {
  FragmentC small[2];
  fill(c, 0);
  fill(small[0], 0);
  fill(small[1], 0);
  LB_UNROLL_BY(4)
  for (int d = 0; d < kChainDk; d += 16) {
    OperandA a;
    OperandB b;
    read(a, operands, row, d);
    read(b, operands, other, d);
    multiply(small[0], a.low, b.high);
    multiply(small[1], a.high, b.low);
    multiply(c, a.high, b.high);
  }
  add(small[0], small[1]);
  add(c, small[0]);
}

// Multiplies queries and keys by keys and columns of S.
template <int kPadded>
LB_DEVICE void multiply_rows(const SmallMemory<kPadded>& memory) {
  constexpr int kOthers = (kPadded + kSmallDeltaColumns) / 16, kTiles = 2 * kPadded / 16 * kOthers;
  LB_UNROLL_BY(1)
  for (int tile = warp(); tile < kTiles; tile += kSmallDeltaThreads / 32) {
    const int first_row = tile / kOthers * 16, first_other = tile % kOthers * 16;
    FragmentC c;
    multiply_keys(c, memory.operands(), first_row, kPadded + first_other);
    for_each(c, [&](int row, int other, float x) {
      store(memory.query_products(first_row + row) + first_other + other, x);
    });
  }
}

// Turns products into P and A: weighted by decay (and beta), zero unless j is an ancestor of i (or, in P, i itself).
template <int kPadded>
LB_DEVICE void weigh_pairs(const SmallMemory<kPadded>& memory, const SmallGates* gates) {
  constexpr int kUnits = kPadded / 4;
  LB_UNROLL_BY(1)
  for (int i = thread_id(); i < 2 * kPadded * kUnits; i += kSmallDeltaThreads) {
    const int row = i / kUnits % kPadded, column = i % kUnits * 4;
    const bool is_key = i >= kPadded * kUnits;
    float* products = memory.query_products(i / kUnits) + column;
    f32x4 pairs = load<f32x4>(products);
    const f32x4 before = load<f32x4>(&gates->cs[column]);
    const float cs = load<float>(&gates->cs[row]), factor = is_key ? load<float>(&gates->beta[row]) : 1.0f;
    uint32_t seen = load<uint32_t>(&gates->seen[row]);
    if (is_key) seen &= ~(1u << row);
    LB_UNROLL
    for (int c = 0; c < 4; ++c)  // only for pairs on one path: the exponent of other pairs is unbounded
      pairs[c] = seen >> (column + c) & 1 ? factor * exp_nonpositive(cs - before[c]) * pairs[c] : 0.0f;
    store(products, pairs);
  }
}

// delta_i = beta_i (v_i - e^{cs_i} S^T k_i) - sum_{j < i} A_ij delta_j for four columns. A warp computes one row per
// lane.
template <int kPadded>
LB_DEVICE void substitute(const SmallMemory<kPadded>& memory, const SmallGates* gates, const f32x4& v, int rows) {
  const int row = lane() % kPadded;
  float* products = memory.key_products(row) + kPadded + 4 * warp();
  const float decay = exp_nonpositive(load<float>(&gates->cs[row])), beta = load<float>(&gates->beta[row]);
  f32x4 x = {};
  if (lane() < kPadded) x = load<f32x4>(products);
  LB_UNROLL
  for (int c = 0; c < 4; ++c) x[c] = beta * (v[c] - decay * x[c]);
  LB_UNROLL_BY(1)
  for (int first = 0; first < rows; first += 4) {
    const f32x4 a = load<f32x4>(memory.key_products(row) + first);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      LB_UNROLL
      for (int c = 0; c < 4; ++c) x[c] = fma(-a[j], shuffle(x[c], first + j), x[c]);
    }
  }
  if (lane() < kPadded) store(products, x);
}

// Writes o * w * silu(z), rounded, and the sum of o^2 over the block of 32 values; the reader divides by the head's
// root mean square. Eight lanes share a block, four values each.
LB_DEVICE void round_normed(const RoundedRows& to, long at, f32x4 o, const f32x4& w, const f32x4& z, bool is_inside) {
  float squares = 0;
  LB_UNROLL
  for (int c = 0; c < 4; ++c) {
    squares = fma(o[c], o[c], squares);
    o[c] *= w[c] * silu(z[c]);
  }
  LB_UNROLL
  for (int mask = 1; mask < kColumnLanes; mask *= 2) squares += shuffle_xor(squares, mask);
  round_to_codes(to, int(at), o, is_inside);
  if (is_inside && at % kRoundBlock == 0) to.sum[at / kRoundBlock] = squares;
}

template <int kPadded>
LB_DEVICE void gated_delta_small(const GatedDelta& p, const GatedRmsNorm& norm, unsigned char* shared, Path* path,
                                 SmallGates* gates) {
  const SmallMemory<kPadded> memory = {shared};
  const Slice slice = slice_of_thread<kSmallDeltaColumns>(p);
  open_small_state(p, slice, path, memory);
  wait_for_previous();
  dependents_may_launch();
  bring_rows(p, slice, memory, gates);
  f32x4 v = {};
  if (lane() < p.rows)
    v = load<f32x4>(p.v + lane() * p.row_stride + long(slice.v_head) * p.dv + slice.first_column + 4 * warp());
  block_barrier();
  if (warp() == kSmallDeltaThreads / 32 - 1 && lane() < kPadded) sum_gates(p, slice, gates);
  multiply_rows(memory);
  block_barrier();
  weigh_pairs(memory, gates);
  const int row = slice.row_lane, column = kPadded + slice.column - slice.first_column;
  const long to = (long(row) * p.n_v_heads + slice.v_head) * p.dv + slice.column;
  const bool is_normed = norm.rounded.high != nullptr;
  f32x4 w = {}, z = {};
  if (is_normed && row < p.rows) w = load<f32x4>(norm.w + slice.column), z = load<f32x4>(norm.z + to);
  block_barrier();
  substitute(memory, gates, v, p.rows);
  block_barrier();

  if (row - lane() / kColumnLanes >= p.rows) return;  // whole warps return, because round_normed shuffles
  f32x4 o = load<f32x4>(memory.query_products(row) + column);
  const float decay = exp_nonpositive(load<float>(&gates->cs[row]));
  LB_UNROLL
  for (int c = 0; c < 4; ++c) o[c] *= decay;
  LB_UNROLL_BY(1)
  for (int j = 0; j <= row; j += 4) {
    const f32x4 pair = load<f32x4>(memory.query_products(row) + j);
    LB_UNROLL
    for (int e = 0; e < 4; ++e) {
      const f32x4 delta = load<f32x4>(memory.key_products(j + e) + column);
      LB_UNROLL
      for (int c = 0; c < 4; ++c) o[c] = fma(pair[e], delta[c], o[c]);
    }
  }
  if (row < p.rows) store(p.delta + to, load<f32x4>(memory.key_products(row) + column));
  if (is_normed) return round_normed(norm.rounded, to, o, w, z, row < p.rows);
  if (row < p.rows) store(p.o + to, o);
}

LB_KERNEL(gated_delta_small_kernel, DeltaWork, kSmallDeltaThreads, 2) {
  LB_SHARED(Path, path, 1);
  LB_SHARED(SmallGates, gates, 1);
  unsigned char* memory = dynamic_shared<unsigned char>();
  GatedDelta op = p.op;
  op.dk = kChainDk;  // a compile-time constant
  if (op.rows <= 16)
    gated_delta_small<16>(op, p.norm, memory, &path[0], &gates[0]);
  else
    gated_delta_small<32>(op, p.norm, memory, &path[0], &gates[0]);
}

}  // namespace lb::gpu
