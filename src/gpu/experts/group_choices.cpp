// GroupChoices: a counting sort of choices by expert, and the tiles of each expert's positions. One block. The order of
// an expert's choices differs from launch to launch; no result depends on it. Bound: latency.
#include "dialect.h"

#include "gpu/experts/shape.h"

namespace lb::gpu {

// In the place of counts: the sums of the counts before each.
LB_DEVICE int warp_exclusive_sums(int* counts, int n) {
  int before = 0;
  for (int first = 0; first < n; first += 32) {
    const int i = first + lane(), own = i < n ? counts[i] : 0;
    int sum = own;
    LB_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const int other = shuffle_up(sum, step);
      if (lane() >= step) sum += other;
    }
    if (i < n) counts[i] = before + sum - own;
    before += shuffle(sum, 31);
  }
  return before;
}

LB_DEVICE int slot_of(const GroupChoices& p, int expert) { return p.slots == nullptr ? expert : p.slots[expert]; }

LB_KERNEL(group_choices_kernel, GroupChoices, kGroupThreads, 1) {
  LB_SHARED(int, next, kMaxExperts);   // counts; then the next free position of each expert
  LB_SHARED(int, tiles, kMaxExperts);  // first tile of each expert
  int *const positions = &next[0], *const first_tiles = &tiles[0];
  for (int e = thread_id(); e < p.n_experts; e += n_threads()) positions[e] = 0;
  dependents_may_launch();
  wait_for_previous();
  block_barrier();
  for (int i = thread_id(); i < p.n_choices; i += n_threads()) atomic_add(positions + p.experts[i], 1);
  block_barrier();
  for (int e = thread_id(); e < p.n_experts; e += n_threads())
    first_tiles[e] = slot_of(p, e) < 0 ? 0 : (positions[e] + p.tile_rows - 1) / p.tile_rows;
  const int count = thread_id() < p.n_experts ? positions[thread_id()] : 0;
  static_assert(kGroupThreads >= kMaxExperts);
  block_barrier();
  if (warp() == 0) {
    warp_exclusive_sums(positions, p.n_experts);
    const int n_tiles = warp_exclusive_sums(first_tiles, p.n_experts);
    if (lane() == 0) {
      *p.n_tiles = n_tiles;
      p.tiles[n_tiles] = {0, 0, 0, 0};
    }
  }
  block_barrier();
  const int expert = thread_id(), slot = expert < p.n_experts ? slot_of(p, expert) : -1;
  if (slot >= 0) {
    const int first = positions[expert];
    for (int i = 0, tile = first_tiles[expert]; i < count; i += p.tile_rows, ++tile)
      p.tiles[tile] = {expert, slot, first + i, min(count - i, p.tile_rows)};
  }
  block_barrier();
  for (int i = thread_id(); i < p.n_choices; i += n_threads()) {
    const int position = atomic_add(positions + p.experts[i], 1);
    p.choices[position] = i;
    p.x_rows[position] = i / p.k;
  }
}

}  // namespace lb::gpu
