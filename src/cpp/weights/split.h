// Split: how a matrix is divided among the shards of an engine, as the family's manifest declares it. shard_of() is the
// part of one shard. Nothing is divided yet: an engine has one shard.
#pragma once

#include <vector>

namespace lb {

// What stays whole on a shard: heads, or blocks of 32 values, which share a scale in every plane (quant/planes.h).
// `groups` go to the shards in order, and all units of a group go with it. Heads of queries, for example, are units,
// and those that share a KV head are a group.
struct SplitSection {
  int groups, units_per_group;
  int unit;               // rows or columns of one
  bool is_tiled = false;  // unit u belongs to group u % groups; else the units of a group are neighbours
};

struct Split {
  enum class Axis {
    kNone,     // every shard has the whole matrix
    kRows,     // a shard has some outputs
    kColumns,  // a shard has some inputs: its products are partial sums, which the shards add
  };
  Axis axis = Axis::kNone;
  std::vector<SplitSection> sections;  // one after the other along the axis

  static constexpr int kBlock = 32;

  static Split none() { return {}; }
  static Split rows(int n_out) { return {Axis::kRows, {blocks(n_out)}}; }
  static Split columns(int n_in) { return {Axis::kColumns, {blocks(n_in)}}; }
  // Each row alone, as those of a vocabulary.
  static Split single_rows(int n_out) { return {Axis::kRows, {{n_out, 1, 1}}}; }
  static Split head_rows(std::vector<SplitSection> heads) { return {Axis::kRows, std::move(heads)}; }
  static Split head_columns(SplitSection heads) { return {Axis::kColumns, {heads}}; }
  // Whole experts of a matrix that has the rows of all of them.
  static Split experts(int n_experts, int rows) { return {Axis::kRows, {{n_experts, 1, rows}}}; }

 private:
  static SplitSection blocks(int n) { return {(n + kBlock - 1) / kBlock, 1, kBlock}; }
};

// Rows or columns [first, first + count).
struct SplitRange {
  int first, count;
};

// The rows or columns of shard `rank` of n, ascending; the whole matrix where it is not divided. Groups of one unit
// that are fewer than the shards are on several of them, as KV heads are. Throws kUnsupported where the units of a
// group cannot be divided evenly among n shards.
std::vector<SplitRange> shard_of(const Split& split, int n_out, int n_in, int rank, int n);

}  // namespace lb
