// SkinnyConfig: a group's kernel on a target, and how n_in is divided into slices and the outputs into ranges. choose.h
// turns it into launches.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "base/dtype_id.h"
#include "gpu/ceil_div.h"
#include "gpu/gemm_skinny/shape.h"
#include "pack/target.h"

namespace lb::gpu {

struct SkinnyKernel {
  DType type, second;  // second: type of the group's last matrices; kF32 (which has no kernel) if all have one type
  int tile_rows;
  const char* name;
};

// The work that a cut divides. Pairs hold the first and the second weight type.
struct SkinnyProblem {
  const SkinnyKernel* kernel;
  Epilogue epilogue;
  int n_k_blocks;
  std::array<int, 2> n_grains;
  int grain() const { return skinny_grain(epilogue); }
};

struct SkinnyConfig {
  SkinnyProblem problem;
  int n_slices;
  std::array<int, 2> n_ranges;
  int max_range_tiles, max_sum_tiles, slice_partials, tile_partials;
  bool is_cluster;
  size_t shared_bytes;
  int max_k_blocks() const { return ceil_div(problem.n_k_blocks, n_slices); }
  int all_ranges() const { return n_ranges[0] + n_ranges[1]; }
  size_t partial_bytes() const {
    return sizeof(float) * all_ranges() * n_slices * skinny_partials(max_range_tiles) * problem.kernel->tile_rows *
           kSkinnyOuts;
  }
};

// Whether groups of 2 to 32 rows, and of this group's rows if they are more, are multiplied in one launch with this
// epilogue. Such a launch sums in one order.
bool has_one_order(LinearGroup group, Epilogue epilogue, const Target& target);

// Example: gemm_skinny_q4_k_16_kernel: 10 slices of up to 7 blocks, 13 ranges of up to 25 tiles, 64896 B
std::string to_string(const SkinnyConfig& config);

// Returns nullopt if the pack has no kernel for the group, or if no kernel computes the epilogue.
std::optional<SkinnyConfig> skinny_config(const LinearGroup& group, Epilogue epilogue, const Target& target);

}  // namespace lb::gpu
