// Thread, block and grid indices; shuffles and votes of a warp. Each shuffle or vote exchanges all lanes' values.
#pragma once

#include <cstring>

namespace lb::gpu {

inline int thread_id() { return sim::current->id; }
inline int n_threads() {
  const sim::Block& block = *sim::current->block;
  return int(block.launch->block[0]) - block.n_helpers;
}
inline int block_id() { return int(sim::current->block->id[0]); }
inline int block_id_y() { return int(sim::current->block->id[1]); }
inline int block_id_z() { return int(sim::current->block->id[2]); }
inline int n_blocks() { return int(sim::current->block->launch->grid[0]); }
inline int n_blocks_y() { return int(sim::current->block->launch->grid[1]); }
inline int n_blocks_z() { return int(sim::current->block->launch->grid[2]); }
inline int lane() { return thread_id() % 32; }
inline int warp() { return thread_id() / 32; }
inline int n_warps() { return (n_threads() + 31) / 32; }

namespace sim {

template <class T>
uint64_t carry(T v) {
  static_assert((sizeof(T) == 4 || sizeof(T) == 8) && __is_trivially_copyable(T), "shuffles take 4 or 8 bytes");
  uint64_t carried = 0;
  std::memcpy(&carried, &v, sizeof v);
  return carried;
}
template <class T>
T uncarry(uint64_t carried) {
  T v;
  std::memcpy(&v, &carried, sizeof v);
  return v;
}

template <class T>
T from_lane(T v, int source, const CallSite& site) {
  return uncarry<T>(exchange(carry(v), site).of(source, site));
}

// The reduction tree of five shuffle_xor steps: lanes 16 apart first. The result has the same bits in every lane, so
// the first lane to run computes it for all.
template <class T, class Combine>
T reduce(T v, const CallSite& site, Combine combine) {
  const Exchange all = exchange(carry(v), site);
  Warp& warp = *all.warp;
  if (warp.is_reduced[all.parity]) return uncarry<T>(warp.reduced[all.parity]);
  T values[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) values[i] = uncarry<T>(all.of(i, site));
  for (int n = kWarpSize / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) values[i] = combine(values[i], values[i + n]);
  }
  warp.reduced[all.parity] = carry(values[0]);
  warp.is_reduced[all.parity] = true;
  return values[0];
}

}  // namespace sim

template <class T>
T shuffle_xor(T v, int mask, sim::Location where = sim::Location::current()) {
  return sim::from_lane(v, lane() ^ mask, {"shuffle_xor", where});
}
template <class T>
T shuffle(T v, int source, sim::Location where = sim::Location::current()) {
  return sim::from_lane(v, source & 31, {"shuffle", where});
}
template <class T>
T shuffle_down(T v, int n, sim::Location where = sim::Location::current()) {
  return sim::from_lane(v, lane() + n < 32 ? lane() + n : lane(), {"shuffle_down", where});
}
template <class T>
T shuffle_up(T v, int n, sim::Location where = sim::Location::current()) {
  return sim::from_lane(v, lane() >= n ? lane() - n : lane(), {"shuffle_up", where});
}

inline uint32_t ballot(bool vote, sim::Location where = sim::Location::current()) {
  const sim::Exchange all = sim::exchange(vote, {"ballot", where});
  uint32_t votes = 0;
  for (int i = 0; i < 32; ++i) votes |= (all.lanes() >> i & uint32_t(all.warp->values[all.parity][i]) & 1) << i;
  return votes;
}
inline bool any(bool vote, sim::Location where = sim::Location::current()) { return ballot(vote, where) != 0; }
inline bool all(bool vote, sim::Location where = sim::Location::current()) { return ballot(!vote, where) == 0; }

// The compiler's scheduler moves no instruction across this barrier. Early loads therefore occupy fewer registers.
inline void sched_barrier() {}

// Hides v's origin from the optimiser, so a loop recomputes values derived from v instead of keeping them in registers.
inline int opaque(int v) { return v; }
template <class T>
T* opaque(T* p) {
  return p;
}

}  // namespace lb::gpu
