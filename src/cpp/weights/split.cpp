#include "weights/split.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"

namespace lb {
namespace {

// Part `rank` of n of `count` items, as even as possible.
SplitRange part_of(int count, int rank, int n) {
  const int first = static_cast<int>(int64_t{count} * rank / n);
  return {first, static_cast<int>(int64_t{count} * (rank + 1) / n) - first};
}

// The units of a shard that shares a group with other shards.
SplitRange within_a_group(const SplitSection& section, int rank, int n) {
  const int group = static_cast<int>(int64_t{section.groups} * rank / n), sharers = n / section.groups;
  if (section.units_per_group == 1) return {group, 1};
  LB_CHECK(!section.is_tiled && n % section.groups == 0 && section.units_per_group % sharers == 0, kUnsupported, n,
           " shards cannot divide ", section.groups, " groups of ", section.units_per_group, " heads");
  const int each = section.units_per_group / sharers;
  return {group * section.units_per_group + rank % sharers * each, each};
}

// The section's part of shard `rank`, in units.
std::vector<SplitRange> units_of(const SplitSection& section, int rank, int n) {
  if (n > section.groups) return {within_a_group(section, rank, n)};
  const SplitRange groups = part_of(section.groups, rank, n);
  if (!section.is_tiled) return {{groups.first * section.units_per_group, groups.count * section.units_per_group}};
  std::vector<SplitRange> units;
  for (int round = 0; round < section.units_per_group; ++round)
    units.push_back({round * section.groups + groups.first, groups.count});
  return units;
}

}  // namespace

std::vector<SplitRange> shard_of(const Split& split, int n_out, int n_in, int rank, int n) {
  LB_ASSERT(n >= 1 && rank >= 0 && rank < n);
  const int length = split.axis == Split::Axis::kColumns ? n_in : n_out;
  if (split.axis == Split::Axis::kNone) return {{0, length}};
  std::vector<SplitRange> ranges;
  int start = 0;
  for (const SplitSection& section : split.sections) {
    for (const SplitRange& units : units_of(section, rank, n)) {
      const int first = start + units.first * section.unit;
      const int end = std::min(first + units.count * section.unit, length);  // the last block may be partial
      if (end <= first) continue;
      if (!ranges.empty() && ranges.back().first + ranges.back().count == first)
        ranges.back().count = end - ranges.back().first;
      else
        ranges.push_back({first, end - first});
    }
    start += section.groups * section.units_per_group * section.unit;
  }
  LB_ASSERT(start >= length && start - length < Split::kBlock);
  return ranges;
}

}  // namespace lb
