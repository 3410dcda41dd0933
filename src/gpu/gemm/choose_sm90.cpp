// The tile and the share that are expected to end first. Rows count by 64, so that the scratch memory of numbers of
// rows that are multiples of 64 is that of all others too (engine/place_gpu.cpp).
#include "gpu/gemm/choose_sm90.h"

#include <algorithm>

#include "gpu/gemm/instances.h"

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

long ceil_div(long n, long unit) { return (n + unit - 1) / unit; }

// What a tile costs besides its chunks, and what the sums of shared tiles cost, in clocks: measured there too.
long tile_clocks(const WarpgroupKernel& kernel) { return kernel.tile_rows * kernel.tile_outs / 3; }
long sum_clocks(const WarpgroupKernel& kernel, long n_blocks) {
  return 1500 + n_blocks * kernel.tile_rows * kernel.tile_outs / 115;
}

}  // namespace

std::optional<WarpgroupCut> cut_for_warpgroups(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  const int chunk_values = warpgroup_values(first.type);
  const long n_chunks = ceil_div(first.n_in, chunk_values), most = std::max(1, target.n_sms);
  std::optional<WarpgroupCut> best;
  long best_clocks = 0;
  for (const WarpgroupKernel& kernel : kKernels) {
    if (kernel.type != first.type || !target.has(kernel.name)) continue;
    long n_tiles = 0;
    for (int i = 0; i < group.n; ++i) n_tiles += ceil_div(group.products[i].n_out, kernel.tile_outs);
    n_tiles *= ceil_div(first.rows, kernel.tile_rows);
    const long n_left = n_tiles % most;  // of whole rounds
    const long tile = tile_clocks(kernel), rounds = n_tiles / most * (n_chunks * kernel.chunk_clocks + tile);
    const long whole = rounds + (n_left > 0 ? n_chunks * kernel.chunk_clocks + tile : 0);
    const long shared =
        rounds + ceil_div(n_left * n_chunks, most) * kernel.chunk_clocks + 2 * tile + sum_clocks(kernel, most);
    const bool is_shared = n_left > 0 && shared < whole;
    const long needed = is_shared ? shared : whole;
    if (best && needed >= best_clocks) continue;
    best_clocks = needed;
    best = {.kernel = kernel.name,
            .tile_rows = kernel.tile_rows,
            .tile_outs = kernel.tile_outs,
            .n_blocks = int(std::min(most, is_shared ? n_tiles * n_chunks : n_tiles)),
            .n_whole = int(is_shared ? n_tiles - n_left : n_tiles),
            .shared_bytes = size_t(warpgroup_shared_bytes(kernel.type, kernel.tile_rows, kernel.tile_outs))};
  }
  return best;
}

}  // namespace lb::gpu
