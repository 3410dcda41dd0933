// Chooses a skinny GEMM kernel, and the split ("cut") with the shortest expected time.
#include "gpu/gemm_skinny/choose_config.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/gemm_skinny/instances.h"
#include "gpu/linear_group.h"

namespace lb::gpu {
namespace {

constexpr DType kNoType = DType::kF32;  // kF32 has no skinny kernel
constexpr int kSameCutRows = 32;

// clang-format off
constexpr SkinnyKernel kKernels[] = {
#define X(kernel, Type, kTileRows, kUnits) {DType::k##Type, kNoType, kTileRows, #kernel},
    LB_GEMM_SKINNY_PLAIN(X) LB_GEMM_SKINNY_32(X) LB_GEMM_SKINNY_256(X)
#undef X
#define X(kernel, First, Second, kTileRows, kFirstUnits, kSecondUnits) \
  {DType::k##First, DType::k##Second, kTileRows, #kernel},
    LB_GEMM_SKINNY_PAIRS(X)
#undef X
};
// clang-format on

// The group's kernel with the fewest spare rows; null if the pack has none.
const SkinnyKernel* kernel_of(const LinearGroup& group, int rows, const Target& target) {
  const DType first = group.products[0].type, last = group.products[group.n - 1].type;
  const DType second = last == first ? kNoType : last;
  const auto* kernel = std::ranges::find_if(kKernels, [&](const SkinnyKernel& k) {
    return k.type == first && k.second == second && k.tile_rows >= rows && target.has(k.name);
  });
  return kernel == std::end(kKernels) ? nullptr : kernel;
}

// Returns nullopt if the pack has no kernel, or if no kernel computes the epilogue.
std::optional<SkinnyProblem> problem_of(const LinearGroup& group, Epilogue epilogue, const Target& target) {
  const Linear& first = group.products[0];
  const DType last = group.products[group.n - 1].type, second = last == first.type ? kNoType : last;
  const SkinnyKernel* const kernel = kernel_of(group, first.rows, target);
  if (kernel == nullptr || first.n_in % kSkinnyValues != 0) return {};
  if (second != kNoType && epilogue != Epilogue::kSums) return {};
  SkinnyProblem problem = {kernel, epilogue, first.n_in / kSkinnyValues, {}};
  for (const Linear& op : ops_of(group)) {
    if (quant::plane_layout(op.type, op.n_out, op.n_in).bytes > 0xffffffff) return {};  // kernels use 32-bit offsets
    problem.n_grains[op.type != first.type] += ceil_div(op.n_out, kSkinnyOuts);
  }
  problem.n_grains[0] /= problem.grain();
  if (problem.n_grains[0] == 0) return {};
  return problem;
}

// Splits the ranges between the two types by the bytes of their weights.
std::array<int, 2> split_ranges(const SkinnyProblem& problem, int max_ranges) {
  const std::array<int, 2>& n_grains = problem.n_grains;
  if (n_grains[1] == 0) return {std::min(max_ranges, n_grains[0]), 0};
  const size_t of_first = n_grains[0] * row_bytes(problem.kernel->type, kSkinnyValues);
  const size_t bytes = of_first + n_grains[1] * row_bytes(problem.kernel->second, kSkinnyValues);
  const int share = int((of_first * max_ranges + bytes / 2) / bytes);
  const int n_first = std::min(std::clamp(share, 1, std::max(1, max_ranges - 1)), n_grains[0]);
  return {n_first, std::min(max_ranges - n_first, n_grains[1])};
}

// Expected nanoseconds, a model fitted to H100 measurements (docs/kernels/gemm_skinny.md). It adds up the time of the
// units, of loading x (bounded by the loads in flight), and of the partials and their sums. A cluster adds partials
// sooner. Plain weights multiply x unconverted and were faster with fewer slices. is_large: the block uses so much
// shared memory that too little L1 is left for weights in flight.
long expected_ns(const SkinnyConfig& cut, bool is_large) {
  const SkinnyKernel& kernel = *cut.problem.kernel;
  const int tile_rows = kernel.tile_rows, max_blocks = cut.max_k_blocks();
  const int max_outs = cut.max_range_tiles * kSkinnyOuts;
  const int segments = tile_rows * ceil_div(max_blocks * kSkinnyValues / kRoundBlock, 32);
  const int passes = ceil_div(segments, 4 * kSkinnyWarps);
  const long units = 9l * max_blocks * (max_outs + 8), partials = 6l * tile_rows * ceil_div(max_outs, 16);
  const long x = 900 * passes + 10 * tile_rows * max_blocks;
  const bool is_plain = skinny_is_plain(kernel.type);
  const int slices = (is_plain ? 30 : 4) * tile_rows * cut.n_slices,
            saved = cut.is_cluster ? (is_plain ? 1500 : 200) : 0;
  return (is_large ? 5 : 4) * units / 4 + x + partials + slices - saved;
}

// Shared memory of a block on an H100, in KiB: the maximum, and the maximum under the carve-out that Launch::keeps_l1
// requests.
constexpr int kWholeKib = 227, kBesideL1Kib = 163;

// Fills in the fields that only a promising cut needs.
void finish(SkinnyConfig& cut) {
  const auto& [kernel, epilogue, n_k_blocks, n_grains] = cut.problem;
  const int grain = cut.problem.grain();
  cut.max_sum_tiles = ceil_div(cut.max_range_tiles / grain, cut.n_slices) * grain;
  cut.slice_partials = 1;
  for (int i = 0; i < 2; ++i) {
    if (cut.n_ranges[i] == 0) continue;
    for (int range_grains : {n_grains[i] / cut.n_ranges[i], ceil_div(n_grains[i], cut.n_ranges[i])})
      for (int slice_blocks : {n_k_blocks / cut.n_slices, cut.max_k_blocks()})
        cut.slice_partials = std::max(cut.slice_partials, skinny_max_partials(range_grains * grain, slice_blocks));
  }
  cut.tile_partials = round_up(cut.n_slices * cut.slice_partials, kSkinnyPartialBatch);
  const int kept_tiles = epilogue == Epilogue::kSums ? 0 : cut.max_sum_tiles;
  cut.shared_bytes = skinny_table_bytes(cut.max_sum_tiles, cut.tile_partials) +
                     std::max(size_t(skinny_x_bytes(kernel->tile_rows, cut.max_k_blocks())),
                              size_t(skinny_sums_bytes(kernel->tile_rows, kept_tiles)));
}

// The cut with the shortest expected time among those with first_slices to last_slices slices.
std::optional<SkinnyConfig> best_config(const SkinnyProblem& problem, const Target& target, int first_slices = 1,
                                        int last_slices = std::numeric_limits<int>::max()) {
  const int n_sms = std::max(1, target.n_sms);
  // Thread blocks of a range spin on each other. If another model's grid runs concurrently, ranges that have started
  // must leave SMs for their missing blocks.
  const int max_slices = std::min({problem.n_k_blocks, n_sms, std::max(4, n_sms / 2), last_slices});
  std::optional<SkinnyConfig> best;
  long best_ns = 0;
  for (int n_slices = first_slices; n_slices <= max_slices; ++n_slices) {
    SkinnyConfig cut = {.problem = problem, .n_slices = n_slices};
    cut.n_ranges = split_ranges(problem, std::min(n_sms / n_slices, kSkinnyRanges));
    if (problem.n_grains[1] > 0 && cut.n_ranges[1] == 0) break;  // each type needs a range
    for (int i = 0; i < 2; ++i)
      if (cut.n_ranges[i] > 0)
        cut.max_range_tiles =
            std::max(cut.max_range_tiles, ceil_div(problem.n_grains[i], cut.n_ranges[i]) * problem.grain());
    cut.is_cluster = target.capabilities.clusters && n_slices == kSkinnyCluster;
    // An append evaluates hundreds of cuts, and most end here.
    if (best && expected_ns(cut, false) >= best_ns) continue;
    finish(cut);
    if (cut.shared_bytes > target.shared_block_bytes) continue;
    const long ns = expected_ns(cut, cut.shared_bytes > target.shared_block_bytes / kWholeKib * kBesideL1Kib);
    if (best && ns >= best_ns) continue;
    best_ns = ns;
    best = cut;
  }
  return best;
}

}  // namespace

// Up to kSameCutRows rows use the slices that are best for kSameCutRows rows. The sums of a row then have one order,
// whatever other rows there are. By expected_ns(), 8 or 16 rows of a 27B lose 0.8 %, of a 0.8B nothing.
std::optional<SkinnyConfig> skinny_config(const LinearGroup& group, Epilogue epilogue, const Target& target) {
  const std::optional<SkinnyProblem> problem = problem_of(group, epilogue, target);
  if (!problem) return {};
  SkinnyProblem same = *problem;
  const SkinnyKernel* const most = kernel_of(group, kSameCutRows, target);
  if (most == nullptr || problem->kernel->tile_rows >= most->tile_rows) return best_config(*problem, target);
  same.kernel = most;
  const std::optional<SkinnyConfig> cut = best_config(same, target);
  return cut ? best_config(*problem, target, cut->n_slices, cut->n_slices) : best_config(*problem, target);
}

bool has_one_order(LinearGroup group, Epilogue epilogue, const Target& target) {
  const int rows = std::max(group.products[0].rows, kSameCutRows);
  for (int i = 0; i < group.n; ++i) group.products[i].rows = rows;
  return skinny_config(group, epilogue, target).has_value();
}

std::string to_string(const SkinnyConfig& config) {
  return cat(config.problem.kernel->name, ": ", config.n_slices, " slices of up to ", config.max_k_blocks(),
             " blocks, ", config.all_ranges(), " ranges of up to ", config.max_range_tiles, " tiles, ",
             config.is_cluster ? "cluster, " : "", config.shared_bytes, " B");
}

}  // namespace lb::gpu
