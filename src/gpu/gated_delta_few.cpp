// Gated DeltaNet over 2 to 32 rows, a tree or a chain, in one launch, where keys have 128 values (equations in
// ops/delta_net.h): a block has 32 columns of a value head's S. Whatever does not need S is small for so few rows, so
// every block makes it for itself:
//   k_i.k_j, q_i.k_j, S^T k and S^T q   at once, on matrix units; operands are two bf16 numbers (delta_parts.h)
//   delta                               by substitution, a column a lane
//   o                                   from S^T q and the deltas, in fp32; as the norm behind it wants it, if one does
// S, the accepted rows and their fold come before the wait, as in a step.
// Bound: latency, of five barriers; 16 KiB of S, 1 KiB of keys and queries a row and block.
#include "dialect.h"

#include "delta_parts.h"
#include "gated_delta.h"
#include "round_run.h"

namespace lb::gpu {

static_assert(kChainKey == 128 && kDeltaFewColumns == 32 && kDeltaFewRows == 32 && kDeltaFewThreads == 256);

using FewState = Parts<kChainKey, kDeltaFewColumns>;
static_assert(FewState::kBytes == kDeltaFewStateBytes);
inline constexpr int kColumnLanes = kDeltaFewColumns / 4;
static_assert(kDeltaFewColumns == kRoundRun);
inline constexpr int kFewStride = kDeltaFewColumns + 4;  // of rows of columns in shared memory

struct alignas(16) FewGates {
  float g[kDeltaFewRows], beta[kDeltaFewRows], cs[kDeltaFewRows];
  uint32_t seen[kDeltaFewRows];  // row i itself and its ancestors, one bit each
};

// Where what lies in shared memory, for rows padded to kPadded. What follows the products takes the operands' place.
template <int kPadded>
struct FewMemory {
  using Rows = Parts<kPadded, kChainKey>;
  static constexpr int kStride = kPadded + 4;
  unsigned char* memory;

  LB_DEVICE FewState state() const { return FewState(memory); }
  LB_DEVICE float* values() const { return reinterpret_cast<float*>(memory + kDeltaFewStateBytes); }
  LB_DEVICE Rows keys() const { return Rows(values() + kPadded * kFewStride); }
  LB_DEVICE Rows queries() const { return Rows(reinterpret_cast<unsigned char*>(keys().high) + Rows::kBytes); }
  LB_DEVICE float* lower() const { return reinterpret_cast<float*>(keys().high); }  // [column, row] of A
  LB_DEVICE float* pairs() const { return lower() + kPadded * kStride; }            // [row, column] of P
  LB_DEVICE float* out() const { return pairs() + kPadded * kStride; }
  static_assert((2 * kStride + kFewStride) * 4 * kPadded <= 2 * Rows::kBytes);
  static_assert(kDeltaFewStateBytes + kPadded * kFewStride * 4 + 2 * Rows::kBytes == delta_few_bytes(kPadded));
};

// All of S that the block has, the accepted rows folded, as an operand.
LB_DEVICE void open_few_state(const GatedDelta& p, const Place& at, Path* path, const FewState& to) {
  const Fold fold = read_path(p, at.v_head, n_accepted(p), path);
  f32x4 s[kSliceRows];
  read_state(p, at, at.row_lane, s);
  if (fold.n > 0) {
    fold_path(p, at, fold, path, at.row_lane, s);
    write_state(p, at, at.row_lane, s);
  }
  LB_UNROLL
  for (int i = 0; i < kSliceRows; ++i) {
    Vec<bf16, 4> high, low;
    part(s[i], high, low);
    bf16* place = to.at(at.row_lane + i * at.n_row_lanes, at.column - at.first_column);
    store(place, high);
    store(place + FewState::kLow, low);
  }
}

// Keys and queries as operands, values and gates, zeros beyond the last row. Keys stay for the next append.
template <int kPadded>
LB_DEVICE void bring_rows(const GatedDelta& p, const Place& at, const FewMemory<kPadded>& memory, FewGates* gates) {
  constexpr int kUnits = kChainKey / 4, kEach = 2 * kPadded * kUnits / kDeltaFewThreads;
  const int i = thread_id(), column = i % kUnits * 4;
  f32x4 x[kEach], v = {};
  LB_UNROLL
  for (int n = 0; n < kEach; ++n) {
    const int row = i / kUnits + n % (kEach / 2) * (kDeltaFewThreads / kUnits);
    const float* from = n < kEach / 2 ? p.k : p.q;
    x[n] = {};
    if (row < p.rows) x[n] = load<f32x4>(from + row * p.row_stride + long(at.k_head) * kChainKey + column);
  }
  if (at.row_lane < p.rows) v = load<f32x4>(p.v + at.row_lane * p.row_stride + long(at.v_head) * p.dv + at.column);
  if (i < kPadded) {
    const bool is_row = i < p.rows;
    store(&gates->g[i], is_row ? p.g[long(i) * p.n_v_heads + at.v_head] : 0.0f);
    store(&gates->beta[i], is_row ? p.beta[long(i) * p.n_v_heads + at.v_head] : 0.0f);
    const uint32_t seen = p.tree.ancestors && is_row ? uint32_t(p.tree.ancestors[i]) : ~0u >> (31 - i);
    store(&gates->seen[i], is_row ? seen : 0u);
  }
  const bool is_pending = at.first_column == 0 && is_first_of_key_head(p, at.v_head);
  float* pending = keys_in(p, buffer_after(p, 1)) + long(at.k_head) * kChainKey + column;
  LB_UNROLL
  for (int n = 0; n < kEach; ++n) {
    const bool is_key = n < kEach / 2;
    const int row = i / kUnits + n % (kEach / 2) * (kDeltaFewThreads / kUnits);
    if (is_pending && is_key && row < p.rows) store(pending + long(row) * p.n_k_heads * kChainKey, x[n]);
    Vec<bf16, 4> high, low;
    part(x[n], high, low);
    bf16* to = (is_key ? memory.keys() : memory.queries()).at(row, column);
    store(to, high);
    store(to + FewMemory<kPadded>::Rows::kLow, low);
  }
  if (at.row_lane < kPadded) store(memory.values() + at.row_lane * kFewStride + at.column - at.first_column, v);
}

// 16 rows times 16 columns, over the 128 values of a key. Small products have sums of their own, so that fewer wait for
// each other.
template <class Rows, class ReadB>
LB_DEVICE void multiply_keys(FragmentC& c, const Rows& rows, int first_row, ReadB&& read_b) {
  FragmentC small[2];
  fill(c, 0);
  fill(small[0], 0);
  fill(small[1], 0);
  LB_UNROLL_BY(4)
  for (int d = 0; d < kChainKey; d += 16) {
    OperandA a;
    OperandB b;
    read(a, rows, first_row, d);
    read_b(b, d);
    multiply(small[0], a.low, b.high);
    multiply(small[1], a.high, b.low);
    multiply(c, a.high, b.high);
  }
  add(small[0], small[1]);
  add(c, small[0]);
}

// delta_i = rest_i - sum_{j < i} A_ij delta_j in place, a column a lane.
template <int kPadded, int kRows>
LB_DEVICE void substitute(const float* lower, float* rest) {
  float x[kRows];
  LB_UNROLL
  for (int i = 0; i < kRows; ++i) x[i] = load<float>(rest + i * kFewStride + lane());
  LB_UNROLL
  for (int j = 0; j < kRows - 1; ++j) {
    LB_UNROLL
    for (int first = (j + 1) / 4 * 4; first < kRows; first += 4) {
      const f32x4 a = load<f32x4>(lower + j * FewMemory<kPadded>::kStride + first);
      LB_UNROLL
      for (int e = 0; e < 4; ++e)
        if (first + e > j) x[first + e] = fma(-a[e], x[j], x[first + e]);
    }
  }
  LB_UNROLL
  for (int i = 0; i < kRows; ++i) store(rest + i * kFewStride + lane(), x[i]);
}

// A run of o as its norm, but for what its head is divided by, and its sum of squares: of four values the eight lanes
// of a run have.
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
  if (is_inside && at % kRoundRun == 0) to.sum[at / kRoundRun] = squares;
}

template <int kPadded, int kRows>
LB_DEVICE void few_rows_of_delta(const GatedDelta& p, const GatedRmsNorm& norm, unsigned char* shared, Path* path,
                                 FewGates* gates) {
  constexpr int kTiles = kPadded / 16, kWarps = kDeltaFewThreads / 32;
  const FewMemory<kPadded> memory = {shared};
  constexpr int kStride = FewMemory<kPadded>::kStride;
  const Place at = place_in_slice<kDeltaFewColumns>(p);
  open_few_state(p, at, path, memory.state());
  wait_for_previous();
  dependents_may_launch();
  bring_rows(p, at, memory, gates);
  block_barrier();

  if (warp() == kWarps - 1 && lane() < kPadded) {
    const uint32_t seen = load<uint32_t>(&gates->seen[lane()]);
    float sum = 0;
    LB_UNROLL
    for (int j = 0; j < kRows; ++j) {  // from the root on, as a row adds its own to its parent's
      const float g = load<float>(&gates->g[j]);
      if (seen >> j & 1) sum += g;
    }
    store(&gates->cs[lane()], sum);
    if (at.first_column == 0 && lane() < p.rows)
      cs_in(p, buffer_after(p, 1))[long(lane()) * p.n_v_heads + at.v_head] = sum;
  }
  // A warp has 16 rows of keys or of queries, with 16 columns of S, or of keys up to their own, or both.
  constexpr int kOfRows = kWarps / (2 * kTiles);
  const int which = warp() % kOfRows, tile = warp() / kOfRows % kTiles, key_tile = kTiles == 1 ? which - 2 : which;
  const bool is_query = warp() / kOfRows >= kTiles;
  const bool has_state = which < kDeltaFewColumns / 16, has_pairs = key_tile >= 0 && key_tile <= tile;
  const auto own = is_query ? memory.queries() : memory.keys();
  FragmentC of_state, of_pairs;
  if (has_state)
    multiply_keys(of_state, own, 16 * tile,
                  [&](OperandB& b, int d) { read_transposed(b, memory.state(), d, 16 * which); });
  if (has_pairs)
    multiply_keys(of_pairs, own, 16 * tile, [&](OperandB& b, int d) { read(b, memory.keys(), 16 * key_tile, d); });
  block_barrier();

  if (has_state)
    for_each(of_state, [&](int of_tile, int of_columns, float x) {
      const int row = 16 * tile + of_tile, column = 16 * which + of_columns;
      x *= exp_nonpositive(load<float>(&gates->cs[row]));
      if (is_query) return store(memory.out() + row * kFewStride + column, x);
      float* value = memory.values() + row * kFewStride + column;
      store(value, load<float>(&gates->beta[row]) * (load<float>(value) - x));
    });
  if (has_pairs)
    for_each(of_pairs, [&](int of_tile, int of_columns, float x) {
      const int row = 16 * tile + of_tile, column = 16 * key_tile + of_columns;
      float y = 0;
      // Only here: pairs that are not on one path have exponents of any size.
      if (load<uint32_t>(&gates->seen[row]) >> column & 1)
        y = exp_nonpositive(load<float>(&gates->cs[row]) - load<float>(&gates->cs[column])) * x;
      if (is_query) return store(memory.pairs() + row * kStride + column, y);
      store(memory.lower() + column * kStride + row, row == column ? 0.0f : load<float>(&gates->beta[row]) * y);
    });
  const int row = at.row_lane, column = at.column - at.first_column;
  const long to = (long(row) * p.n_v_heads + at.v_head) * p.dv + at.column;
  const bool is_normed = norm.rounded.high != nullptr;
  f32x4 w = {}, z = {};
  if (is_normed && row < p.rows) w = load<f32x4>(norm.w + at.column), z = load<f32x4>(norm.z + to);
  block_barrier();
  if (warp() == 0) substitute<kPadded, kRows>(memory.lower(), memory.values());
  block_barrier();

  if (row - lane() / kColumnLanes >= p.rows) return;  // whole warps
  f32x4 o = load<f32x4>(memory.out() + row * kFewStride + column);
  const int n_seen = min(row / 16 * 16 + 16, kRows);  // blocks of pairs above the diagonal are not there
  LB_UNROLL_BY(2)
  for (int j = 0; j < n_seen; j += 4) {
    const f32x4 pair = load<f32x4>(memory.pairs() + row * kStride + j);
    LB_UNROLL
    for (int e = 0; e < 4; ++e) {
      const f32x4 delta = load<f32x4>(memory.values() + (j + e) * kFewStride + column);
      LB_UNROLL
      for (int c = 0; c < 4; ++c) o[c] = fma(pair[e], delta[c], o[c]);
    }
  }
  if (row < p.rows) store(p.delta + to, load<f32x4>(memory.values() + row * kFewStride + column));
  if (is_normed) return round_normed(norm.rounded, to, o, w, z, row < p.rows);
  if (row < p.rows) store(p.o + to, o);
}

LB_KERNEL(gated_delta_few_kernel, DeltaWork, kDeltaFewThreads, 2) {
  LB_SHARED(Path, path, 1);
  LB_SHARED(FewGates, gates, 1);
  unsigned char* memory = dynamic_shared<unsigned char>();
  if (p.op.rows <= 16)
    few_rows_of_delta<16, 16>(p.op, p.norm, memory, &path[0], &gates[0]);
  else if (p.op.rows <= 24)
    few_rows_of_delta<32, 24>(p.op, p.norm, memory, &path[0], &gates[0]);
  else
    few_rows_of_delta<32, 32>(p.op, p.norm, memory, &path[0], &gates[0]);
}

}  // namespace lb::gpu
