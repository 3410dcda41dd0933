// The tile and the share that are expected to end first. Rows count by 64, so that the scratch memory of numbers of
// rows that are multiples of 64 is that of all others too (engine/place_gpu.cpp).
#include "gpu/gemm/choose_sm90.h"

#include <algorithm>

namespace lb::gpu {
namespace {

struct WarpgroupKernel {
  DType type;
  int tile_rows, tile_outs;
  int chunk_clocks;  // of a multiprocessor: as measured on an H100, all of them at work (docs/kernels/matmul.md)
  const char* name;
};
constexpr WarpgroupKernel kKernels[] = {
    {DType::kF16, 128, 256, 2040, "gemm_sm90_f16_256x128_kernel"},
    {DType::kF16, 64, 256, 1780, "gemm_sm90_f16_256x64_kernel"},
    {DType::kF16, 128, 128, 1260, "gemm_sm90_f16_128x128_kernel"},
    {DType::kBF16, 128, 256, 2040, "gemm_sm90_bf16_256x128_kernel"},
    {DType::kBF16, 64, 256, 1780, "gemm_sm90_bf16_256x64_kernel"},
    {DType::kBF16, 128, 128, 1260, "gemm_sm90_bf16_128x128_kernel"},
    {DType::kQ8_0, 128, 256, 3550, "gemm_sm90_q8_0_256x128_kernel"},
    {DType::kQ8_0, 64, 256, 3160, "gemm_sm90_q8_0_256x64_kernel"},
    {DType::kQ8_0, 128, 128, 1990, "gemm_sm90_q8_0_128x128_kernel"},
    {DType::kQ4_0, 128, 256, 3200, "gemm_sm90_q4_0_256x128_kernel"},
    {DType::kQ4_0, 64, 256, 2430, "gemm_sm90_q4_0_256x64_kernel"},
    {DType::kQ4_0, 128, 128, 1730, "gemm_sm90_q4_0_128x128_kernel"},
    {DType::kQ4_K, 128, 256, 3190, "gemm_sm90_q4_k_256x128_kernel"},
    {DType::kQ4_K, 64, 256, 2430, "gemm_sm90_q4_k_256x64_kernel"},
    {DType::kQ4_K, 128, 128, 1720, "gemm_sm90_q4_k_128x128_kernel"},
    {DType::kQ6_K, 64, 256, 4160, "gemm_sm90_q6_k_256x64_kernel"},
    {DType::kQ6_K, 128, 128, 2050, "gemm_sm90_q6_k_128x128_kernel"},
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
