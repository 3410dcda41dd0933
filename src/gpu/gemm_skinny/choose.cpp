// Skinny GEMM launches, pairing of weight types, and fusion with norms and gates.
#include "gpu/gemm_skinny/choose.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/gemm_skinny/choose_config.h"
#include "gpu/linear_group.h"

namespace lb::gpu {
namespace {

size_t aligned(size_t bytes) { return round_up(bytes, quant::kPlaneAlignment); }

const Linear& first_op(const SkinnyStep& step) { return step.group.products[0]; }

// Whether both read x in the same form. An epilogue writes next_x in the form that its own GEMM reads.
bool same_x(const Linear& a, const Linear& b) {
  return a.type == b.type || !(skinny_is_plain(a.type) || skinny_is_plain(b.type));
}

// Merges two single-type groups, in the order that a two-type kernel expects; nullopt if no kernel covers both. This
// must not depend on the rows.
std::optional<LinearGroup> merged(const LinearGroup& a, const LinearGroup& b, const Target& target) {
  if (a.n + b.n > kMaxProducts) return {};
  for (const auto& [first, second] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    LinearGroup both = *first;
    for (const Linear& op : ops_of(*second)) both.products[both.n++] = op;
    if (has_one_order(both, Epilogue::kSums, target)) return both;
  }
  return {};
}

}  // namespace

bool has_skinny(const LinearGroup& group, const Target& target) {
  return skinny_config(group, Epilogue::kSums, target).has_value();
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
  const SkinnyConfig config = *skinny_config(step.group, step.epilogue, target);
  const SkinnyProblem& problem = config.problem;
  const int norm_values = step.norm == SkinnyNorm::kHead ? kSkinnyHead : first_op(step).n_in;
  SkinnyLaunch result = {.launch = checked({.kernel = problem.kernel->name,
                                            .grid = {uint32_t(config.n_slices), uint32_t(config.all_ranges()), 1},
                                            .block = {kSkinnyThreads, 1, 1},
                                            .shared_bytes = config.shared_bytes,
                                            .is_one_wave = !config.is_cluster,
                                            .cluster = uint32_t(config.is_cluster ? kSkinnyCluster : 0),
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
                                    .slices = skinny_split(problem.n_k_blocks, config.n_slices),
                                    .ranges = skinny_split(problem.n_grains[0], config.n_ranges[0]),
                                    .second_ranges = skinny_split(problem.n_grains[1], std::max(1, config.n_ranges[1])),
                                    .second_range_begin = config.n_ranges[0],
                                    .second_tile_begin = problem.n_grains[0] * problem.grain(),
                                    .n_slices = config.n_slices,
                                    .max_range_tiles = config.max_range_tiles,
                                    .max_sum_tiles = config.max_sum_tiles,
                                    .tile_partials = config.tile_partials,
                                    .slice_partials = config.slice_partials,
                                    .is_cluster = config.is_cluster}};
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
      if (const std::optional<SkinnyConfig> config = skinny_config(step, epilogue, target))
        scratch.partials = std::max(scratch.partials, aligned(config->partial_bytes()));
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
    if (!same_x(op, group.products[0]) || (!skinny_is_plain(op.type) && op.activations == Activations::kF32))
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

// With one order, fewer rows use no epilogue that 32 rows cannot use.
bool DeferredGemm::has_epilogue(const SkinnyStep& step, const Target& target) const {
  return one_order_ ? has_one_order(step.group, step.epilogue, target)
                    : skinny_config(step.group, step.epilogue, target).has_value();
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

bool DeferredGemm::begin(const RmsNorm& op, const LinearGroup& group, const RoundedRows& x, const Target& target) {
  LB_ASSERT(is_empty());
  return defer(group, {.x = x, .norm = SkinnyNorm::kRow, .squares = x.sum, .eps = op.eps}, target);
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
  if (!same_x(gemm, readers.products[0]) || !has_epilogue(step, target) ||
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
  if (!same_x(gate, readers.products[0]) || !has_epilogue(step, target) || !defer(readers, {.x = next_x}, target))
    return {};
  return step;
}

}  // namespace lb::gpu
