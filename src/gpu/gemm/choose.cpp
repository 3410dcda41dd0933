// Which kernel, tiles and share of the blocks a product with many rows gets.
#include "gpu/gemm/choose.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/gemm/choose_sm90.h"
#include "gpu/gemm/instances.h"
#include "gpu/gemm_skinny/choose.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

constexpr int kMaxSpeculationRows = 64;  // more rows are a prompt's

std::string to_string(const LinearGroup& group) {
  const Linear& first = group.products[0];
  std::string text = cat("[gemm] ", first.rows, " rows x ");
  for (int i = 0; i < group.n; ++i)
    text += cat(i ? " + " : "", name(group.products[i].type), " [", group.products[i].n_out, ", ", first.n_in, "]");
  return text + (first.activations == Activations::kInt8 ? " int8" : " f32");
}

enum class XForm { kBytes, kHalves, kFloats };

struct GemmKernel {
  DType type;
  XForm form;
  int bits;  // of rounded x; 0: another form
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

bool is_quantised(DType type) { return quant::plane_format(type).block_values > 1; }

int ceil_div(long n, int unit) { return int((n + unit - 1) / unit); }

int chunk_values(const GemmKernel& kernel) {
  return kernel.form == XForm::kBytes ? kByteValues : kernel.form == XForm::kHalves ? kHalfValues : kFloatValues;
}

size_t stage_bytes(const GemmKernel& kernel) {
  const int x = kernel.form == XForm::kBytes    ? gemm_byte_x(kernel.tile_rows, kernel.bits)
                : kernel.form == XForm::kHalves ? gemm_half_x(kernel.tile_rows)
                                                : gemm_float_x(kernel.tile_rows);
  return size_t(kernel.tile_outs) * gemm_code_row(kernel.type, chunk_values(kernel)) + x;
}

// As many stages, up to four, as leave room for a second block on the multiprocessor.
struct Stages {
  int n, blocks_per_sm;  // n 0: there is no room for two stages
  size_t bytes;
};
Stages stages_of(const GemmKernel& kernel, const Target& target) {
  for (int blocks : {2, 1})
    for (int n = 4; n >= 2; --n)
      if (const size_t bytes = n * stage_bytes(kernel) + kGemmWarps * kGemmWarpBytes;
          blocks * bytes <= target.shared_block_bytes)
        return {n, blocks, bytes};
  return {};
}

// Kernels for prompts have tiles of twice the outputs where registers and shared memory are there for them
// (src/gpu/gemm/gemm_wide.cpp).
GemmKernel on_target(GemmKernel kernel, const Target& target) {
  if (kernel.tile_rows == kWideRows && is_quantised(kernel.type) && target.capabilities.async_copy)
    kernel.tile_outs *= 2;
  return kernel;
}

// Of the kernels of a type, the one that passes over the weights the fewest times, with the fewest rows to spare.
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

// How a group's product of one type reads x.
int bits_of(const Linear& op) {
  if (!is_quantised(op.type)) return 0;
  if (op.activations == Activations::kF32) return 16;
  return op.rows > kMaxSpeculationRows ? 0 : 8;
}

// Prompts, where a warpgroup multiplies.
std::optional<WarpgroupCut> warpgroup_cut(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  if (first.rows <= kMaxSpeculationRows || bits_of(first) != 0) return {};
  return cut_for_warpgroups(group, target);
}

// Expanding reads a weight and writes and reads 16 bits, for the time of about ten mat-vecs. A matrix too large for the
// scratch memory that this takes, as a head of a large vocabulary is, stays with the mat-vec.
constexpr int kMinExpandedRows = 12;
constexpr long kMaxExpandedBytes = 256l << 20;

// The 16-bit numbers that expanded weights are.
DType wide_type(const Target& target) { return target.capabilities.bf16 ? DType::kBF16 : DType::kF16; }

// Where x has 8 bits, or 16 as the weights, and the target's pack has a kernel for so few rows.
bool is_skinny(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  return (bits_of(first) == 8 || skinny_is_plain(first.type)) && has_skinny(group, target);
}

// Whether a kernel reads the product's weights as they are.
bool is_read(const Linear& op, const Target& target) {
  return kernel_of(op.type, bits_of(op), op.rows, target) || is_skinny({.products = {op}, .n = 1}, target);
}

// Whether none does, but expanded ones can be multiplied.
bool is_expanded(const Linear& op, const Target& target) {
  return is_quantised(op.type) && bits_of(op) != 16 && op.rows >= kMinExpandedRows &&
         2l * op.n_out * op.n_in <= kMaxExpandedBytes && target.has(kExpandKernel) && !is_read(op, target);
}

// The form of x that weights of a type meet as 16-bit numbers.
struct NarrowForm {
  DType type;
  bool meets_codes, in_tiles;
  bool operator==(const NarrowForm&) const = default;
};
NarrowForm narrow_form(const LinearGroup& group, const Target& target) {
  const DType weights = group.products[0].type;
  return {weights == DType::kF16 ? DType::kF16 : wide_type(target), is_quantised(weights),
          warpgroup_cut(group, target).has_value()};
}

size_t aligned(size_t bytes) {
  return (bytes + quant::kPlaneAlignment - 1) / quant::kPlaneAlignment * quant::kPlaneAlignment;
}

// A part of the scratch memory; only counts where there is none.
struct Scratch {
  std::byte* memory;
  size_t used = 0;
  void* take(size_t bytes) {
    void* at = memory ? memory + used : nullptr;
    used += aligned(bytes);
    return at;
  }
};

NarrowLaunch narrow_launch(const Linear& op, NarrowForm form, void* y, const Target& target) {
  constexpr int kThreads = 256, kThreadValues = 16;
  const int row_values = form.in_tiles ? tiled_values(op.n_in) : x16_values(op.n_in);
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
              .meets_codes = form.meets_codes,
              .in_tiles = form.in_tiles,
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

// All units are shared out evenly over the blocks that the multiprocessors take at once, so that none is idle; but many
// tiles of a prompt get a block each, which saves their partial sums.
int block_count(const GemmKernel& kernel, const Stages& stages, long n_tiles, int n_chunks, const Target& target) {
  const long most = long(std::max(1, target.n_sms)) * stages.blocks_per_sm;
  if (kernel.tile_rows == kWideRows && n_tiles >= most) return int(n_tiles);
  return int(std::min(most, n_tiles * n_chunks));
}

// How a product is cut, by a kernel of warps or of warpgroups.
struct Cut {
  const char* kernel;
  int chunk_values, tile_rows, tile_outs, n_stages, threads;
  size_t shared_bytes;
  int n_blocks, n_whole;
};

long tile_count(const LinearGroup& group, int tile_rows, int tile_outs) {
  long outs = 0;
  for (int i = 0; i < group.n; ++i) outs += ceil_div(group.products[i].n_out, tile_outs);
  return outs * ceil_div(group.products[0].rows, tile_rows);
}

Cut cut_of(const LinearGroup& group, const std::string& what, const Target& target) {
  if (const std::optional<WarpgroupCut> cut = warpgroup_cut(group, target))
    return {.kernel = cut->kernel,
            .chunk_values = warpgroup_values(group.products[0].type),
            .tile_rows = cut->tile_rows,
            .tile_outs = cut->tile_outs,
            .n_stages = 0,  // the kernel's own
            .threads = kWarpgroupThreads,
            .shared_bytes = cut->shared_bytes,
            .n_blocks = cut->n_blocks,
            .n_whole = cut->n_whole};
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
          .n_whole = 0};
}

GemmLaunch gemm_launch(const LinearGroup& group, const RoundedRows& x, const std::string& what, Scratch& scratch,
                       const Target& target) {
  const Linear& first = group.products[0];
  const Cut cut = cut_of(group, what, target);
  GemmLaunch batch = {};
  Gemm& p = batch.params;
  p.group = group;
  p.x = x;
  for (int i = 0; i < group.n; ++i)
    p.first_tile[i + 1] = p.first_tile[i] + ceil_div(group.products[i].n_out, cut.tile_outs);
  p.n_row_tiles = ceil_div(first.rows, cut.tile_rows);
  p.n_chunks = ceil_div(first.n_in, cut.chunk_values);
  const long n_tiles = tile_count(group, cut.tile_rows, cut.tile_outs), n_left = n_tiles - cut.n_whole;
  LB_CHECK(n_tiles * p.n_chunks <= 0x7fffffff, kUnsupported, what, ": too large");
  p.n_blocks = cut.n_blocks;
  p.n_stages = cut.n_stages;
  p.tile_rows = cut.tile_rows;
  p.tile_outs = cut.tile_outs;
  p.n_whole = cut.n_whole;
  batch.has_sum = n_left > 0 && n_left != p.n_blocks;
  if (batch.has_sum)
    p.partials = static_cast<float*>(scratch.take(2 * sizeof(float) * p.n_blocks * p.tile_rows * p.tile_outs));
  batch.tiles = checked({.kernel = cut.kernel,
                         .grid = {uint32_t(p.n_blocks), 1, 1},
                         .block = {uint32_t(cut.threads), 1, 1},
                         .shared_bytes = cut.shared_bytes,
                         .overlap_previous = true},
                        target, what);
  batch.sum = checked({.kernel = "gemm_sum_kernel",
                       .grid = {uint32_t(std::max(n_left, 1l)), uint32_t(ceil_div(p.tile_rows, kGemmWarps)), 1},
                       .block = {kGemmThreads, 1, 1},
                       .overlap_previous = true},
                      target, what);
  return batch;
}

GemmLaunches gemm_launches(const LinearGroup& group, const RoundedRows& x, uint32_t* arrived, Scratch& scratch,
                           const Target& target) {
  LB_CHECK(group.n >= 1 && group.n <= kMaxProducts, kInvalid, "[gemm] a group has 1 to ", kMaxProducts,
           " products, got ", group.n);
  const std::string what = to_string(group);
  const Linear& first = group.products[0];
  LB_CHECK(first.rows >= 1 && first.n_in >= 1, kInvalid, what, ": nothing to compute");
  LinearGroup types[kMaxProducts] = {};
  std::optional<Linear> expanded[kMaxProducts];  // as it was; by itself, so that one matrix at a time is in the scratch
  int n_types = 0;
  GemmLaunches result = {};
  for (const Linear& op : std::span(group.products, group.n)) {
    LB_CHECK(op.n_out >= 1, kInvalid, what, ": nothing to compute");
    LB_CHECK(op.x == first.x && op.rows == first.rows && op.n_in == first.n_in && op.activations == first.activations,
             kInvalid, what, ": the products of a group share x, rows, n_in and activations");
    quant::checked_plane_layout(op.type, op.n_out, op.n_in);
    int i = 0;
    if (is_expanded(op, target)) {
      i = n_types;
      expanded[i] = op;
    }
    while (i < n_types && (expanded[i] || types[i].products[0].type != op.type)) ++i;
    n_types = std::max(n_types, i + 1);
    types[i].products[types[i].n++] = op;
    if (expanded[i]) types[i].products[0].type = wide_type(target);
  }
  int n_skinny = 0;  // where all types have kernels for few rows, two may have one together
  for (int i = 0; i < n_types; ++i) n_skinny += !expanded[i] && is_skinny(types[i], target);
  if (n_skinny == n_types) n_types = pair_types(types, n_types, target);
  NarrowForm forms[std::size(result.narrow)];
  void* narrow[kMaxProducts] = {};
  for (int i = 0; i < n_types; ++i) {
    const Linear& op = types[i].products[0];
    if (op.type == DType::kF32 || bits_of(op) != 0) continue;
    const NarrowForm form = narrow_form(types[i], target);
    int j = 0;
    while (j < result.n_narrow && forms[j] != form) ++j;
    if (j == result.n_narrow) {
      forms[result.n_narrow++] = form;
      const size_t values =
          form.in_tiles ? size_t(padded_rows(op.rows)) * tiled_values(op.n_in) : size_t(op.rows) * x16_values(op.n_in);
      void* y = scratch.take(values * sizeof(uint16_t));
      result.narrow[j] = narrow_launch(op, form, y, target);
    }
    narrow[i] = result.narrow[j].params.y;
  }
  // The products run one after another, so they share what follows.
  const size_t before = scratch.used;
  size_t most = before;
  for (int i = 0; i < n_types; ++i) {
    scratch.used = before;
    if (!expanded[i] && is_skinny(types[i], target)) {
      auto* pieces = static_cast<std::byte*>(scratch.take(skinny_scratch(types[i], target).partials));
      SkinnyStep step = {.group = types[i], .x = x};
      if (skinny_is_plain(types[i].products[0].type)) step.x = {.high = static_cast<int8_t*>(narrow[i])};
      result.few[result.n_skinny++] = skinny_launch(step, pieces, arrived, target);
    } else {
      std::optional<ExpandLaunch> expand;
      if (expanded[i]) {
        expand = expand_launch(*expanded[i], scratch, target);
        types[i].products[0].w = expand->params.y;
      }
      GemmLaunch& product = result.products[result.n_products++];
      product = gemm_launch(types[i], x, what, scratch, target);
      product.expand = expand;
      if (expand) product.tiles.overlap_previous = false;  // it would ask for weights that are not there yet
      product.params.x16 = narrow[i];
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
  if (!skinny_is_plain(first.type) || !std::ranges::all_of(std::span(group.products, group.n), is_of_type) ||
      !is_skinny(group, target))
    return {};
  return narrow_launch(first, narrow_form(group, target), y, target);
}

int gemm_rounded_bits(const LinearGroup& group, const Target& target) {
  int bits = 0;
  for (const Linear& op : std::span(group.products, group.n))
    if (!is_expanded(op, target)) bits = std::max(bits, bits_of(op));
  return bits;
}

GemmLaunches choose_gemm(const LinearGroup& group, const RoundedRows& x, void* scratch, uint32_t* arrived,
                         const Target& target) {
  Scratch parts = {static_cast<std::byte*>(scratch)};
  return gemm_launches(group, x, arrived, parts, target);
}

size_t gemm_scratch_at(const Linear& first, int bits) {
  return bits == 0 ? 0 : (rounded_bytes(first.rows, first.n_in, bits == 16) + 255) / 256 * 256;
}

bool has_gemm(const LinearGroup& group, const Target& target) {
  return std::ranges::all_of(std::span(group.products, group.n),
                             [&](const Linear& op) { return is_read(op, target) || is_expanded(op, target); });
}

size_t gemm_scratch_bytes(const LinearGroup& group, const Target& target) {
  Scratch parts = {nullptr};
  gemm_launches(group, {}, nullptr, parts, target);
  return parts.used;
}

}  // namespace lb::gpu
