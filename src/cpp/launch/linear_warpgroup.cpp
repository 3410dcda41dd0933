// The tile and the share that are expected to end first.
#include "launch/linear_warpgroup.h"

#include <algorithm>

namespace lb::gpu {
namespace {

struct WarpgroupKernel {
  DType type;
  int tile_rows, tile_outs;
  const char* name;
};
constexpr WarpgroupKernel kKernels[] = {
    {DType::kF16, 128, 256, "linear_warpgroup_f16_256x128_kernel"},
    {DType::kF16, 64, 256, "linear_warpgroup_f16_256x64_kernel"},
    {DType::kF16, 128, 128, "linear_warpgroup_f16_128x128_kernel"},
    {DType::kBF16, 128, 256, "linear_warpgroup_bf16_256x128_kernel"},
    {DType::kBF16, 64, 256, "linear_warpgroup_bf16_256x64_kernel"},
    {DType::kBF16, 128, 128, "linear_warpgroup_bf16_128x128_kernel"},
    {DType::kQ8_0, 128, 256, "linear_warpgroup_q8_0_256x128_kernel"},
    {DType::kQ8_0, 64, 256, "linear_warpgroup_q8_0_256x64_kernel"},
    {DType::kQ8_0, 128, 128, "linear_warpgroup_q8_0_128x128_kernel"},
    {DType::kQ4_0, 128, 256, "linear_warpgroup_q4_0_256x128_kernel"},
    {DType::kQ4_0, 64, 256, "linear_warpgroup_q4_0_256x64_kernel"},
    {DType::kQ4_0, 128, 128, "linear_warpgroup_q4_0_128x128_kernel"},
    {DType::kQ4_K, 128, 256, "linear_warpgroup_q4_k_256x128_kernel"},
    {DType::kQ4_K, 64, 256, "linear_warpgroup_q4_k_256x64_kernel"},
    {DType::kQ4_K, 128, 128, "linear_warpgroup_q4_k_128x128_kernel"},
    {DType::kQ6_K, 128, 256, "linear_warpgroup_q6_k_256x128_kernel"},
    {DType::kQ6_K, 64, 256, "linear_warpgroup_q6_k_256x64_kernel"},
    {DType::kQ6_K, 128, 128, "linear_warpgroup_q6_k_128x128_kernel"},
};

long ceil_div(long n, long unit) { return (n + unit - 1) / unit; }

// Clocks of a multiprocessor: a chunk takes what its products take at 2,048 a clock and what surrounds them; then there
// is what a tile costs besides.
struct Clocks {
  long chunk, tile, sum;
};
Clocks clocks_of(const WarpgroupKernel& kernel, int n_blocks) {
  const long values = long(kernel.tile_rows) * kernel.tile_outs;
  const int chunk_values = warpgroup_values(kernel.type);
  return {.chunk = 600 + values * chunk_values / 2048,
          .tile = 500 + values / 16,
          .sum = 5000 + n_blocks * values / 250};
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
    const Clocks clocks = clocks_of(kernel, int(most));
    const long rounds = n_tiles / most * (n_chunks * clocks.chunk + clocks.tile);
    const long whole = rounds + (n_left ? n_chunks * clocks.chunk + clocks.tile : 0);
    const long shared = rounds + ceil_div(n_left * n_chunks, most) * clocks.chunk + 2 * clocks.tile + clocks.sum;
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
