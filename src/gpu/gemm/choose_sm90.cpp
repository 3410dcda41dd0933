// Chooses the wgmma tile and the tile sharing with the shortest expected time. Tiles have 64 or 128 rows, so any row
// count is tiled like the next multiple of 64: engine/backend_gpu.cpp sizes scratch only for such multiples.
#include "gpu/gemm/choose_sm90.h"

#include <algorithm>

#include "gpu/ceil_div.h"
#include "gpu/gemm/instances.h"
#include "gpu/linear_group.h"

namespace lb::gpu {
namespace {

struct WarpgroupKernel {
  DType type;
  int tile_rows, tile_outs;
  int chunk_clocks;
  const char* name;
};
constexpr WarpgroupKernel kKernels[] = {
#define X(kernel, Type, kTileOuts, kTileRows, kChunkClocks) \
  {DType::k##Type, kTileRows, kTileOuts, kChunkClocks, #kernel},
    LB_GEMM_SM90(X)
#undef X
};

// Clocks of a tile in addition to its chunks, and of summing shared tiles. Measured on an H100.
long tile_clocks(const WarpgroupKernel& kernel) { return kernel.tile_rows * kernel.tile_outs / 3; }
long sum_clocks(const WarpgroupKernel& kernel, long n_blocks) {
  return 1500 + n_blocks * kernel.tile_rows * kernel.tile_outs / 115;
}

}  // namespace

std::optional<GemmConfig> choose_warpgroup_config(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  const int chunk_values = warpgroup_values(first.type);
  const long n_chunks = ceil_div(first.n_in, chunk_values), n_sms = std::max(1, target.n_sms);
  std::optional<GemmConfig> best;
  long best_clocks = 0;
  for (const WarpgroupKernel& kernel : kKernels) {
    if (kernel.type != first.type || !target.has(kernel.name)) continue;
    long n_tiles = 0;
    for (const Linear& op : ops_of(group)) n_tiles += ceil_div(op.n_out, kernel.tile_outs);
    n_tiles *= ceil_div(first.rows, kernel.tile_rows);
    // Whole rounds of one tile per SM. The remaining tiles form a last round of whole tiles, or all SMs share them.
    const long n_left = n_tiles % n_sms;
    const long tile = tile_clocks(kernel), rounds = n_tiles / n_sms * (n_chunks * kernel.chunk_clocks + tile);
    const long whole = rounds + (n_left > 0 ? n_chunks * kernel.chunk_clocks + tile : 0);
    const long shared =
        rounds + ceil_div(n_left * n_chunks, n_sms) * kernel.chunk_clocks + 2 * tile + sum_clocks(kernel, n_sms);
    const bool is_shared = n_left > 0 && shared < whole;
    const long clocks = is_shared ? shared : whole;
    if (best && clocks >= best_clocks) continue;
    best_clocks = clocks;
    best = {.kernel = kernel.name,
            .chunk_values = chunk_values,
            .tile_rows = kernel.tile_rows,
            .tile_outs = kernel.tile_outs,
            .n_stages = 0,
            .threads = kWarpgroupThreads,
            .shared_bytes = size_t(warpgroup_shared_bytes(kernel.type, kernel.tile_rows, kernel.tile_outs)),
            .n_blocks = int(std::min(n_sms, is_shared ? n_tiles * n_chunks : n_tiles)),
            .n_whole_tiles = int(is_shared ? n_tiles - n_left : n_tiles)};
  }
  return best;
}

}  // namespace lb::gpu
