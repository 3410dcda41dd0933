// Chooses GEMM kernels, and the tiles and blocks of a group.
#include "gpu/gemm/choose_config.h"

#include <algorithm>
#include <optional>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/gemm/choose_sm90.h"
#include "gpu/gemm/instances.h"
#include "gpu/linear_group.h"

namespace lb::gpu {
namespace {

constexpr int kMaxSpeculationRows = 64;  // more rows are a prompt

// Operand type of the matrix instruction: s8, 16-bit numbers, fp32, e4m3 or e2m1.
enum class XForm { kBytes, kHalves, kFloats, kFp8, kFp4 };

struct GemmKernel {
  DType type;
  XForm form;
  int bits;  // bits of rounded x; 0: x is not rounded
  int tile_rows, tile_outs;
  const char* name;
};
constexpr int kTileOuts = 128;
// clang-format off
constexpr GemmKernel kKernels[] = {
#define X(kernel, Type, kXBits, kTileRows, kMinBlocks) \
  {DType::k##Type, XForm::kBytes, kXBits, kTileRows, kTileOuts, #kernel},
    LB_GEMM_Q8_0(X) LB_GEMM_Q8_0_64(X) LB_GEMM_Q4_0(X) LB_GEMM_Q4_K(X) LB_GEMM_Q6_K(X) LB_GEMM_K_SMALL(X)
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
#define X(kernel, Type) {DType::k##Type, XForm::kFp8, 0, kFp8Rows, kFp8Outs, #kernel},
    LB_GEMM_FP8_SM89(X) LB_GEMM_FP8_SM120(X)
#undef X
#define X(kernel, Type) {DType::k##Type, XForm::kFp4, 0, kWideRows, kFp4Outs, #kernel},
    LB_GEMM_FP4(X)
#undef X
};
// clang-format on

int chunk_values(const GemmKernel& kernel) {
  switch (kernel.form) {
    case XForm::kBytes: return kByteValues;
    case XForm::kHalves: return kHalfValues;
    case XForm::kFp8: return kFp8Values;
    case XForm::kFp4: return kFp4Values;
    case XForm::kFloats: break;
  }
  return kFloatValues;
}

int x_bytes(const GemmKernel& kernel) {
  switch (kernel.form) {
    case XForm::kBytes: return gemm_byte_x(kernel.tile_rows, kernel.bits);
    case XForm::kHalves: return gemm_half_x(kernel.tile_rows);
    case XForm::kFp8: return gemm_fp8_x(kernel.tile_rows);
    case XForm::kFp4: return gemm_fp4_x(kernel.tile_rows);
    case XForm::kFloats: break;
  }
  return gemm_float_x(kernel.tile_rows);
}

size_t stage_bytes(const GemmKernel& kernel) {
  return size_t(kernel.tile_outs) * gemm_code_row(kernel.type, chunk_values(kernel)) + x_bytes(kernel);
}

// Whether the kernel has the tiles of prompts.
bool is_wide(const GemmKernel& kernel) { return kernel.tile_rows == kWideRows || kernel.form == XForm::kFp8; }

GemmStages stages_of(const GemmKernel& kernel, const Target& target) {
  return gemm_stages(stage_bytes(kernel), target);
}

// The wide kernels use tiles of 256 outputs if the target has the registers and shared memory (gemm_wide.cpp).
GemmKernel on_target(GemmKernel kernel, const Target& target) {
  if (kernel.tile_rows == kWideRows && kernel.tile_outs == kTileOuts && is_quantised(kernel.type) &&
      target.capabilities.async_copy)
    kernel.tile_outs *= 2;
  return kernel;
}

// The type's kernel with the fewest passes over the weights, then with the fewest spare rows.
std::optional<GemmKernel> kernel_of(const Linear& op, const Target& target) {
  const int bits = bits_of(op);
  std::optional<GemmKernel> best;
  const auto passes = [&](const GemmKernel& kernel) { return ceil_div(op.rows, kernel.tile_rows); };
  for (const GemmKernel& entry : kKernels) {
    const GemmKernel kernel = on_target(entry, target);
    if (kernel.type != op.type || kernel.bits != bits || !stages_of(kernel, target).n) continue;
    if (is_wide(kernel) && op.rows <= kMaxSpeculationRows) continue;
    if ((kernel.form == XForm::kFp4) != multiplies_fp4(op)) continue;
    if (!target.has(kernel.name)) continue;
    if (!best || passes(kernel) < passes(*best) ||
        (passes(kernel) == passes(*best) && kernel.tile_rows < best->tile_rows))
      best = kernel;
  }
  return best;
}

std::optional<GemmConfig> warpgroup_config(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  if (first.rows <= kMaxSpeculationRows || bits_of(first) != 0) return {};
  return choose_warpgroup_config(group, target);
}

// Stream-K: all units are split evenly over the co-resident blocks. If a prompt has at least that many tiles, each tile
// gets a block, which avoids partial sums.
int block_count(const GemmKernel& kernel, const GemmStages& stages, long n_tiles, int n_chunks, const Target& target) {
  const long at_once = long(std::max(1, target.n_sms)) * stages.blocks_per_sm;
  if (is_wide(kernel) && n_tiles >= at_once) return int(n_tiles);
  return int(std::min(at_once, n_tiles * n_chunks));
}

}  // namespace

GemmStages gemm_stages(size_t stage_bytes, const Target& target) {
  for (int blocks : {2, 1})
    for (int n = 4; n >= 2; --n)
      if (const size_t bytes = n * stage_bytes + kGemmWarps * kGemmWarpBytes;
          blocks * bytes <= target.shared_block_bytes)
        return {n, blocks, bytes};
  return {};
}

int bits_of(const Linear& op) {
  if (!is_quantised(op.type)) return 0;
  if (op.activations == Activations::kF32) return 16;
  return op.rows > kMaxSpeculationRows ? 0 : 8;
}

bool multiplies_fp4(const Linear& op) {
  return op.activations == Activations::kFp4 && op.type == DType::kNVFP4 && op.rows > kMaxSpeculationRows;
}

void check_fp4(const Target& target) {
  constexpr const char* kKernels[] = {
#define X(kernel, Type) #kernel,
      LB_GEMM_FP4(X)
#undef X
  };
  LB_CHECK(std::ranges::all_of(kKernels, [&](const char* kernel) { return target.has(kernel); }), kUnsupported,
           "activations = fp4: ", target.name,
           " has no products of 4-bit activations, which sm_120 and sm_121 have. Use activations = int8");
}

bool has_tiles(const Linear& op, const Target& target) {
  if (multiplies_fp4(op)) check_fp4(target);
  return kernel_of(op, target).has_value();
}

bool is_warpgroup(const LinearGroup& group, const Target& target) {
  return warpgroup_config(group, target).has_value();
}

long tile_count(const LinearGroup& group, int tile_rows, int tile_outs) {
  long out_tiles = 0;
  for (const Linear& op : ops_of(group)) out_tiles += ceil_div(op.n_out, tile_outs);
  return out_tiles * ceil_div(group.products[0].rows, tile_rows);
}

GemmConfig gemm_config(const LinearGroup& group, const std::string& what, const Target& target) {
  if (const std::optional<GemmConfig> config = warpgroup_config(group, target)) return *config;
  const Linear& first = group.products[0];
  const std::optional<GemmKernel> kernel = kernel_of(first, target);
  if (!kernel)
    fail(ErrorCode::kUnsupported, what, " on ", target.name, ": no batch kernel reads ", name(first.type), " weights");
  const GemmStages stages = stages_of(*kernel, target);
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

std::string to_string(const GemmConfig& config) {
  const std::string stages = config.n_stages > 0 ? cat(config.n_stages, " stages, ") : "";
  return cat(config.kernel, ": tiles of ", config.tile_rows, " x ", config.tile_outs, " by ", config.chunk_values, ", ",
             config.n_whole_tiles, " whole, on ", config.n_blocks, " blocks of ", config.threads, " threads, ", stages,
             config.shared_bytes, " B");
}

}  // namespace lb::gpu
