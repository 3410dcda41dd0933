// Weight type and rows -> GEMM kernel, tile, and how the tiles are shared over the blocks. For each weight type of a
// group the first that applies:
//   1. skinny GEMM (gpu/gemm_skinny), where the pack has a kernel for so few rows;
//   2. more than 64 rows on sm_90: wgmma (choose_sm90.cpp);
//   3. a kernel for the type, with the fewest passes over the weights and then the fewest spare rows;
//   4. at least 12 rows of a type without one: weights expanded to 16 bits, then 2 or 3.
// Matrices for which none applies are left to the GEMV, one row after another (has_gemm).
#include "gpu/gemm/choose.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/gemm/choose_sm90.h"
#include "gpu/gemm/instances.h"
#include "gpu/gemm_skinny/choose.h"
#include "gpu/linear_group.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

constexpr int kMaxSpeculationRows = 64;  // more rows are a prompt

// Operands of the matrix instruction: s8, 16-bit numbers or fp32.
enum class XForm { kBytes, kHalves, kFloats };

struct GemmKernel {
  DType type;
  XForm form;
  int bits;  // of rounded x; 0: x is not rounded
  int tile_rows, tile_outs;
  const char* name;
};
constexpr int kTileOuts = 128;
// clang-format off
constexpr GemmKernel kKernels[] = {
#define X(kernel, Type, kXBits, kTileRows, kMinBlocks) \
  {DType::k##Type, XForm::kBytes, kXBits, kTileRows, kTileOuts, #kernel},
    LB_GEMM_Q8_0(X) LB_GEMM_Q8_0_64(X) LB_GEMM_Q4_0(X) LB_GEMM_Q4_K(X) LB_GEMM_Q6_K(X)
#undef X
#define X(kernel, Type, kTileRows) {DType::k##Type, XForm::kHalves, 0, kTileRows, kTileOuts, #kernel},
    LB_GEMM_PLAIN(X)
#undef X
#define X(kernel, Type) {DType::k##Type, XForm::kHalves, 0, kWideRows, kTileOuts, #kernel},
    LB_GEMM_WIDE_QUANTISED(X) LB_GEMM_WIDE_PLAIN(X)
#undef X
#define X(kernel, Type) {DType::k##Type, XForm::kFloats, 0, kFloatRows, kTileOuts, #kernel},
    LB_GEMM_FLOAT(X)
#undef X
};
// clang-format on

constexpr const char* kExpandKernel = "expand_weights_kernel";

int chunk_values(const GemmKernel& kernel) {
  return kernel.form == XForm::kBytes ? kByteValues : kernel.form == XForm::kHalves ? kHalfValues : kFloatValues;
}

size_t stage_bytes(const GemmKernel& kernel) {
  const int x = kernel.form == XForm::kBytes    ? gemm_byte_x(kernel.tile_rows, kernel.bits)
                : kernel.form == XForm::kHalves ? gemm_half_x(kernel.tile_rows)
                                                : gemm_float_x(kernel.tile_rows);
  return size_t(kernel.tile_outs) * gemm_code_row(kernel.type, chunk_values(kernel)) + x;
}

// Up to four stages, as many as leave shared memory for a second block on the SM; else for one block.
struct Stages {
  int n, blocks_per_sm;  // n 0: not even two stages fit
  size_t bytes;          // of shared memory
};
Stages stages_of(const GemmKernel& kernel, const Target& target) {
  for (int blocks : {2, 1})
    for (int n = 4; n >= 2; --n)
      if (const size_t bytes = n * stage_bytes(kernel) + kGemmWarps * kGemmWarpBytes;
          blocks * bytes <= target.shared_block_bytes)
        return {n, blocks, bytes};
  return {};
}

// The wide kernels have tiles of 256 outputs where the target has the registers and shared memory (gemm_wide.cpp).
GemmKernel on_target(GemmKernel kernel, const Target& target) {
  if (kernel.tile_rows == kWideRows && is_quantised(kernel.type) && target.capabilities.async_copy)
    kernel.tile_outs *= 2;
  return kernel;
}

// The type's kernel with the fewest passes over the weights, then with the fewest spare rows.
std::optional<GemmKernel> kernel_of(DType type, int bits, int rows, const Target& target) {
  std::optional<GemmKernel> best;
  const auto passes = [&](const GemmKernel& kernel) { return ceil_div(rows, kernel.tile_rows); };
  for (const GemmKernel& entry : kKernels) {
    const GemmKernel kernel = on_target(entry, target);
    if (kernel.type != type || kernel.bits != bits || !stages_of(kernel, target).n) continue;
    if (kernel.tile_rows == kWideRows && rows <= kMaxSpeculationRows) continue;
    if (!best || passes(kernel) < passes(*best) ||
        (passes(kernel) == passes(*best) && kernel.tile_rows < best->tile_rows))
      best = kernel;
  }
  return best;
}

// Bits of the rounded x that a matrix reads; 0: it reads fp32 x, as it is or as 16-bit numbers.
int bits_of(const Linear& op) {
  if (!is_quantised(op.type)) return 0;
  if (op.activations == Activations::kF32) return 16;
  return op.rows > kMaxSpeculationRows ? 0 : 8;
}

std::optional<WarpgroupCut> warpgroup_cut(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  if (first.rows <= kMaxSpeculationRows || bits_of(first) != 0) return {};
  return choose_warpgroup_cut(group, target);
}

// Whether skinny GEMM multiplies a group of one type, or of two that one of its kernels covers.
bool is_skinny(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  return (bits_of(first) == 8 || skinny_is_plain(first.type)) && has_skinny(group, target);
}

// Whether a kernel reads the matrix as it is stored.
bool has_kernel(const Linear& op, const Target& target) {
  return kernel_of(op.type, bits_of(op), op.rows, target) || is_skinny({.products = {op}, .n = 1}, target);
}

// Expansion reads a weight, writes 16 bits and reads them: the time of about ten GEMVs. A matrix too large for the
// scratch, such as the head of a large vocabulary, stays with the GEMV.
constexpr int kMinExpandedRows = 12;
constexpr long kMaxExpandedBytes = 256l << 20;

bool is_expanded(const Linear& op, const Target& target) {
  return is_quantised(op.type) && bits_of(op) != 16 && op.rows >= kMinExpandedRows &&
         2l * op.n_out * op.n_in <= kMaxExpandedBytes && target.has(kExpandKernel) && !has_kernel(op, target);
}

// The type of expanded weights.
DType wide_type(const Target& target) { return target.capabilities.bf16 ? DType::kBF16 : DType::kF16; }

// Memory handed out from the start; with null memory it only counts.
struct Scratch {
  std::byte* memory;
  size_t used = 0;
  void* take(size_t bytes) {
    void* at = memory ? memory + used : nullptr;
    used += round_up(bytes, quant::kPlaneAlignment);
    return at;
  }
};

// The 16-bit x that a group of one type reads.
struct NarrowForm {
  DType type;
  bool is_permuted, is_tiled;
  bool operator==(const NarrowForm&) const = default;
};
NarrowForm narrow_form(const LinearGroup& group, const Target& target) {
  const DType weights = group.products[0].type;
  return {weights == DType::kF16 ? DType::kF16 : wide_type(target), is_quantised(weights),
          warpgroup_cut(group, target).has_value()};
}

NarrowLaunch narrow_launch(const Linear& op, NarrowForm form, void* y, const Target& target) {
  constexpr int kThreads = 256, kThreadValues = 16;
  const int row_values = form.is_tiled ? tiled_values(op.n_in) : x16_values(op.n_in);
  return {.launch = checked({.kernel = "narrow_rows_kernel",
                             .grid = {uint32_t(ceil_div(row_values, kThreads * kThreadValues)), uint32_t(op.rows), 1},
                             .block = {kThreads, 1, 1},
                             .overlap_previous = true},
                            target, cat("[narrow_rows] ", op.rows, " rows of ", op.n_in)),
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

// Stream-K: all units are split evenly over the blocks that the SMs run at once. Where a prompt has more tiles than
// that, each tile gets a block, which saves the partial sums.
int block_count(const GemmKernel& kernel, const Stages& stages, long n_tiles, int n_chunks, const Target& target) {
  const long at_once = long(std::max(1, target.n_sms)) * stages.blocks_per_sm;
  if (kernel.tile_rows == kWideRows && n_tiles >= at_once) return int(n_tiles);
  return int(std::min(at_once, n_tiles * n_chunks));
}

// Tiles and blocks of a group of one type, for either kind of kernel.
struct Cut {
  const char* kernel;
  int chunk_values, tile_rows, tile_outs, n_stages, threads;
  size_t shared_bytes;
  int n_blocks, n_whole_tiles;
};

long tile_count(const LinearGroup& group, int tile_rows, int tile_outs) {
  long out_tiles = 0;
  for (const Linear& op : ops_of(group)) out_tiles += ceil_div(op.n_out, tile_outs);
  return out_tiles * ceil_div(group.products[0].rows, tile_rows);
}

Cut cut_of(const LinearGroup& group, const std::string& what, const Target& target) {
  if (const std::optional<WarpgroupCut> cut = warpgroup_cut(group, target))
    return {.kernel = cut->kernel,
            .chunk_values = warpgroup_values(group.products[0].type),
            .tile_rows = cut->tile_rows,
            .tile_outs = cut->tile_outs,
            .n_stages = 0,  // a constant of the kernel
            .threads = kWarpgroupThreads,
            .shared_bytes = cut->shared_bytes,
            .n_blocks = cut->n_blocks,
            .n_whole_tiles = cut->n_whole_tiles};
  const Linear& first = group.products[0];
  const std::optional<GemmKernel> kernel = kernel_of(first.type, bits_of(first), first.rows, target);
  if (!kernel)
    fail(ErrorCode::kUnsupported, what, " on ", target.name, ": no batch kernel reads ", name(first.type), " weights");
  const Stages stages = stages_of(*kernel, target);
  const long n_tiles = tile_count(group, kernel->tile_rows, kernel->tile_outs);
  const int values = chunk_values(*kernel);
  return {.kernel = kernel->name,
          .chunk_values = values,
          .tile_rows = kernel->tile_rows,
          .tile_outs = kernel->tile_outs,
          .n_stages = stages.n,
          .threads = kGemmThreads,
          .shared_bytes = stages.bytes,
          .n_blocks = block_count(*kernel, stages, n_tiles, ceil_div(first.n_in, values), target),
          .n_whole_tiles = 0};
}

// For a group of one type; `what` is the whole group, for errors.
GemmLaunch gemm_launch(const LinearGroup& group, const RoundedRows& x, const std::string& what, Scratch& scratch,
                       const Target& target) {
  const Linear& first = group.products[0];
  const Cut cut = cut_of(group, what, target);
  GemmLaunch result = {};
  Gemm& p = result.params;
  p.group = group;
  p.x = x;
  for (int i = 0; i < group.n; ++i)
    p.first_tile[i + 1] = p.first_tile[i] + ceil_div(group.products[i].n_out, cut.tile_outs);
  p.n_row_tiles = ceil_div(first.rows, cut.tile_rows);
  p.n_chunks = ceil_div(first.n_in, cut.chunk_values);
  const long n_tiles = tile_count(group, cut.tile_rows, cut.tile_outs), n_shared = n_tiles - cut.n_whole_tiles;
  LB_CHECK(n_tiles * p.n_chunks <= 0x7fffffff, kUnsupported, what, ": too large");
  p.n_blocks = cut.n_blocks;
  p.n_stages = cut.n_stages;
  p.tile_rows = cut.tile_rows;
  p.tile_outs = cut.tile_outs;
  p.n_whole_tiles = cut.n_whole_tiles;
  result.has_sum = n_shared > 0 && n_shared != p.n_blocks;
  if (result.has_sum)
    p.partials = static_cast<float*>(scratch.take(2 * sizeof(float) * p.n_blocks * p.tile_rows * p.tile_outs));
  result.tiles = checked({.kernel = cut.kernel,
                          .grid = {uint32_t(p.n_blocks), 1, 1},
                          .block = {uint32_t(cut.threads), 1, 1},
                          .shared_bytes = cut.shared_bytes,
                          .overlap_previous = true},
                         target, what);
  result.sum = checked({.kernel = "gemm_sum_kernel",
                        .grid = {uint32_t(std::max(n_shared, 1l)), uint32_t(ceil_div(p.tile_rows, kGemmWarps)), 1},
                        .block = {kGemmThreads, 1, 1},
                        .overlap_previous = true},
                       target, what);
  return result;
}

// One GEMM each: the matrices of a type, those of two types that a skinny kernel covers, or one matrix whose weights
// are expanded. Expanded matrices are alone, so that the scratch holds one at a time.
struct GemmParts {
  LinearGroup groups[kMaxProducts];            // an expanded matrix has the type of its expanded weights here
  std::optional<Linear> stored[kMaxProducts];  // an expanded matrix as it is stored
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

// The 16-bit x of a part, made by a launch that parts with the same form share; null where the part reads no such x.
void* narrow_x(const LinearGroup& part, std::span<NarrowForm> forms, GemmLaunches& result, Scratch& scratch,
               const Target& target) {
  const Linear& op = part.products[0];
  if (op.type == DType::kF32 || bits_of(op) != 0) return nullptr;
  const NarrowForm form = narrow_form(part, target);
  int i = 0;
  while (i < result.n_narrow && forms[i] != form) ++i;
  if (i == result.n_narrow) {
    forms[result.n_narrow++] = form;
    const size_t values =
        form.is_tiled ? size_t(padded_rows(op.rows)) * tiled_values(op.n_in) : size_t(op.rows) * x16_values(op.n_in);
    result.narrow[i] = narrow_launch(op, form, scratch.take(values * sizeof(uint16_t)), target);
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
  // The parts run one after another and share the rest of the scratch.
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
      if (expand) gemm.tiles.overlap_previous = false;  // GEMMs load weights before they wait for the previous kernel
      gemm.params.x16 = x16[i];
    }
    most = std::max(most, scratch.used);
  }
  scratch.used = most;
  return result;
}

}  // namespace

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

size_t gemm_scratch_at(const Linear& first, int bits) {
  return bits == 0 ? 0 : round_up(rounded_bytes(first.rows, first.n_in, bits == 16), quant::kPlaneAlignment);
}

bool has_gemm(const LinearGroup& group, const Target& target) {
  return std::ranges::all_of(ops_of(group),
                             [&](const Linear& op) { return has_kernel(op, target) || is_expanded(op, target); });
}

size_t gemm_scratch_bytes(const LinearGroup& group, const Target& target) {
  Scratch parts = {nullptr};
  gemm_launches(group, {}, nullptr, parts, target);
  return parts.used;
}

}  // namespace lb::gpu
