// Split: how a matrix is divided among the ranks of an engine that is split by tensors, as the family's manifest
// declares it. shard_of() returns one rank's part; models/slice.cpp makes that rank's model.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lb {

// A unit is never split between shards: a head, or a block of 32 values, which share a scale in every plane
// (quant/planes.h). `groups` go to the shards in order; a group's units stay together unless there are more shards than
// groups. For example, a query head is a unit, and the query heads that share a KV head are a group.
struct SplitSection {
  int groups, units_per_group;
  int unit;               // rows or columns per unit
  bool is_tiled = false;  // unit u belongs to group u % groups; otherwise a group's units are adjacent
};

struct Split {
  enum class Axis {
    kNone,     // every shard has the whole matrix
    kRows,     // a shard has some outputs
    kColumns,  // a shard has some inputs: its products are partial sums that need an all-reduce
  };
  Axis axis = Axis::kNone;
  std::vector<SplitSection> sections;  // consecutive along the axis

  static constexpr int kBlock = 32;

  static Split none() { return {}; }
  static Split rows(int n_out) { return {Axis::kRows, {blocks(n_out)}}; }
  static Split columns(int n_in) { return {Axis::kColumns, {blocks(n_in)}}; }
  // Every row is a unit, as in a vocabulary.
  static Split single_rows(int n_out) { return {Axis::kRows, {{n_out, 1, 1}}}; }
  static Split head_rows(std::vector<SplitSection> heads) { return {Axis::kRows, std::move(heads)}; }
  static Split head_columns(SplitSection heads) { return {Axis::kColumns, {heads}}; }
  // Every expert is a unit, in a matrix that stacks the rows of all experts.
  static Split experts(int n_experts, int rows) { return {Axis::kRows, {{n_experts, 1, rows}}}; }

 private:
  static SplitSection blocks(int n) { return {(n + kBlock - 1) / kBlock, 1, kBlock}; }
};

// Rows or columns [first, first + count).
struct SplitRange {
  int first, count;
};

// The rows or columns of shard `rank`, ascending; the whole matrix if it is not divided. shares: [shards] {3, 1} gives
// shard 0 about three of four groups, and every shard at least one. If there are fewer single-unit groups than shards,
// as with KV heads, each group is replicated on several shards. Throws kUnsupported if a group's units cannot be
// divided evenly among the shards.
std::vector<SplitRange> shard_of(const Split& split, int n_out, int n_in, int rank, std::span<const int> shares);

// How a model is divided among several devices.
struct SplitChoice {
  // Layers on each device; a part of every layer on each; or auto: the first device alone if the whole model fits there
  // with its context, else layers.
  enum class Mode { kAuto, kLayer, kTensor };
  Mode mode = Mode::kAuto;
  std::vector<int> shares{};  // of each device, with kTensor; empty: equal ones

  friend bool operator==(const SplitChoice&, const SplitChoice&) = default;
};
// "auto", "layer", "tensor", or the shares: "3,1".
std::string to_string(const SplitChoice& choice);
std::optional<SplitChoice> split_from_text(std::string_view text);

}  // namespace lb
