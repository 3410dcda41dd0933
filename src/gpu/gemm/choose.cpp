// Launches that multiply a group by more than one row. Each weight type of the group takes the first rule that applies:
//   1. skinny GEMM (gpu/gemm_skinny), if the pack has a kernel for the number of rows;
//   2. more than 64 rows on sm_90: wgmma (choose_sm90.cpp);
//   3. a kernel for the type (and for x in NVFP4, on request), with the fewest passes over the weights and then the
//   fewest spare rows;
//   4. at least 12 rows of a type without a kernel for them: weights expanded to 16 bits, then rule 2 or 3.
// If no rule applies, or for few rows of small F32 matrices, the GEMV multiplies row by row (has_gemm).
#include "gpu/gemm/choose.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/gemm/choose_config.h"
#include "gpu/gemm/choose_sm90.h"
#include "gpu/gemm_skinny/choose.h"
#include "gpu/linear_group.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

constexpr const char* kExpandKernel = "expand_weights_kernel";

// Whether skinny GEMM multiplies a group of one type, or of two types that one of its kernels covers.
bool is_skinny(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  return (bits_of(first) == 8 || skinny_is_plain(first.type)) && has_skinny(group, target);
}

// Whether a kernel reads the matrix as stored.
bool has_kernel(const Linear& op, const Target& target) {
  const LinearGroup alone = {.products = {op}, .n = 1};
  return has_tiles(op, target) || is_warpgroup(alone, target) || is_skinny(alone, target);
}

// Expansion reads a weight, writes 16 bits and reads them again: the time of about ten GEMVs. A matrix too large for
// the scratch, such as the head of a large vocabulary, stays with the GEMV.
constexpr int kMinExpandedRows = 12;
constexpr long kMaxExpandedBytes = 256l << 20;

bool is_expanded(const Linear& op, const Target& target) {
  return is_quantised(op.type) && bits_of(op) != 16 && op.rows >= kMinExpandedRows &&
         2l * op.n_out * op.n_in <= kMaxExpandedBytes && target.has(kExpandKernel) && !has_kernel(op, target);
}

// Small F32 matrices, such as routers: a GEMV of each row, which reads the matrix from L2, is faster than a split-K
// GEMM.
bool is_row_by_row(const Linear& op) {
  constexpr int kMaxRows = 8;
  constexpr long kMaxBytes = 32l << 20;  // of all rows' reads
  return op.type == DType::kF32 && op.rows <= kMaxRows && 4l * op.rows * op.n_out * op.n_in <= kMaxBytes;
}

// The type of expanded weights.
DType wide_type(const Target& target) { return target.capabilities.bf16 ? DType::kBF16 : DType::kF16; }

// Bump allocator; with null memory it only counts.
struct Scratch {
  std::byte* memory;
  size_t used = 0;
  void* take(size_t bytes) {
    void* at = memory ? memory + used : nullptr;
    used += round_up(bytes, quant::kPlaneAlignment);
    return at;
  }
};

// The form of 16-bit, fp8 or fp4 x that a group of one type reads.
struct NarrowForm {
  DType type;
  bool is_permuted, is_tiled, has_scales;
  bool operator==(const NarrowForm&) const = default;
};
NarrowForm narrow_form(const LinearGroup& group, const Target& target) {
  const DType weights = group.products[0].type;
  if (multiplies_fp4(group.products[0])) return {weights, false, true, true};
  const bool is_tiled = is_warpgroup(group, target);
  if (weights == DType::kF8_E4M3) return {weights, false, true, true};
  if (is_tiled && is_quantised(weights)) return {DType::kF16, true, true, true};
  return {cast_type(weights, target), is_quantised(weights), is_tiled, false};
}

size_t narrow_bytes(const Linear& op, NarrowForm form) {
  if (form.type == DType::kF8_E4M3) return fp8_x_bytes(op.rows, op.n_in);
  if (form.type == DType::kNVFP4) return fp4_x_bytes(op.rows, op.n_in);
  if (form.has_scales) return f16_x_bytes(op.rows, op.n_in);
  if (form.is_tiled) return size_t(padded_rows(op.rows)) * tiled_values(op.n_in) * sizeof(uint16_t);
  return size_t(op.rows) * x16_values(op.n_in) * sizeof(uint16_t);
}

NarrowLaunch narrow_launch(const Linear& op, NarrowForm form, void* y, const Target& target) {
  constexpr int kThreads = 256, kThreadValues = 16;
  const int row_values = form.is_tiled ? tiled_values(op.n_in) : x16_values(op.n_in);
  const bool is_f8 = form.type == DType::kF8_E4M3;
  const uint32_t row_blocks = ceil_div(row_values, kThreads * kThreadValues), rows = op.rows;
  const bool has_block_per_row = form.has_scales && !is_f8;
  return {.launch = checked({.kernel = is_f8                        ? "cast_rows_f8_kernel"
                                       : form.type == DType::kNVFP4 ? "cast_rows_fp4_kernel"
                                       : form.has_scales            ? "cast_rows_f16_kernel"
                                                                    : "cast_rows_kernel",
                             .grid = {has_block_per_row ? rows : row_blocks, has_block_per_row ? 1 : rows, 1},
                             .block = {has_block_per_row ? uint32_t(cast_row_threads(op.n_in)) : kThreads, 1, 1},
                             .overlap_previous = true},
                            target, cat("[cast_rows] ", op.rows, " rows of ", op.n_in)),
          .params = {
              .x = op.x,
              .y = y,
              .type = form.type,
              .rows = op.rows,
              .n_in = op.n_in,
              .is_permuted = form.is_permuted,
              .is_tiled = form.is_tiled,
          }};
}

ExpandLaunch expand_launch(const Linear& op, Scratch& scratch, const Target& target) {
  constexpr int kThreads = 256, kThreadValues = 4, kMaxRows = 65535;
  const DType to = wide_type(target);
  return {.launch = checked({.kernel = kExpandKernel,
                             .grid = {uint32_t(ceil_div(op.n_in, kThreads * kThreadValues)),
                                      uint32_t(std::min(op.n_out, kMaxRows)), 1},
                             .block = {kThreads, 1, 1},
                             .overlap_previous = true},
                            target, cat("[expand_weights] ", op.n_out, " x ", op.n_in, " ", name(op.type))),
          .params = {.w = op.w,
                     .y = scratch.take(quant::plane_layout(to, op.n_out, op.n_in).bytes),
                     .from = op.type,
                     .to = to,
                     .n_out = op.n_out,
                     .n_in = op.n_in}};
}

void set_tiles(Gemm& p, const GemmConfig& config) {
  p.n_blocks = config.n_blocks;
  p.n_stages = config.n_stages;
  p.tile_rows = config.tile_rows;
  p.tile_outs = config.tile_outs;
  p.n_whole_tiles = config.n_whole_tiles;
}

Launch tiles_launch(const GemmConfig& config, const std::string& what, const Target& target) {
  return checked({.kernel = config.kernel,
                  .grid = {uint32_t(config.n_blocks), 1, 1},
                  .block = {uint32_t(config.threads), 1, 1},
                  .shared_bytes = config.shared_bytes,
                  .overlap_previous = true},
                 target, what);
}

// Tiles and fix-up of a group of one type. `what` describes the whole group in error messages.
GemmLaunch gemm_launch(const LinearGroup& group, const RoundedRows& x, const std::string& what, Scratch& scratch,
                       const Target& target) {
  const Linear& first = group.products[0];
  const GemmConfig config = gemm_config(group, what, target);
  GemmLaunch result = {};
  Gemm& p = result.params;
  p.group = group;
  p.x = x;
  for (int i = 0; i < group.n; ++i)
    p.first_tile[i + 1] = p.first_tile[i] + ceil_div(group.products[i].n_out, config.tile_outs);
  p.n_row_tiles = ceil_div(first.rows, config.tile_rows);
  p.n_chunks = ceil_div(first.n_in, config.chunk_values);
  const long n_tiles = tile_count(group, config.tile_rows, config.tile_outs), n_shared = n_tiles - config.n_whole_tiles;
  LB_CHECK(n_tiles * p.n_chunks <= 0x7fffffff, kUnsupported, what, ": too large");
  set_tiles(p, config);
  result.has_sum = n_shared > 0 && n_shared != p.n_blocks;
  if (result.has_sum)
    p.partials = static_cast<float*>(scratch.take(2 * sizeof(float) * p.n_blocks * p.tile_rows * p.tile_outs));
  result.tiles = tiles_launch(config, what, target);
  result.sum = checked({.kernel = "gemm_sum_kernel",
                        .grid = {uint32_t(std::max(n_shared, 1l)), uint32_t(ceil_div(p.tile_rows, kGemmWarps)), 1},
                        .block = {kGemmThreads, 1, 1},
                        .overlap_previous = true},
                       target, what);
  return result;
}

// The parts of a group, one GEMM each: the matrices of one type, the matrices of two types that a skinny kernel covers,
// or one matrix with expanded weights. Each expanded matrix is a part of its own, so that the scratch holds one at a
// time.
struct GemmParts {
  LinearGroup groups[kMaxProducts];            // an expanded matrix has its expanded type in this group
  std::optional<Linear> stored[kMaxProducts];  // the expanded matrix in its stored type
  int n;
  bool is_skinny(int i, const Target& target) const { return !stored[i] && gpu::is_skinny(groups[i], target); }
};
GemmParts split_parts(const LinearGroup& group, const Target& target) {
  GemmParts parts = {};
  for (const Linear& op : ops_of(group)) {
    int i = 0;
    if (is_expanded(op, target)) {
      i = parts.n;
      parts.stored[i] = op;
    }
    while (i < parts.n && (parts.stored[i] || parts.groups[i].products[0].type != op.type)) ++i;
    parts.n = std::max(parts.n, i + 1);
    LinearGroup& part = parts.groups[i];
    part.products[part.n++] = op;
    if (parts.stored[i]) part.products[0].type = wide_type(target);
  }
  int n_skinny = 0;
  for (int i = 0; i < parts.n; ++i) n_skinny += parts.is_skinny(i, target);
  if (n_skinny == parts.n) parts.n = pair_types(parts.groups, parts.n, target);
  return parts;
}

// Returns the 16-bit, fp8 or fp4 x of a part, or null if the part reads none. Parts with one form share a narrowing
// launch.
void* narrow_x(const LinearGroup& part, std::span<NarrowForm> forms, GemmLaunches& result, Scratch& scratch,
               const Target& target) {
  const Linear& op = part.products[0];
  if (op.type == DType::kF32 || bits_of(op) != 0) return nullptr;
  const NarrowForm form = narrow_form(part, target);
  int i = 0;
  while (i < result.n_narrow && forms[i] != form) ++i;
  if (i == result.n_narrow) {
    forms[result.n_narrow++] = form;
    result.narrow[i] = narrow_launch(op, form, scratch.take(narrow_bytes(op, form)), target);
  }
  return result.narrow[i].params.y;
}

GemmLaunches gemm_launches(const LinearGroup& group, const RoundedRows& x, uint32_t* arrived, Scratch& scratch,
                           const Target& target) {
  const std::string what = checked_text(group, "gemm");
  GemmParts parts = split_parts(group, target);
  GemmLaunches result = {};
  NarrowForm forms[std::size(result.narrow)];
  void* x16[kMaxProducts] = {};
  for (int i = 0; i < parts.n; ++i) x16[i] = narrow_x(parts.groups[i], forms, result, scratch, target);
  // The parts run one after another and reuse the rest of the scratch.
  const size_t before = scratch.used;
  size_t most = before;
  for (int i = 0; i < parts.n; ++i) {
    scratch.used = before;
    LinearGroup& part = parts.groups[i];
    if (parts.is_skinny(i, target)) {
      auto* partials = static_cast<std::byte*>(scratch.take(skinny_scratch(part, target).partials));
      SkinnyStep step = {.group = part, .x = x};
      if (skinny_is_plain(part.products[0].type)) step.x = {.high = static_cast<int8_t*>(x16[i])};
      result.skinny[result.n_skinny++] = skinny_launch(step, partials, arrived, target);
    } else {
      std::optional<ExpandLaunch> expand;
      if (parts.stored[i]) {
        expand = expand_launch(*parts.stored[i], scratch, target);
        part.products[0].w = expand->params.y;
      }
      GemmLaunch& gemm = result.gemms[result.n_gemms++];
      gemm = gemm_launch(part, x, what, scratch, target);
      gemm.expand = expand;
      if (expand) gemm.tiles.overlap_previous = false;  // its weights come from the previous kernel
      gemm.params.x16 = x16[i];
    }
    most = std::max(most, scratch.used);
  }
  scratch.used = most;
  return result;
}

}  // namespace

int cast_row_threads(int n_in) {
  constexpr int kWarp = 32;
  const int pieces = ceil_div(tiled_values(n_in), kCastValues), passes = ceil_div(pieces, kCastThreads);
  return std::min(ceil_div(pieces, passes * kWarp) * kWarp, kCastThreads);
}

DType cast_type(DType weights, const Target& target) {
  return weights == DType::kF16 ? DType::kF16 : wide_type(target);
}

NarrowLaunch choose_cast_rows(const Linear& op, void* y, const Target& target) {
  return narrow_launch(op,
                       {.type = cast_type(op.type, target),
                        .is_permuted = is_quantised(op.type),
                        .is_tiled = false,
                        .has_scales = false},
                       y, target);
}

std::optional<NarrowLaunch> choose_skinny_x(const LinearGroup& group, void* y, const Target& target) {
  const Linear& first = group.products[0];
  const auto is_of_type = [&](const Linear& op) { return op.type == first.type; };
  if (!skinny_is_plain(first.type) || !std::ranges::all_of(ops_of(group), is_of_type) || !is_skinny(group, target))
    return {};
  return narrow_launch(first, narrow_form(group, target), y, target);
}

int gemm_rounded_bits(const LinearGroup& group, const Target& target) {
  int bits = 0;
  for (const Linear& op : ops_of(group))
    if (!is_expanded(op, target)) bits = std::max(bits, bits_of(op));
  return bits;
}

GemmLaunches choose_gemm(const LinearGroup& group, const RoundedRows& x, void* scratch, uint32_t* arrived,
                         const Target& target) {
  Scratch parts = {static_cast<std::byte*>(scratch)};
  return gemm_launches(group, x, arrived, parts, target);
}

std::optional<GemmLaunch> choose_gated(const GemmLaunches& gemms, float* y, const Target& target) {
  if (gemms.n_gemms != 1 || gemms.n_skinny > 0 || gemms.gemms[0].expand) return {};
  const LinearGroup& group = gemms.gemms[0].params.group;
  const std::optional<GemmConfig> config = choose_gated_config(group, target);
  if (!config || !is_warpgroup(group, target)) return {};
  GemmLaunch result = gemms.gemms[0];
  Gemm& p = result.params;
  set_tiles(p, *config);
  p.group.products[0].y = y;
  p.first_tile[1] = p.first_tile[2] = ceil_div(group.products[0].n_out, config->tile_outs);
  p.n_row_tiles = ceil_div(group.products[0].rows, config->tile_rows);
  result.tiles = tiles_launch(*config, to_string(group, "gated gemm"), target);
  result.has_sum = false;
  return result;
}

size_t gemm_scratch_at(const Linear& first, int bits) {
  return bits == 0 ? 0 : round_up(rounded_bytes(first.rows, first.n_in, bits == 16), quant::kPlaneAlignment);
}

bool has_gemm(const LinearGroup& group, const Target& target) {
  if (std::ranges::all_of(ops_of(group), is_row_by_row)) return false;
  return std::ranges::all_of(ops_of(group),
                             [&](const Linear& op) { return has_kernel(op, target) || is_expanded(op, target); });
}

SkinnyParts split_skinny(const LinearGroup& group, const Target& target) {
  SkinnyParts parts = {};
  const TypeGroups types = split_types(group);
  for (const LinearGroup& type : std::span(types.groups, size_t(types.n))) {
    LinearGroup& part = is_skinny(type, target) ? parts.skinny : parts.others;
    for (const Linear& op : ops_of(type)) part.products[part.n++] = op;
  }
  return parts;
}

size_t gemm_scratch_bytes(const LinearGroup& group, const Target& target) {
  Scratch parts = {nullptr};
  gemm_launches(group, {}, nullptr, parts, target);
  return parts.used;
}

}  // namespace lb::gpu
