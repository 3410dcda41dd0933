// Reductions and radix select over all candidates. Exact integers throughout (ops/sample_rules.h), so results do not
// depend on the order of atomics or on the number of blocks. Every thread gets each result.
#pragma once

#include "ops/sample.h"
#include "ops/sample_rules.h"

namespace lb::gpu {

using namespace sampling;

inline constexpr int kScratch = 35;  // uint64_t words of shared memory: one per warp, then three for find_crossing

LB_DEVICE uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// --- reductions over a block, and over one value per block

LB_DEVICE uint64_t block_total(uint64_t v, uint64_t* scratch) {
  v = warp_sum(v);
  if (lane() == 0) scratch[warp()] = v;
  block_barrier();
  v = warp_sum(lane() < n_warps() ? scratch[lane()] : uint64_t(0));
  block_barrier();
  return v;
}

LB_DEVICE uint64_t warp_largest(uint64_t v) {
  LB_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) v = larger(v, shuffle_xor(v, mask));
  return v;
}

LB_DEVICE uint64_t block_largest(uint64_t v, uint64_t* scratch) {
  v = warp_largest(v);
  if (lane() == 0) scratch[warp()] = v;
  block_barrier();
  v = warp_largest(lane() < n_warps() ? scratch[lane()] : uint64_t(0));
  block_barrier();
  return v;
}

LB_DEVICE uint64_t total_of(const uint64_t* values, int n, uint64_t* scratch) {
  uint64_t v = 0;
  for (int i = thread_id(); i < n; i += n_threads()) v += values[i];
  return block_total(v, scratch);
}

LB_DEVICE uint64_t largest_of(const uint64_t* values, int n, uint64_t* scratch) {
  uint64_t v = 0;
  for (int i = thread_id(); i < n; i += n_threads()) v = larger(v, values[i]);
  return block_largest(v, scratch);
}

LB_DEVICE uint64_t warp_prefix(uint64_t v) {  // inclusive
  LB_UNROLL
  for (int n = 1; n < 32; n *= 2) {
    const uint64_t before = shuffle_up(v, n);
    if (lane() >= n) v += before;
  }
  return v;
}

struct Crossing {
  int at;
  uint64_t before, size;  // sum of the values before `at`; value(at)
};

// The first index at which the running sum of value(0..n-1) reaches goal_of(total), which must be in [1, total].
template <class Value, class GoalOf>
LB_DEVICE Crossing find_crossing(int n, uint64_t* scratch, Value value, GoalOf goal_of) {
  const int each = (n + n_threads() - 1) / n_threads();
  const int first = min(thread_id() * each, n), last = min(first + each, n);
  uint64_t own = 0;
  for (int i = first; i < last; ++i) own += value(i);
  const uint64_t in_warp = warp_prefix(own);
  if (lane() == 31) scratch[warp()] = in_warp;
  block_barrier();
  const uint64_t warp_total = lane() < n_warps() ? scratch[lane()] : 0;
  const uint64_t warps_prefix = warp_prefix(warp_total);
  uint64_t before = shuffle(warps_prefix - warp_total, warp()) + in_warp - own;
  const uint64_t goal = goal_of(shuffle(warps_prefix, 31));
  if (before < goal && goal <= before + own) {
    int at = first;
    uint64_t size = value(at);
    while (before + size < goal) {
      before += size;
      size = value(++at);
    }
    scratch[32] = uint64_t(at);
    scratch[33] = before;
    scratch[34] = size;
  }
  block_barrier();
  const Crossing crossing{int(scratch[32]), scratch[33], scratch[34]};
  block_barrier();
  return crossing;
}

// --- candidates

// Position in an order, compared lexicographically; smaller is earlier. Candidates spread evenly over `coarse`, so its
// histograms have few collisions; value and id break ties.
struct Rank {
  uint32_t coarse, value, id;
};
inline constexpr Rank kLastRank = {0xffffffff, 0xffffffff, 0xffffffff};

LB_DEVICE bool within(const Rank& a, const Rank& end) {  // whether a is not after `end`
  if (a.coarse != end.coarse) return a.coarse < end.coarse;
  return a.value != end.value ? a.value < end.value : a.id <= end.id;
}

struct Candidate {
  Rank rank;  // order by likelihood: distance, logit, id
  uint64_t weight;
};

LB_DEVICE Candidate candidate(float largest, float x, int id) {
  const uint32_t d = distance(largest, x);
  return {{d, ~ordered(x), uint32_t(id)}, weight(d)};
}

LB_DEVICE Rank typical_rank(const Candidate& c, uint32_t mean) {
  return {atypicality(c.rank.coarse, c.weight, mean), c.rank.value, c.rank.id};
}

// Bounds on the candidates that are still eligible.
struct Filters {
  Rank likely = kLastRank;
  Rank typical = kLastRank;
  uint32_t mean = 0;        // mean distance, for typical_rank()
  uint64_t min_weight = 0;  // min-p
};

LB_DEVICE bool keeps(const Filters& f, const Candidate& c) {
  return within(c.rank, f.likely) && within(typical_rank(c, f.mean), f.typical) && c.weight >= f.min_weight;
}

// A block's slice of a row of logits.
struct VocabSlice {
  const float* x;
  float largest;  // of the whole row
  int begin, end;

  LB_DEVICE Candidate at(int id) const { return candidate(largest, x[id], id); }
};

// --- the end of a prefix of an order

enum class Order { kLikely, kTypical };

// Length of a prefix: a number of candidates, or a share of the total weight.
struct CountOf {
  static constexpr bool kWeighs = false;
  uint64_t count;  // at most the number of candidates
};
struct ShareOf {
  static constexpr bool kWeighs = true;
  float share;
};

// Three histograms rotate: one is filled, the next is cleared, and slower blocks may still read the previous one.
LB_DEVICE void clear_histogram(SampleGrid& grid, int histogram) {
  for (int i = block_id() * n_threads() + thread_id(); i < kSampleBins; i += n_blocks() * n_threads()) {
    grid.bin_weights[histogram][i] = 0;
    grid.bin_counts[histogram][i] = 0;
  }
}

LB_DEVICE void add_to(uint64_t* sum, uint64_t v) {
  atomic_add(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(v));
}

// Adds each member lane's candidate to its bin. If all members hit one bin (ties), the warp adds once.
template <bool kWeighs>
LB_DEVICE void add_to_bins(uint64_t* weights, uint32_t* counts, bool counting, bool member, int bin, uint64_t weight) {
  if (!any(member)) return;
  const int first = warp_min(member ? lane() : 32);
  const int first_bin = shuffle(bin, first);
  if (all(!member || bin == first_bin)) {
    const int count = warp_sum(int(member));
    weight = kWeighs ? warp_sum(member ? weight : uint64_t(0)) : 0;
    if (lane() != first) return;
    if (counting) atomic_add(counts + bin, uint32_t(count));
    if (kWeighs) add_to(weights + bin, weight);
  } else if (member) {
    if (counting) atomic_add(counts + bin, 1u);
    if (kWeighs) add_to(weights + bin, weight);
  }
}

// Radix select: among the candidates that the filters keep, finds the rank of the last one in the shortest prefix that
// reaches `amount`. Each pass finds one digit (11, 11 and 10 bits of each word; the low two digits of an id) with a
// histogram and a grid barrier. The search ends when a bin is taken whole or holds one candidate: usually two passes,
// eight if there are ties.
template <class Amount>
LB_DEVICE Rank radix_select(const VocabSlice& slice, const Filters& filters, Order order, Amount amount,
                            SampleGrid& grid, int& histogram, uint64_t* scratch) {
  constexpr bool kWeighs = Amount::kWeighs;
  Rank end = {0, 0, 0};
  uint64_t need = 0;
  for (int digit = 0; digit < 9; ++digit) {
    if (digit == 6) continue;  // ids are below 2^21
    const int word = digit / 3, part = digit % 3;
    const int shift = part == 0 ? 21 : part == 1 ? 10 : 0, bits = part == 2 ? 10 : 11;
    const uint32_t above = part == 0 ? 0 : 0xffffffffu << (shift + bits);  // mask of the digits already found
    const bool counting = !kWeighs || digit > 0;  // the first bin rarely holds a single candidate
    uint64_t* weights = grid.bin_weights[histogram];
    uint32_t* counts = grid.bin_counts[histogram];
    histogram = histogram == 2 ? 0 : histogram + 1;
    clear_histogram(grid, histogram);
    for (int from = slice.begin; from < slice.end; from += n_threads()) {  // whole warps, for add_to_bins
      const int i = from + thread_id();
      bool member = i < slice.end;
      int bin = 0;
      uint64_t weight = 0;
      if (member) {
        const Candidate c = slice.at(i);
        const Rank at = order == Order::kLikely ? c.rank : typical_rank(c, filters.mean);
        const uint32_t value = word == 0 ? at.coarse : word == 1 ? at.value : at.id;
        const uint32_t found = word == 0 ? end.coarse : word == 1 ? end.value : end.id;
        member = (word < 1 || at.coarse == end.coarse) && (word < 2 || at.value == end.value) &&
                 ((value ^ found) & above) == 0 && (!kWeighs || c.weight > 0) && keeps(filters, c);
        bin = int(value >> shift & ((1u << bits) - 1));
        weight = c.weight;
      }
      add_to_bins<kWeighs>(weights, counts, counting, member, bin, weight);
    }
    grid_barrier(&grid.barrier);
    const Crossing crossing = find_crossing(
        kSampleBins, scratch, [&](int i) { return kWeighs ? weights[i] : uint64_t(counts[i]); },
        [&]([[maybe_unused]] uint64_t total) {
          if (digit > 0) return need;
          if constexpr (kWeighs) {
            need = larger(share_of(total, amount.share), 1);
          } else {
            need = amount.count;
          }
          return need;
        });
    need -= crossing.before;
    const bool done = crossing.size == need || counts[crossing.at] == 1;
    const uint32_t found = uint32_t(crossing.at) << shift | (done ? (1u << shift) - 1 : 0);
    if (word == 0) end.coarse |= found;
    if (word == 1) end.value |= found;
    if (word == 2) end.id |= found;
    if (!done) continue;
    if (word < 1) end.value = 0xffffffff;
    if (word < 2) end.id = 0xffffffff;
    break;
  }
  return end;
}

}  // namespace lb::gpu
