// The kernel with the fewest rows to spare, and the slices that are expected to end first.
#include "gpu/gemm_skinny/choose.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/gemm_skinny/instances.h"

namespace lb::gpu {
namespace {

constexpr DType kNoType = DType::kF32;  // which has no kernel

struct SkinnyKernel {
  DType type, second;  // second: of a group's last products; kNoType: they have one type
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

// How a product is cut.
struct SkinnyCut {
  const SkinnyKernel* kernel;
  int n_blocks, n_slices;
  std::array<int, 2> n_grains, n_ranges;  // of either type
  int range_tiles, share_tiles, slice_pieces, tile_pieces;
  bool is_cluster;
  size_t shared_bytes;
  int all_ranges() const { return n_ranges[0] + n_ranges[1]; }
  size_t piece_bytes() const {
    return sizeof(float) * all_ranges() * n_slices * skinny_pieces(range_tiles) * kernel->tile_rows * kSkinnyOuts;
  }
};

// Of 227 KB of an H100 that a block can have, what it can have with the division that Pack asks for.
constexpr int kSkinnyWhole = 227, kSkinnyBesideL1 = 163;

int ceil_div(int n, int unit) { return (n + unit - 1) / unit; }
size_t aligned(size_t bytes) {
  return (bytes + quant::kPlaneAlignment - 1) / quant::kPlaneAlignment * quant::kPlaneAlignment;
}

// Nanoseconds of an H100, fitted to what was measured there (docs/kernels/gemm_skinny.md): units, x by what a block
// reads at once, pieces and their sums, which a cluster makes sooner. Beside much shared memory too little of L1 is
// left for weights on their way. Of plain weights, which find x as it is, fewer slices were faster.
long expected_ns(const SkinnyKernel& kernel, int max_blocks, int max_outs, int n_slices, bool is_cluster,
                 bool is_large) {
  const int tile_rows = kernel.tile_rows, segments = tile_rows * ceil_div(max_blocks * kSkinnyValues / kRoundBlock, 32);
  const int passes = ceil_div(segments, 4 * kSkinnyWarps);
  const long units = 9l * max_blocks * (max_outs + 8), pieces = 6l * tile_rows * ceil_div(max_outs, 16);
  const long x = 900 * passes + 10 * tile_rows * max_blocks;
  const bool is_plain = skinny_is_plain(kernel.type);
  const int slice_ns = (is_plain ? 30 : 4) * tile_rows * n_slices, saved_ns = is_cluster ? (is_plain ? 1500 : 200) : 0;
  return (is_large ? 5 : 4) * units / 4 + x + pieces + slice_ns - saved_ns;
}

// Ranges of a group's types, by the bytes of their weights.
std::array<int, 2> share_ranges(const std::array<int, 2>& n_grains, DType first, DType second, int max_ranges) {
  if (n_grains[1] == 0) return {std::min(max_ranges, n_grains[0]), 0};
  const size_t of_first = n_grains[0] * row_bytes(first, kSkinnyValues);
  const size_t bytes = of_first + n_grains[1] * row_bytes(second, kSkinnyValues);
  const int share = static_cast<int>((of_first * max_ranges + bytes / 2) / bytes);
  const int n_first = std::min(std::clamp(share, 1, std::max(1, max_ranges - 1)), n_grains[0]);
  return {n_first, std::min(max_ranges - n_first, n_grains[1])};
}

// The products of a second type lie behind the others.
std::optional<SkinnyCut> cut_of(const LinearGroup& group, Epilogue makes, const Target& target) {
  const Linear& first = group.products[0];
  const DType last = group.products[group.n - 1].type, second = last == first.type ? kNoType : last;
  const auto* kernel = std::ranges::find_if(kKernels, [&](const SkinnyKernel& k) {
    return k.type == first.type && k.second == second && k.tile_rows >= first.rows && target.has(k.name);
  });
  if (kernel == std::end(kKernels) || first.n_in % kSkinnyValues != 0) return {};
  if (second != kNoType && makes != Epilogue::kSums) return {};
  const int grain = skinny_grain(makes);
  std::array<int, 2> n_grains = {};
  for (const Linear& op : std::span(group.products, group.n)) {
    if (quant::plane_layout(op.type, op.n_out, op.n_in).bytes > 0xffffffff) return {};
    n_grains[op.type != first.type] += ceil_div(op.n_out, kSkinnyOuts);
  }
  n_grains[0] /= grain;
  const int n_blocks = first.n_in / kSkinnyValues, n_sms = std::max(1, target.n_sms);
  if (n_grains[0] == 0) return {};
  // Blocks of a range wait for each other on their multiprocessors. Where another model's grid runs beside this one, a
  // range of which each has begun a part must leave room for the rest.
  const int max_slices = std::min({n_blocks, n_sms, std::max(4, n_sms / 2)});
  std::optional<SkinnyCut> best;
  long best_ns = 0;
  for (int n_slices = 1; n_slices <= max_slices; ++n_slices) {
    const int max_blocks = ceil_div(n_blocks, n_slices);
    const std::array<int, 2> n_ranges =
        share_ranges(n_grains, kernel->type, second, std::min(n_sms / n_slices, kSkinnyRanges));
    if (n_grains[1] > 0 && n_ranges[1] == 0) break;  // of two types either needs one
    int range_tiles = 0, slice_pieces = 1;
    for (int i = 0; i < 2; ++i)
      if (n_ranges[i] > 0) range_tiles = std::max(range_tiles, ceil_div(n_grains[i], n_ranges[i]) * grain);
    const int max_outs = range_tiles * kSkinnyOuts;
    const bool is_cluster = target.capabilities.clusters && n_slices == kSkinnyCluster;
    const auto expected = [&](bool is_large) {
      return expected_ns(*kernel, max_blocks, max_outs, n_slices, is_cluster, is_large);
    };
    if (best && expected(false) >= best_ns) continue;  // most end here, and an append asks for hundreds of cuts
    const int share_tiles = ceil_div(range_tiles / grain, n_slices) * grain;
    for (int i = 0; i < 2; ++i) {
      if (n_ranges[i] == 0) continue;
      for (int n_grains_of_range : {n_grains[i] / n_ranges[i], ceil_div(n_grains[i], n_ranges[i])})
        for (int n_blocks_of_slice : {n_blocks / n_slices, max_blocks})
          slice_pieces = std::max(slice_pieces, skinny_max_pieces(n_grains_of_range * grain, n_blocks_of_slice));
    }
    const int tile_pieces = ceil_div(n_slices * slice_pieces, kSkinnyAtOnce) * kSkinnyAtOnce;
    const int made_tiles = makes == Epilogue::kSums ? 0 : share_tiles;
    const size_t shared = skinny_table_bytes(share_tiles, tile_pieces) +
                          std::max(size_t(skinny_x_bytes(kernel->tile_rows, max_blocks)),
                                   size_t(skinny_sums_bytes(kernel->tile_rows, made_tiles)));
    if (shared > target.shared_block_bytes) continue;
    const long ns = expected(shared > target.shared_block_bytes / kSkinnyWhole * kSkinnyBesideL1);
    if (best && ns >= best_ns) continue;
    best_ns = ns;
    best = {.kernel = kernel,
            .n_blocks = n_blocks,
            .n_slices = n_slices,
            .n_grains = n_grains,
            .n_ranges = n_ranges,
            .range_tiles = range_tiles,
            .share_tiles = share_tiles,
            .slice_pieces = slice_pieces,
            .tile_pieces = tile_pieces,
            .is_cluster = is_cluster,
            .shared_bytes = shared};
  }
  return best;
}

const Linear& first_product(const SkinnyStep& step) { return step.group.products[0]; }

// Whether x has the same form for both; a step makes x in the form that it reads.
bool same_x(const Linear& a, const Linear& b) {
  return a.type == b.type || !(skinny_is_plain(a.type) || skinny_is_plain(b.type));
}

std::string to_string(const LinearGroup& group) {
  const Linear& first = group.products[0];
  std::string what = cat("[gemm_skinny] ", first.rows, " rows, ");
  for (int i = 0; i < group.n; ++i) {
    const Linear& op = group.products[i];
    what += cat(i ? " + " : "", name(op.type), " ", op.n_out);
  }
  return cat(what, " x ", first.n_in);
}

// The products of each type.
int split_types(const LinearGroup& group, LinearGroup (&types)[kMaxProducts]) {
  int n = 0;
  for (const Linear& op : std::span(group.products, group.n)) {
    int i = 0;
    while (i < n && types[i].products[0].type != op.type) ++i;
    if (i == n) types[n++] = {};
    types[i].products[types[i].n++] = op;
  }
  return n;
}

// Products of two types as one group, in the order that a kernel of both wants; none where there is none.
std::optional<LinearGroup> few_pair(const LinearGroup& a, const LinearGroup& b, const Target& target) {
  if (a.n + b.n > kMaxProducts) return {};
  for (const auto& [first, second] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    LinearGroup both = *first;
    for (const Linear& op : std::span(second->products, second->n)) both.products[both.n++] = op;
    if (cut_of(both, Epilogue::kSums, target)) return both;
  }
  return {};
}

}  // namespace

bool has_skinny(const LinearGroup& group, const Target& target) {
  return cut_of(group, Epilogue::kSums, target).has_value();
}

int pair_types(LinearGroup* types, int n, const Target& target) {
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      const std::optional<LinearGroup> both = few_pair(types[i], types[j], target);
      if (!both) continue;
      types[i] = *both;
      types[j] = types[--n];
      break;
    }
  }
  return n;
}

SkinnyLaunch skinny_launch(const SkinnyStep& step, std::byte* scratch, uint32_t* arrived, const Target& target) {
  const SkinnyCut cut = *cut_of(step.group, step.makes, target);
  SkinnyLaunch few = {
      .launch = checked({.kernel = cut.kernel->name,
                         .grid = {uint32_t(cut.n_slices), uint32_t(cut.all_ranges()), 1},
                         .block = {kSkinnyThreads, 1, 1},
                         .shared_bytes = cut.shared_bytes,
                         .is_one_wave = !cut.is_cluster,
                         .cluster = uint32_t(cut.is_cluster ? kSkinnyCluster : 0),
                         .keeps_l1 = true,
                         .overlap_previous = true},
                        target, to_string(step.group)),
      .params = {.group = step.group,
                 .x = step.x,
                 .norm = step.norm,
                 .squares = step.squares,
                 .eps = step.eps,
                 .per_value = 1 / float(step.norm == SkinnyNorm::kHead ? kSkinnyHead : first_product(step).n_in),
                 .makes = step.makes,
                 .norm_w = step.norm_w,
                 .made = step.made,
                 .pieces = reinterpret_cast<float*>(scratch),
                 .arrived = arrived,
                 .slices = skinny_parts(cut.n_blocks, cut.n_slices),
                 .ranges = skinny_parts(cut.n_grains[0], cut.n_ranges[0]),
                 .second_ranges = skinny_parts(cut.n_grains[1], std::max(1, cut.n_ranges[1])),
                 .second_range = cut.n_ranges[0],
                 .second_tile = cut.n_grains[0] * skinny_grain(step.makes),
                 .n_slices = cut.n_slices,
                 .range_tiles = cut.range_tiles,
                 .share_tiles = cut.share_tiles,
                 .tile_pieces = cut.tile_pieces,
                 .slice_pieces = cut.slice_pieces,
                 .is_cluster = cut.is_cluster}};
  int* first_tile = few.params.first_tile;
  for (int i = 1; i < step.group.n; ++i)
    first_tile[i] = first_tile[i - 1] + ceil_div(step.group.products[i - 1].n_out, kSkinnyOuts);
  return few;
}

SkinnyScratch skinny_scratch(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  SkinnyScratch scratch = {0, aligned(rounded_bytes(first.rows, first.n_in, skinny_x_bits(first) == 16))};
  const auto count = [&](const LinearGroup& step) {
    for (Epilogue makes : {Epilogue::kSums, Epilogue::kNormed, Epilogue::kGated})
      if (const std::optional<SkinnyCut> cut = cut_of(step, makes, target))
        scratch.pieces = std::max(scratch.pieces, aligned(cut->piece_bytes()));
  };
  LinearGroup types[kMaxProducts];
  const int n = split_types(group, types);
  for (int i = 0; i < n; ++i) {
    count(types[i]);
    for (int j = 0; j < i; ++j)
      if (const std::optional<LinearGroup> both = few_pair(types[i], types[j], target)) count(*both);
  }
  return scratch;
}

bool DeferredGemm::append(const LinearGroup& group, const SkinnyStep& of_x, const Target& target) {
  for (const Linear& op : std::span(group.products, group.n))
    if (!same_x(op, group.products[0]) || (!skinny_is_plain(op.type) && op.activations != Activations::kInt8))
      return false;
  LinearGroup types[kMaxProducts];
  int n = split_types(group, types);
  if (!std::ranges::all_of(std::span(types, n), [&](const LinearGroup& type) { return has_skinny(type, target); }))
    return false;
  n = pair_types(types, n, target);
  for (int i = 0; i < n; ++i) {
    steps_[i] = of_x;
    steps_[i].group = types[i];
  }
  n_ = n;
  return true;
}

bool DeferredGemm::begin(const LinearGroup& group, const RoundedRows& x, const Target& target) {
  LB_ASSERT(is_empty());
  return append(group, {.x = x}, target);
}

bool DeferredGemm::begin(const GatedRmsNorm& op, const LinearGroup& group, const RoundedRows& x, const Target& target) {
  LB_ASSERT(is_empty());
  return op.dim == kSkinnyHead && !skinny_is_plain(group.products[0].type) &&
         append(group, {.x = x, .norm = SkinnyNorm::kHead, .squares = x.sum, .eps = op.eps}, target);
}

std::optional<SkinnyStep> DeferredGemm::try_fuse(const RmsNorm& op, const LinearGroup& readers, const RoundedRows& made,
                                                 const Target& target) {
  if (n_ != 1 || steps_[0].group.n != 1) return {};
  SkinnyStep step = steps_[0];
  const Linear& product = first_product(step);
  if (op.x != product.y || op.rows != product.rows || op.heads != 1 || op.dim != product.n_out ||
      op.row_stride != op.dim || op.dim % kRoundBlock != 0)
    return {};
  if (readers.products[0].type == DType::kF16) return {};  // y before it is divided may be beyond its range
  step.makes = Epilogue::kNormed;
  step.norm_w = op.w;
  step.made = made;
  if (!same_x(first_product(step), readers.products[0]) || !cut_of(step.group, step.makes, target) ||
      !append(readers, {.x = made, .norm = SkinnyNorm::kRow, .squares = made.sum, .eps = op.eps}, target))
    return {};
  return step;
}

std::optional<SkinnyStep> DeferredGemm::try_fuse(const SwiGlu& op, const LinearGroup& readers, const RoundedRows& made,
                                                 const Target& target) {
  if (n_ != 1 || steps_[0].group.n != 2) return {};
  SkinnyStep step = steps_[0];
  const Linear &gate = step.group.products[0], &up = step.group.products[1];
  if (op.gate != gate.y || op.up != up.y || op.rows != gate.rows || op.dim != gate.n_out || op.dim != up.n_out ||
      gate.add != nullptr || up.add != nullptr || op.dim % kRoundBlock != 0)
    return {};
  step.makes = Epilogue::kGated;
  step.made = made;
  if (!same_x(first_product(step), readers.products[0]) || !cut_of(step.group, step.makes, target) ||
      !append(readers, {.x = made}, target))
    return {};
  return step;
}

}  // namespace lb::gpu
