// The kernel with the fewest rows to spare, and the slices that are expected to end first.
#include "launch/linear_few.h"

#include <algorithm>

namespace lb::gpu {
namespace {

struct FewKernel {
  DType type;
  int tile_rows;
  const char* name;
};
constexpr FewKernel kKernels[] = {
    {DType::kQ4_K, 8, "linear_few_q4_k_8_kernel"},   {DType::kQ4_K, 16, "linear_few_q4_k_16_kernel"},
    {DType::kQ4_K, 24, "linear_few_q4_k_24_kernel"}, {DType::kQ4_K, 32, "linear_few_q4_k_32_kernel"},
    {DType::kQ4_K, 48, "linear_few_q4_k_48_kernel"}, {DType::kQ5_K, 8, "linear_few_q5_k_8_kernel"},
    {DType::kQ5_K, 16, "linear_few_q5_k_16_kernel"}, {DType::kQ5_K, 24, "linear_few_q5_k_24_kernel"},
    {DType::kQ5_K, 32, "linear_few_q5_k_32_kernel"}, {DType::kQ6_K, 8, "linear_few_q6_k_8_kernel"},
    {DType::kQ6_K, 16, "linear_few_q6_k_16_kernel"}, {DType::kQ6_K, 24, "linear_few_q6_k_24_kernel"},
    {DType::kQ6_K, 32, "linear_few_q6_k_32_kernel"},
};

// Of 227 KB of an H100 that a block can have, what it can have with the division that Pack asks for.
constexpr int kFewWhole = 227, kFewBesideL1 = 163;

int ceil_div(int n, int unit) { return (n + unit - 1) / unit; }

// Nanoseconds of an H100, fitted to what was measured there (docs/kernels/matmul.md): units, x by what a block reads at
// once, pieces and their sums, which a cluster makes sooner. Beside much shared memory too little of L1 is left for
// weights on their way.
long expected_ns(int tile_rows, int most_blocks, int most_outs, int n_slices, bool is_cluster, bool is_large) {
  const int segments = tile_rows * ceil_div(most_blocks * kFewValues / kRoundRun, 32);
  const int passes = ceil_div(segments, 4 * kFewWarps);
  const long units = 9l * most_blocks * (most_outs + 8), pieces = 6l * tile_rows * ceil_div(most_outs, 16);
  const long x = 900 * passes + 10 * tile_rows * most_blocks;
  return (is_large ? 5 : 4) * units / 4 + x + pieces + 30 * tile_rows * n_slices - (is_cluster ? 1500 : 0);
}

}  // namespace

std::optional<FewCut> cut_for_few(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  const auto* kernel = std::ranges::find_if(kKernels, [&](const FewKernel& k) {
    return k.type == first.type && k.tile_rows >= first.rows && target.has(k.name);
  });
  if (kernel == std::end(kKernels) || first.n_in % kFewValues != 0) return {};
  int n_tiles = 0;
  for (int i = 0; i < group.n; ++i) {
    if (quant::plane_layout(first.type, group.products[i].n_out, first.n_in).bytes > 0xffffffff) return {};
    n_tiles += ceil_div(group.products[i].n_out, kFewOuts);
  }
  const int n_blocks = first.n_in / kFewValues, n_sms = std::max(1, target.n_sms);
  // Blocks of a range wait for each other on their multiprocessors. Where another model's grid runs beside this one, a
  // range of which each has begun a part must leave room for the rest.
  const int most_slices = std::min({n_blocks, n_sms, std::max(4, n_sms / 2)});
  std::optional<FewCut> best;
  long best_ns = 0;
  for (int n_slices = 1; n_slices <= most_slices; ++n_slices) {
    const int most_blocks = ceil_div(n_blocks, n_slices);
    const int n_ranges = std::min({n_sms / n_slices, n_tiles, kFewRanges});
    const int range_tiles = ceil_div(n_tiles, n_ranges), most_outs = range_tiles * kFewOuts;
    const size_t shared =
        size_t(few_x_bytes(kernel->tile_rows, most_blocks)) + size_t(range_tiles) * n_slices * kFewPieceBytes;
    if (shared > target.shared_block_bytes) continue;
    const bool is_cluster = target.capabilities.clusters && n_slices == kFewCluster;
    const bool is_large = shared > target.shared_block_bytes / kFewWhole * kFewBesideL1;
    const long ns = expected_ns(kernel->tile_rows, most_blocks, most_outs, n_slices, is_cluster, is_large);
    if (best && ns >= best_ns) continue;
    best_ns = ns;
    best = {.kernel = kernel->name,
            .tile_rows = kernel->tile_rows,
            .n_slices = n_slices,
            .n_ranges = n_ranges,
            .range_tiles = range_tiles,
            .is_cluster = is_cluster,
            .shared_bytes = shared};
  }
  return best;
}

}  // namespace lb::gpu
