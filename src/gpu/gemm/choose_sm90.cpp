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

struct Choice {
  GemmConfig config;
  long clocks;
};

std::optional<Choice> fastest(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  const int chunk_values = warpgroup_values(first.type);
  const long n_chunks = ceil_div(first.n_in, chunk_values), n_sms = std::max(1, target.n_sms);
  std::optional<Choice> best;
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
    if (best && clocks >= best->clocks) continue;
    best = {{.kernel = kernel.name,
             .chunk_values = chunk_values,
             .tile_rows = kernel.tile_rows,
             .tile_outs = kernel.tile_outs,
             .n_stages = 0,
             .threads = kWarpgroupThreads,
             .shared_bytes = size_t(warpgroup_shared_bytes(kernel.type, kernel.tile_rows, kernel.tile_outs)),
             .n_blocks = int(std::min(n_sms, is_shared ? n_tiles * n_chunks : n_tiles)),
             .n_whole_tiles = int(is_shared ? n_tiles - n_left : n_tiles)},
            clocks};
  }
  return best;
}

struct GatedKernel {
  DType type;
  int chunk_clocks;
  const char* name;
};
constexpr GatedKernel kGatedKernels[] = {
#define X(kernel, Type, kChunkClocks) {DType::k##Type, kChunkClocks, #kernel},
    LB_GEMM_SM90_GATED(X)
#undef X
};

}  // namespace

std::optional<GemmConfig> choose_warpgroup_config(const LinearGroup& group, const Target& target) {
  if (const std::optional<Choice> choice = fastest(group, target)) return choice->config;
  return {};
}

std::optional<GemmConfig> choose_gated_config(const LinearGroup& group, const Target& target) {
  const Linear &gate = group.products[0], &up = group.products[1];
  if (group.n != 2 || gate.type != up.type || gate.n_out != up.n_out || gate.add != nullptr || up.add != nullptr)
    return {};
  const auto kernel = std::ranges::find(kGatedKernels, gate.type, &GatedKernel::type);
  if (kernel == std::end(kGatedKernels) || !target.has(kernel->name)) return {};
  const std::optional<Choice> separate = fastest(group, target);
  const long n_tiles = long(ceil_div(gate.n_out, kGatedOuts)) * ceil_div(gate.rows, kGatedRows);
  const int chunk_values = warpgroup_values(gate.type);
  const long n_chunks = ceil_div(gate.n_in, chunk_values), n_sms = std::max(1, target.n_sms);
  // Tiles are whole, and store half as much. A SwiGlu after separate products moves 4 bytes more per value, of about
  // 2000 that arrive per clock.
  const long tile = kGatedRows * kGatedOuts / 3,
             clocks = ceil_div(n_tiles, n_sms) * (n_chunks * kernel->chunk_clocks + tile);
  if (separate && separate->clocks + long(gate.rows) * gate.n_out / 500 <= clocks) return {};
  return GemmConfig{.kernel = kernel->name,
                    .chunk_values = chunk_values,
                    .tile_rows = kGatedRows,
                    .tile_outs = kGatedOuts,
                    .n_stages = 0,
                    .threads = kWarpgroupThreads,
                    .shared_bytes = size_t(warpgroup_shared_bytes(gate.type, kGatedRows, 2 * kGatedOuts)),
                    .n_blocks = int(std::min(n_sms, n_tiles)),
                    .n_whole_tiles = int(n_tiles)};
}

}  // namespace lb::gpu
