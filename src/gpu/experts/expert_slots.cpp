// Experts in slots of device memory (ExpertSlots): which experts of a pass are copied to which slots, and the copies
// from host memory. The choice is deterministic: missing experts in ascending order take the slots of the experts that
// were used least, of equals the longest unused. No result depends on it. Bound: find_experts, latency; fill_slots, the
// link.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/experts/copy_unit.h"
#include "gpu/experts/route.h"

namespace lb::gpu {

static_assert(kFindThreads == 512);  // as the launch bounds below say

// Threads before this one that vote, and all that do. counts: [n_warps()] in shared memory.
struct Rank {
  int before, all;
};
LB_DEVICE Rank block_rank(bool vote, int* counts) {
  const uint32_t votes = ballot(vote);
  if (lane() == 0) counts[warp()] = count_bits(votes);
  block_barrier();
  Rank rank = {count_bits(votes & ((1u << lane()) - 1)), 0};
  for (int w = 0; w < n_warps(); ++w) {
    if (w < warp()) rank.before += counts[w];
    rank.all += counts[w];
  }
  block_barrier();
  return rank;
}

// The cache's state of this thread's expert.
struct ExpertState {
  uint32_t clock;
  int slot;
  uint32_t uses, last, served;
};
LB_DEVICE ExpertState load_state(const ExpertCache& cache, int n_experts) {
  const int expert = thread_id();
  if (expert >= n_experts) return {cache.clock, -1, 0, 0, 0};
  return {cache.clock, cache.slots[expert], cache.uses[expert], cache.last[expert], cache.served[expert]};
}
LB_DEVICE void note_uses(ExpertCache& cache, ExpertState& state, int expert, uint32_t clock, uint32_t count,
                         int n_choices) {
  state.uses = (state.uses >> (clock % kAgingPasses == 0)) + count * kPassUses / uint32_t(n_choices);
  if (count > 0) state.last = clock;
  cache.uses[expert] = state.uses;
  cache.last[expert] = state.last;
  cache.chosen[expert] += count;
}

// Experts leave in ascending order of their keys, which all differ.
inline constexpr uint64_t kStays = ~uint64_t(0);
inline constexpr int kExpertBits = 9, kUsesShift = 32 + kExpertBits;
static_assert(kMaxExperts <= 1 << kExpertBits);
static_assert(kUsesShift < 64 && uint64_t(2 * kAgingPasses * kPassUses) < uint64_t(1) << (64 - kUsesShift));
LB_DEVICE uint64_t key_of(const ExpertState& state, int expert) {
  return uint64_t(state.uses) << kUsesShift | uint64_t(state.last) << kExpertBits | uint32_t(expert);
}
LB_DEVICE uint64_t block_min(uint64_t key, uint64_t* warp_keys) {
  const uint64_t of_warp = warp_min(key);
  if (lane() == 0) store(warp_keys + warp(), of_warp);
  block_barrier();
  return warp_min(lane() < n_warps() ? load<uint64_t>(warp_keys + lane()) : kStays);
}

// Shared memory of find_experts.
struct FindMemory {
  int* counts;     // [kMaxExperts] choices of each expert
  int* slots;      // [kMaxExperts] that experts leave
  uint64_t* keys;  // [2, warps] for block_min, which one barrier separates from the one before the last
  int* warp_counts;
};

// One block, a thread per expert. The block's threads have not yet met since they wrote p.experts. state: loaded before
// the route was known, so that its latency is not added to the router's.
LB_DEVICE void find_experts(const FindExperts& p, ExpertState state, const FindMemory& memory) {
  int* const counts = memory.counts;
  ExpertCache& cache = *p.cache;
  const int expert = thread_id();
  const bool is_expert = expert < p.n_experts;
  store(counts + expert, 0);
  block_barrier();
  for (int i = thread_id(); i < p.n_choices; i += n_threads()) atomic_add(counts + p.experts[i], 1);
  block_barrier();

  const uint32_t clock = state.clock + (p.group == 0), count = uint32_t(load<int>(counts + expert));
  const bool is_wanted = is_expert && count > 0 && (p.group == 0 || state.served != clock);
  const bool is_hit = is_wanted && state.slot >= 0, is_miss = is_wanted && state.slot < 0;
  if (is_expert && p.group == 0) note_uses(cache, state, expert, clock, count, p.n_choices);
  const Rank hits = block_rank(is_hit, memory.warp_counts);
  const Rank misses = block_rank(is_miss, memory.warp_counts);
  const int n_fills = min(misses.all, min(p.max_fills, p.n_slots - hits.all));
  uint64_t key = state.slot >= 0 && !is_hit ? key_of(state, expert) : kStays;
  for (int i = 0; i < n_fills; ++i) {  // a step has one or two
    if (block_min(key, memory.keys + i % 2 * n_warps()) != key) continue;
    store(memory.slots + i, state.slot);
    cache.slots[expert] = -1;
    key = kStays;
  }
  block_barrier();

  int now = is_hit ? state.slot : -1;
  if (is_miss && misses.before < n_fills) {
    now = load<int>(memory.slots + misses.before);
    cache.slots[expert] = now;
    const ExpertFill fill = {expert, now};
    cache.fills.of[misses.before] = fill;
    if (p.host_fills != nullptr) p.host_fills->of[misses.before] = fill;
  }
  if (is_expert) cache.now[expert] = is_miss && now >= 0 && p.products_copy ? copied_by_products(now) : now;
  if (now >= 0) cache.served[expert] = clock;
  if (expert == 0) {
    cache.clock = clock;
    cache.fills.n = n_fills;
    if (p.host_fills != nullptr) p.host_fills->n = n_fills;
    cache.counts.hits += uint32_t(hits.all);
    cache.counts.misses += uint32_t(n_fills);
  }
}

LB_KERNEL(find_experts_kernel, FindExperts, 512, 1) {
  LB_SHARED(int, counts, kMaxExperts);
  LB_SHARED(int, slots, kMaxExperts);
  LB_SHARED(uint64_t, keys, 2 * kFindThreads / 32);
  LB_SHARED(int, warp_counts, kFindThreads / 32);
  dependents_may_launch();
  wait_for_previous();
  find_experts(p, load_state(*p.cache, p.n_experts), {&counts[0], &slots[0], &keys[0], &warp_counts[0]});
}

// The router's choice and find_experts, for a few rows: a warp per row, then all threads.
LB_KERNEL(route_find_experts_kernel, RouteFindExperts, 512, 1) {
  LB_SHARED(int, counts, kMaxExperts);
  LB_SHARED(int, slots, kMaxExperts);
  LB_SHARED(uint64_t, keys, 2 * kFindThreads / 32);
  LB_SHARED(int, warp_counts, kFindThreads / 32);
  dependents_may_launch();
  wait_for_previous();
  const ExpertState state = load_state(*p.find.cache, p.find.n_experts);
  if (warp() < p.route.rows) route(p.route, warp());
  find_experts(p.find, state, {&counts[0], &slots[0], &keys[0], &warp_counts[0]});
}

// Copies n experts; from_to(number) says which one and to which slot. Blocks divide the units of all.
template <class FromTo>
LB_DEVICE void copy_experts(const ExpertPieces& pieces, int n, FromTo&& from_to) {
  for (int unit = block_id(); unit < n * pieces.n_units; unit += n_blocks()) {
    const ExpertFill fill = from_to(unit / pieces.n_units);
    int at = unit % pieces.n_units, i = 0;
    while (at >= pieces.of[i].n_units) at -= pieces.of[i++].n_units;
    const ExpertPiece piece = pieces.of[i];
    const int first = at * kFillUnit;
    copy_unit(piece.from + long(fill.expert) * piece.bytes + first, piece.to + long(fill.slot) * piece.bytes + first,
              min(kFillUnit, piece.bytes - first), piece.bytes % 16 == 0);
  }
}

// dependents_may_launch() is missing on purpose: the products launch after the copies, so L1 has no line of a slot's
// earlier expert.
LB_KERNEL(fill_slots_kernel, FillSlots, kFillThreads, 1) {
  wait_for_previous();
  if (block_id() == 0 && thread_id() == 0) count_copies(*p.cache, p.pieces.bytes, p.counts);
  copy_experts(p.pieces, p.cache->fills.n, [&](int number) {
    const ExpertFill fill = p.cache->fills.of[number];
    return p.is_staged ? ExpertFill{number, fill.slot} : fill;
  });
}

// Tables of the groups of a long prompt. One block, a thread per expert.
LB_KERNEL(find_streamed_kernel, FindStreamed, 512, 1) {
  LB_SHARED(int, choices, kMaxExperts);
  LB_SHARED(int, warp_counts, kFindThreads / 32);
  int* const counts = &choices[0];
  ExpertCache& cache = *p.cache;
  const int expert = thread_id();
  store(counts + expert, 0);
  dependents_may_launch();
  wait_for_previous();
  block_barrier();
  for (int i = thread_id(); i < p.n_choices; i += n_threads()) atomic_add(counts + p.experts[i], 1);
  block_barrier();
  const bool is_expert = expert < p.n_experts;
  ExpertState state = load_state(cache, p.n_experts);
  const uint32_t clock = state.clock + 1, count = uint32_t(load<int>(counts + expert));
  const int slot = state.slot;
  if (is_expert) note_uses(cache, state, expert, clock, count, p.n_choices);
  const Rank missing = block_rank(is_expert && slot < 0, &warp_counts[0]);
  const Rank hits = block_rank(is_expert && slot >= 0 && count > 0, &warp_counts[0]);
  const Rank misses = block_rank(is_expert && slot < 0 && count > 0, &warp_counts[0]);
  const int in_ring = missing.before / p.group_experts;
  const int own = slot >= 0 ? 0 : 1 + in_ring;
  const int place = slot >= 0 ? slot : missing.before % p.group_experts;
  for (int group = 0; group < p.n_groups && is_expert; ++group)
    p.tables[group * p.n_experts + expert] = count > 0 && group == own ? place : -1;
  if (expert == 0) {
    cache.clock = clock;
    p.counts->hits = cache.counts.hits += uint32_t(hits.all);
    p.counts->misses = cache.counts.misses += uint32_t(misses.all);
    p.counts->bytes = cache.counts.bytes += (unsigned long long)missing.all * uint32_t(p.expert_bytes);
  }
}

// Copies the missing experts [first, first + group_experts), in ascending order, to the part of the ring in `pieces`.
LB_KERNEL(stream_experts_kernel, StreamExperts, kFillThreads, 1) {
  LB_SHARED(int, list, kMaxExperts);
  LB_SHARED(int, warp_counts, kFillThreads / 32);
  int n_missing = 0;
  for (int first = 0; first < p.n_experts; first += kFillThreads) {
    const int expert = first + thread_id();
    const bool is_missing = expert < p.n_experts && p.cache->slots[expert] < 0;
    const Rank rank = block_rank(is_missing, &warp_counts[0]);
    if (is_missing) list[n_missing + rank.before] = expert;
    n_missing += rank.all;
  }
  block_barrier();
  copy_experts(p.pieces, max(0, min(p.group_experts, n_missing - p.first)),
               [&](int number) { return ExpertFill{list[p.first + number], number}; });
}

}  // namespace lb::gpu
