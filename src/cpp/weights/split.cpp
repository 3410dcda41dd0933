#include "weights/split.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <numeric>

#include "base/error.h"

namespace lb {
namespace {

constexpr int kMaxShare = 1000;

// Part `rank` of `count` items, as close to its share as whole items allow, and at least one item.
SplitRange part_of(int count, int rank, std::span<const int> shares) {
  const int n = static_cast<int>(shares.size());
  const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  const auto start_of = [&](int shard) {
    const int64_t before = std::accumulate(shares.begin(), shares.begin() + shard, int64_t{0});
    const int64_t nearest = (2 * count * before + total) / (2 * total);
    return static_cast<int>(std::clamp<int64_t>(nearest, shard, count - (n - shard)));
  };
  const int first = start_of(rank);
  return {first, start_of(rank + 1) - first};
}

// The units of a shard that shares a group with other shards.
SplitRange within_a_group(const SplitSection& section, int rank, std::span<const int> shares) {
  const int n = static_cast<int>(shares.size());
  LB_CHECK(std::ranges::count(shares, shares[0]) == n, kUnsupported, n, " shards have unequal shares and only ",
           section.groups, " groups of heads: every shard needs one of its own");
  const int group = static_cast<int>(int64_t{section.groups} * rank / n), sharers = n / section.groups;
  if (section.units_per_group == 1) return {group, 1};
  LB_CHECK(!section.is_tiled && n % section.groups == 0 && section.units_per_group % sharers == 0, kUnsupported, n,
           " shards cannot divide ", section.groups, " groups of ", section.units_per_group, " heads");
  const int each = section.units_per_group / sharers;
  return {group * section.units_per_group + rank % sharers * each, each};
}

// The section's part of shard `rank`, in units.
std::vector<SplitRange> units_of(const SplitSection& section, int rank, std::span<const int> shares) {
  if (std::ssize(shares) > section.groups) return {within_a_group(section, rank, shares)};
  const SplitRange groups = part_of(section.groups, rank, shares);
  if (!section.is_tiled) return {{groups.first * section.units_per_group, groups.count * section.units_per_group}};
  std::vector<SplitRange> units;
  for (int round = 0; round < section.units_per_group; ++round)
    units.push_back({round * section.groups + groups.first, groups.count});
  return units;
}

}  // namespace

std::vector<SplitRange> shard_of(const Split& split, int n_out, int n_in, int rank, std::span<const int> shares) {
  LB_ASSERT(rank >= 0 && rank < std::ssize(shares));
  const int length = split.axis == Split::Axis::kColumns ? n_in : n_out;
  if (split.axis == Split::Axis::kNone) return {{0, length}};
  std::vector<SplitRange> ranges;
  int start = 0;
  for (const SplitSection& section : split.sections) {
    for (const SplitRange& units : units_of(section, rank, shares)) {
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

std::string to_string(const SplitChoice& choice) {
  if (choice.mode == SplitChoice::Mode::kAuto) return "auto";
  if (choice.mode == SplitChoice::Mode::kLayer) return "layer";
  if (choice.shares.empty()) return "tensor";
  std::string text;
  for (const int share : choice.shares) text += cat(text.empty() ? "" : ",", share);
  return text;
}

std::optional<SplitChoice> split_from_text(std::string_view text) {
  if (text == "auto") return SplitChoice{};
  if (text == "layer") return SplitChoice{SplitChoice::Mode::kLayer};
  SplitChoice choice{SplitChoice::Mode::kTensor};
  if (text == "tensor") return choice;
  for (const char *at = text.data(), *const end = at + text.size();; ++at) {
    int share = 0;
    const auto [stop, error] = std::from_chars(at, end, share);
    if (error != std::errc() || share < 1 || share > kMaxShare) return std::nullopt;
    choice.shares.push_back(share);
    if (stop == end) break;
    if (*stop != ',') return std::nullopt;
    at = stop;
  }
  if (choice.shares.size() < 2) return std::nullopt;
  return choice;
}

}  // namespace lb
