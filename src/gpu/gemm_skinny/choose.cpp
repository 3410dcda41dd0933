// A group's kernel, the one with the fewest spare rows of its tile, and the cut into slices and ranges that is expected
// to end first.
#include "gpu/gemm_skinny/choose.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/gemm_skinny/instances.h"
#include "gpu/linear_group.h"

namespace lb::gpu {
namespace {

constexpr DType kNoType = DType::kF32;  // which has no kernel
constexpr int kSameCutRows = 32;

struct SkinnyKernel {
  DType type, second;  // second: of the group's last matrices; kNoType: they have one type
  int tile_rows;
  const char* name;
};
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

size_t aligned(size_t bytes) { return round_up(bytes, quant::kPlaneAlignment); }

// The work that a cut divides; pairs hold the first and the second type.
struct SkinnyProblem {
  const SkinnyKernel* kernel;
  Epilogue epilogue;
  int n_k_blocks;
  std::array<int, 2> n_grains;
  int grain() const { return skinny_grain(epilogue); }
};

// The kernel of a group with the fewest spare rows; null: the pack has none.
const SkinnyKernel* kernel_of(const LinearGroup& group, int rows, const Target& target) {
  const DType first = group.products[0].type, last = group.products[group.n - 1].type;
  const DType second = last == first ? kNoType : last;
  const auto* kernel = std::ranges::find_if(kKernels, [&](const SkinnyKernel& k) {
    return k.type == first && k.second == second && k.tile_rows >= rows && target.has(k.name);
  });
  return kernel == std::end(kKernels) ? nullptr : kernel;
}

// Nothing where the pack has no kernel, or no kernel computes the epilogue.
std::optional<SkinnyProblem> problem_of(const LinearGroup& group, Epilogue epilogue, const Target& target) {
  const Linear& first = group.products[0];
  const DType last = group.products[group.n - 1].type, second = last == first.type ? kNoType : last;
  const SkinnyKernel* const kernel = kernel_of(group, first.rows, target);
  if (kernel == nullptr || first.n_in % kSkinnyValues != 0) return {};
  if (second != kNoType && epilogue != Epilogue::kSums) return {};
  SkinnyProblem problem = {kernel, epilogue, first.n_in / kSkinnyValues, {}};
  for (const Linear& op : ops_of(group)) {
    if (quant::plane_layout(op.type, op.n_out, op.n_in).bytes > 0xffffffff) return {};  // kernels have 32-bit offsets
    problem.n_grains[op.type != first.type] += ceil_div(op.n_out, kSkinnyOuts);
  }
  problem.n_grains[0] /= problem.grain();
  if (problem.n_grains[0] == 0) return {};
  return problem;
}

struct SkinnyCut {
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

// Nanoseconds on an H100, fitted to measurements there (docs/kernels/gemm_skinny.md): units, x by the loads in flight,
// partials and their sums. A cluster adds them sooner. Plain weights use x as it is; with them fewer slices were
// faster. is_large: so much shared memory that too little L1 is left for weights in flight.
long expected_ns(const SkinnyCut& cut, bool is_large) {
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

// A block may have 227 KiB of shared memory on an H100, and this much under the carve-out that Launch::keeps_l1 asks
// for.
constexpr int kWholeKib = 227, kBesideL1Kib = 163;

// Sets the fields that only a cut worth considering needs.
void finish(SkinnyCut& cut) {
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

// The cut with the smallest expected time, of first_slices slices or more, up to last_slices.
std::optional<SkinnyCut> best_cut(const SkinnyProblem& problem, const Target& target, int first_slices = 1,
                                  int last_slices = std::numeric_limits<int>::max()) {
  const int n_sms = std::max(1, target.n_sms);
  // Thread blocks of a range spin on each other. Where another model's grid runs beside this one, ranges that have
  // begun must leave SMs for their missing blocks.
  const int max_slices = std::min({problem.n_k_blocks, n_sms, std::max(4, n_sms / 2), last_slices});
  std::optional<SkinnyCut> best;
  long best_ns = 0;
  for (int n_slices = first_slices; n_slices <= max_slices; ++n_slices) {
    SkinnyCut cut = {.problem = problem, .n_slices = n_slices};
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

// Up to kSameCutRows rows have the slices that are best for so many: then the sums of a row have one order, whatever
// other rows there are. By expected_ns() 8 or 16 rows of a 27B lose 0.8 %, of a 0.8B nothing.
std::optional<SkinnyCut> choose_cut(const LinearGroup& group, Epilogue epilogue, const Target& target) {
  const std::optional<SkinnyProblem> problem = problem_of(group, epilogue, target);
  if (!problem) return {};
  SkinnyProblem same = *problem;
  const SkinnyKernel* const most = kernel_of(group, kSameCutRows, target);
  if (most == nullptr || problem->kernel->tile_rows >= most->tile_rows) return best_cut(*problem, target);
  same.kernel = most;
  const std::optional<SkinnyCut> cut = best_cut(same, target);
  return cut ? best_cut(*problem, target, cut->n_slices, cut->n_slices) : best_cut(*problem, target);
}

const Linear& first_op(const SkinnyStep& step) { return step.group.products[0]; }

// Whether both read x in the same form; an epilogue writes next_x in the form that its own step reads.
bool same_x(const Linear& a, const Linear& b) {
  return a.type == b.type || !(skinny_is_plain(a.type) || skinny_is_plain(b.type));
}

// Two single-type groups as one, in the order that a two-type kernel expects; nothing where no kernel covers both.
std::optional<LinearGroup> merged(const LinearGroup& a, const LinearGroup& b, const Target& target) {
  if (a.n + b.n > kMaxProducts) return {};
  for (const auto& [first, second] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    LinearGroup both = *first;
    for (const Linear& op : ops_of(*second)) both.products[both.n++] = op;
    if (has_skinny(both, target)) return both;
  }
  return {};
}

}  // namespace

bool has_skinny(const LinearGroup& group, const Target& target) {
  return choose_cut(group, Epilogue::kSums, target).has_value();
}

int pair_types(LinearGroup* types, int n, const Target& target) {
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      const std::optional<LinearGroup> both = merged(types[i], types[j], target);
      if (!both) continue;
      types[i] = *both;
      types[j] = types[--n];
      break;
    }
  }
  return n;
}

SkinnyLaunch skinny_launch(const SkinnyStep& step, std::byte* scratch, uint32_t* arrived, const Target& target) {
  const SkinnyCut cut = *choose_cut(step.group, step.epilogue, target);
  const SkinnyProblem& problem = cut.problem;
  const int norm_values = step.norm == SkinnyNorm::kHead ? kSkinnyHead : first_op(step).n_in;
  SkinnyLaunch result = {.launch = checked({.kernel = problem.kernel->name,
                                            .grid = {uint32_t(cut.n_slices), uint32_t(cut.all_ranges()), 1},
                                            .block = {kSkinnyThreads, 1, 1},
                                            .shared_bytes = cut.shared_bytes,
                                            .is_one_wave = !cut.is_cluster,
                                            .cluster = uint32_t(cut.is_cluster ? kSkinnyCluster : 0),
                                            .keeps_l1 = true,
                                            .overlap_previous = true},
                                           target, to_string(step.group, "gemm_skinny")),
                         .params = {.group = step.group,
                                    .x = step.x,
                                    .norm = step.norm,
                                    .squares = step.squares,
                                    .eps = step.eps,
                                    .per_value = 1 / float(norm_values),
                                    .epilogue = step.epilogue,
                                    .norm_w = step.norm_w,
                                    .next_x = step.next_x,
                                    .partials = reinterpret_cast<float*>(scratch),
                                    .arrived = arrived,
                                    .slices = skinny_split(problem.n_k_blocks, cut.n_slices),
                                    .ranges = skinny_split(problem.n_grains[0], cut.n_ranges[0]),
                                    .second_ranges = skinny_split(problem.n_grains[1], std::max(1, cut.n_ranges[1])),
                                    .second_range_begin = cut.n_ranges[0],
                                    .second_tile_begin = problem.n_grains[0] * problem.grain(),
                                    .n_slices = cut.n_slices,
                                    .max_range_tiles = cut.max_range_tiles,
                                    .max_sum_tiles = cut.max_sum_tiles,
                                    .tile_partials = cut.tile_partials,
                                    .slice_partials = cut.slice_partials,
                                    .is_cluster = cut.is_cluster}};
  int* first_tile = result.params.first_tile;
  for (int i = 1; i < step.group.n; ++i)
    first_tile[i] = first_tile[i - 1] + ceil_div(step.group.products[i - 1].n_out, kSkinnyOuts);
  return result;
}

SkinnyScratch skinny_scratch(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  SkinnyScratch scratch = {0, aligned(rounded_bytes(first.rows, first.n_in, skinny_x_bits(first) == 16))};
  const auto count = [&](const LinearGroup& step) {
    for (Epilogue epilogue : {Epilogue::kSums, Epilogue::kNormed, Epilogue::kGated})
      if (const std::optional<SkinnyCut> cut = choose_cut(step, epilogue, target))
        scratch.partials = std::max(scratch.partials, aligned(cut->partial_bytes()));
  };
  const TypeGroups types = split_types(group);
  for (int i = 0; i < types.n; ++i) {
    count(types.groups[i]);
    for (int j = 0; j < i; ++j)
      if (const std::optional<LinearGroup> both = merged(types.groups[i], types.groups[j], target)) count(*both);
  }
  return scratch;
}

bool DeferredGemm::defer(const LinearGroup& group, const SkinnyStep& of_x, const Target& target) {
  for (const Linear& op : ops_of(group))
    if (!same_x(op, group.products[0]) || (!skinny_is_plain(op.type) && op.activations != Activations::kInt8))
      return false;
  TypeGroups types = split_types(group);
  for (const LinearGroup& type : std::span(types.groups, types.n))
    if (!has_skinny(type, target)) return false;
  n_ = pair_types(types.groups, types.n, target);
  for (int i = 0; i < n_; ++i) {
    steps_[i] = of_x;
    steps_[i].group = types.groups[i];
  }
  return true;
}

bool DeferredGemm::begin(const LinearGroup& group, const RoundedRows& x, const Target& target) {
  LB_ASSERT(is_empty());
  return defer(group, {.x = x}, target);
}

bool DeferredGemm::begin(const GatedRmsNorm& op, const LinearGroup& group, const RoundedRows& x, const Target& target) {
  LB_ASSERT(is_empty());
  return op.dim == kSkinnyHead && !skinny_is_plain(group.products[0].type) &&
         defer(group, {.x = x, .norm = SkinnyNorm::kHead, .squares = x.sum, .eps = op.eps}, target);
}

std::optional<SkinnyStep> DeferredGemm::try_fuse(const RmsNorm& op, const LinearGroup& readers,
                                                 const RoundedRows& next_x, const Target& target) {
  if (n_ != 1 || steps_[0].group.n != 1) return {};
  SkinnyStep step = steps_[0];
  const Linear& gemm = first_op(step);
  if (op.x != gemm.y || op.rows != gemm.rows || op.heads != 1 || op.dim != gemm.n_out || op.row_stride != op.dim ||
      op.dim % kRoundBlock != 0)
    return {};
  if (readers.products[0].type == DType::kF16) return {};  // y without the norm's factor may exceed the range of f16
  step.epilogue = Epilogue::kNormed;
  step.norm_w = op.w;
  step.next_x = next_x;
  if (!same_x(gemm, readers.products[0]) || !choose_cut(step.group, step.epilogue, target) ||
      !defer(readers, {.x = next_x, .norm = SkinnyNorm::kRow, .squares = next_x.sum, .eps = op.eps}, target))
    return {};
  return step;
}

std::optional<SkinnyStep> DeferredGemm::try_fuse(const SwiGlu& op, const LinearGroup& readers,
                                                 const RoundedRows& next_x, const Target& target) {
  if (n_ != 1 || steps_[0].group.n != 2) return {};
  SkinnyStep step = steps_[0];
  const Linear &gate = step.group.products[0], &up = step.group.products[1];
  if (op.gate != gate.y || op.up != up.y || op.rows != gate.rows || op.dim != gate.n_out || op.dim != up.n_out ||
      gate.add != nullptr || up.add != nullptr || op.dim % kRoundBlock != 0)
    return {};
  step.epilogue = Epilogue::kGated;
  step.next_x = next_x;
  if (!same_x(gate, readers.products[0]) || !choose_cut(step.group, step.epilogue, target) ||
      !defer(readers, {.x = next_x}, target))
    return {};
  return step;
}

}  // namespace lb::gpu
