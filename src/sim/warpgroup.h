// Products of a warpgroup, and barriers that count arrivals. A product executes in group_wait, which exposes premature
// reads of accumulators and premature overwrites of operands. Each warp computes its own 16 rows, so the four warps
// need not synchronise.
#pragma once

#include <type_traits>
#include <vector>

#include "fused_sum.h"
#include "gpu/operand_tile.h"

namespace lb::gpu {

template <class T>
struct TileRows {
  const T* tile;
  int tile_rows, row, column;
  T at(int n, int k) const {
    const T* p = tile + tile_index<sizeof(T)>(tile_rows, row + n, column + k);
    sim::check_access(p, sizeof *p, sim::Access::kRead, "a product");
    return *p;
  }
};
template <class T>
struct TileColumns {
  const T* tile;
  int tile_rows, row, column;
  T at(int n, int k) const { return TileRows<T>{tile, tile_rows, row, column}.at(k, n); }
};

namespace sim {

template <class T>
void check_tile(const T* tile, bool is_aligned) {
  if (!current->block->shared.contains(tile) || uintptr_t(tile) % kTileAlignment != 0 || !is_aligned)
    machine().fail("a product's operand at %p: not in shared memory, or not aligned", (const void*)tile);
}

}  // namespace sim

template <class T>
TileRows<T> rows_of(const T* tile, int tile_rows, int row, int column) {
  sim::check_tile(tile, row % 8 == 0 && column * sizeof(T) % 32 == 0);
  return {tile, tile_rows, row, column};
}
template <class T>
TileColumns<T> columns_of(const T* tile, int tile_rows, int row, int column) {
  sim::check_tile(tile, row % 16 == 0 && column % 64 == 0);
  return {tile, tile_rows, row, column};
}

inline void group_begin() {}
inline void group_commit() { ++sim::current->n_product_groups; }
template <int kPending>
void group_wait() {
  sim::finish_products(kPending);
}
template <int kPending, int kCount>
void group_wait(FragmentC (&)[kCount]) {
  group_wait<kPending>();
}

// A of fp8 numbers, 16 rows of 32. Value 4i + j is row g + 8 (i % 2), k = 16 (i / 2) + 4t + j, as on sm_90.
template <>
struct FragmentA<fp8_e4m3> {
  fp8_e4m3 v[16];
};
inline void load_shared(FragmentA<fp8_e4m3>& a, const fp8_e4m3* from, int stride) {
  const auto* rows = reinterpret_cast<const fp8_e4m3*>(sim::shared_rows(from, stride, "load_shared of a FragmentA"));
  for (int i = 0; i < 4; ++i) {
    const fp8_e4m3* at = rows + (lane() / 4 + i % 2 * 8) * stride + i / 2 * 16 + lane() % 4 * 4;
    sim::check_access(at, 4, sim::Access::kRead, "load_shared of a FragmentA");
    for (int j = 0; j < 4; ++j) a.v[4 * i + j] = at[j];
  }
}

namespace sim {

// The depth of a product: a step of A and B is 32 bytes.
template <class T>
constexpr int kDepth = 32 / sizeof(T);

// The lane's two rows of the warp's A: rows lane / 4 and lane / 4 + 8.
template <int kCount>
struct OwnRows {
  float v[2][kCount];
};

template <class T>
OwnRows<kDepth<T>> own_rows(const FragmentA<T>& a, Location where) {
  Warp& warp = *current->warp;
  float* all = warp.a[warp.parity];
  for (int i = 0; i < int(sizeof a.v / sizeof(T)); ++i) {
    if constexpr (sizeof(T) == 1)
      all[(lane() / 4 + i / 4 % 2 * 8) * 32 + i / 8 * 16 + lane() % 4 * 4 + i % 4] = to_f32(a.v[i]);
    else
      all[fragment_row(i) * 16 + fragment_k(i)] = to_f32(a.v[i]);
  }
  const CallSite site{"group_multiply", where};
  exchange(0, site).of(31, site);  // a whole warp
  OwnRows<kDepth<T>> rows;
  for (int r = 0; r < 2; ++r) {
    for (int k = 0; k < kDepth<T>; ++k) rows.v[r][k] = all[lane_row(r) * kDepth<T> + k];
  }
  return rows;
}
template <class T>
TileRows<T> own_rows(const TileRows<T>& a, Location) {
  return a;
}

template <int kCount>
OwnRows<kCount> read(const OwnRows<kCount>& rows) {
  return rows;
}
template <class T>
OwnRows<16> read(const TileRows<T>& a) {
  OwnRows<16> rows;
  for (int r = 0; r < 2; ++r) {
    for (int k = 0; k < 16; ++k) rows.v[r][k] = to_f32(a.at(warp() % 4 * 16 + lane_row(r), k));
  }
  return rows;
}

// Returns B [kColumns, kCount]; the lanes of a warp read it together.
template <int kColumns, int kCount, class B>
const float* read_other(const B& b, Location where) {
  Warp& warp = *current->warp;
  std::vector<float>& all = warp.other[warp.parity];
  all.resize(kColumns * kCount);
  for (int n = lane(); n < kColumns; n += kWarpSize) {
    for (int k = 0; k < kCount; ++k) all[size_t(n * kCount + k)] = to_f32(b.at(n, k));
  }
  const CallSite site{"group_wait", where};
  exchange(0, site).of(31, site);
  return all.data();
}

// c + x y. 16-bit operands: in fp32, one product after the other.
inline float sum_of(float c, const float (&x)[16], const float* y) {
  for (int k = 0; k < 16; ++k) c += x[k] * y[k];
  return c;
}
inline float sum_of(float c, const float (&x)[32], const float* y) { return fp8_sum(c, x, y); }

}  // namespace sim

template <int kColumns, bool kFresh, class A, class B>
void group_multiply(FragmentC* c, const A& a, const B& b, sim::Location where = sim::Location::current()) {
  const auto rows = sim::own_rows(a, where);
  sim::current->products.push_back({[=] {
                                      const auto own = sim::read(rows);
                                      constexpr int kCount = int(sizeof own.v[0] / sizeof(float));
                                      const float* other = sim::read_other<kColumns, kCount>(b, where);
                                      for (int h = 0; h < kColumns / 8; ++h) {
                                        for (int j = 0; j < 2; ++j) {
                                          float* sums = c[h / 2].v + h % 2 * 4 + j;
                                          if (kFresh) sums[0] = sums[2] = 0;
                                          const float* values = other + (8 * h + lane() % 4 * 2 + j) * kCount;
                                          sums[0] = sim::sum_of(sums[0], own.v[0], values);
                                          sums[2] = sim::sum_of(sums[2], own.v[1], values);
                                        }
                                      }
                                    },
                                    sim::current->n_product_groups});
}

inline void fence_async_proxy() {}

struct CountedBarrier {
  uint32_t phase;  // phases that have passed
  uint16_t count, missing;
};
namespace sim {

inline void end_phase(CountedBarrier* b) {
  b->missing = b->count;
  ++b->phase;
  current->block->shared.passed_barrier();  // also for threads that did not arrive: discards their accesses
}

}  // namespace sim

inline void barrier_init(CountedBarrier* b, int count) {
  sim::check_access(b, sizeof *b, sim::Access::kWrite, "barrier_init");
  *b = {0, uint16_t(count), uint16_t(count)};
}
inline void barrier_arrive(CountedBarrier* b) {
  sim::check_access(b, sizeof *b, sim::Access::kAtomic, "barrier_arrive");
  if (b->missing == 0) sim::machine().fail("barrier_arrive: all %d arrivals of this phase have come", b->count);
  if (--b->missing == 0 && !sim::find_transfers(b)) sim::end_phase(b);
}
// A phase that waits for copies completes only in a barrier_wait.
inline bool barrier_has_passed(CountedBarrier* b, int parity) { return int(b->phase & 1) != parity; }
inline void barrier_wait(CountedBarrier* b, int parity, sim::Location where = sim::Location::current()) {
  while (int(b->phase & 1) == parity) {
    sim::machine().spin(&b->phase, b->phase, {"barrier_wait", where});
    if (int(b->phase & 1) == parity && b->missing == 0 && sim::finish_transfers(b)) sim::end_phase(b);
  }
}

template <int kCount>
void dealloc_registers() {}
template <int kCount>
void alloc_registers() {}

}  // namespace lb::gpu
