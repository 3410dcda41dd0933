// Grids of the elementwise ops: about four values per thread, in whole warps, up to the kernel's launch bound.
#include "gpu/elementwise/choose.h"

#include <algorithm>
#include <initializer_list>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/elementwise/shape.h"
#include "ops/operands.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

constexpr int kWarp = 32;

uint32_t threads_for(long values, int most) {
  const long threads = (values + 4 * kWarp - 1) / (4 * kWarp) * kWarp;
  return static_cast<uint32_t>(std::clamp<long>(threads, kWarp, most));
}

// One block per row, and at least one block, because a grid must not be empty.
Launch by_rows(const char* kernel, long rows, long row_values, int max_threads, const Target& target,
               const std::string& op) {
  LB_CHECK(rows >= 1 && row_values >= 1, kInvalid, op, ": nothing to compute");
  return checked({.kernel = kernel,
                  .grid = {static_cast<uint32_t>(rows), 1, 1},
                  .block = {threads_for(row_values, max_threads), 1, 1},
                  .overlap_previous = true},
                 target, op);
}

// Grid-stride: at most eight blocks per SM; each thread takes `per_thread` values at a time.
Launch by_values(const char* kernel, long values, int per_thread, const Target& target, const std::string& op) {
  LB_CHECK(values >= 1, kInvalid, op, ": nothing to compute");
  constexpr int kThreads = 256;
  const long blocks = (values + long(kThreads) * per_thread - 1) / (long(kThreads) * per_thread);
  return checked({.kernel = kernel,
                  .grid = {static_cast<uint32_t>(std::min<long>(blocks, 8L * target.n_sms)), 1, 1},
                  .block = {kThreads, 1, 1},
                  .overlap_previous = true},
                 target, op);
}

// One block per head, or one warp for short heads. With more than four heads per SM, eight warps share a block.
Launch by_heads(const char* kernel, long heads, int dim, const Target& target, const std::string& op) {
  if (dim > kWarpNormDim) return by_rows(kernel, heads, dim, 1024, target, op);
  LB_CHECK(heads >= 1 && dim >= 1, kInvalid, op, ": nothing to compute");
  const int warps = heads > 4L * target.n_sms ? 8 : 1;
  return checked({.kernel = kernel,
                  .grid = {static_cast<uint32_t>((heads + warps - 1) / warps), 1, 1},
                  .block = {static_cast<uint32_t>(warps * kWarp), 1, 1},
                  .overlap_previous = true},
                 target, op);
}

std::string shape(const char* op, int rows, int dim) { return cat("[", op, "] [", rows, ", ", dim, "]"); }
std::string shape(const char* op, int rows, int heads, int dim) {
  return cat("[", op, "] [", rows, ", ", heads, ", ", dim, "]");
}

// x walks the items of a row, y the rows.
Launch by_items(const char* kernel, int rows, long row_items, const Target& target, const std::string& op) {
  LB_CHECK(rows >= 1 && row_items >= 1, kInvalid, op, ": nothing to compute");
  constexpr int kThreads = 256, kMaxRows = 65535;
  LB_CHECK(rows <= kMaxRows, kUnsupported, op, ": at most ", kMaxRows, " rows");
  return checked(
      {.kernel = kernel,
       .grid = {static_cast<uint32_t>((row_items + kThreads - 1) / kThreads), static_cast<uint32_t>(rows), 1},
       .block = {kThreads, 1, 1},
       .overlap_previous = true},
      target, op);
}

void check_fours(std::initializer_list<int> dims, const std::string& op) {
  for (const int dim : dims) LB_CHECK(dim % 4 == 0, kInvalid, op, ": sizes must be multiples of 4");
}

template <class Op>
void check_rounding(const Op& op, const std::string& what) {
  LB_CHECK(op.rounded.high == nullptr || can_round(op), kInvalid, what, ": only aligned rows of whole blocks of ",
           kRoundBlock, " values are rounded");
}

}  // namespace

bool can_round(const RmsNorm& op) {
  return op.dim % kRoundBlock == 0 && op.row_stride % 4 == 0 && op.head_stride % 4 == 0 && operands_are_aligned(op);
}
bool can_round(const GatedRmsNorm& op) { return op.dim % kRoundBlock == 0 && operands_are_aligned(op); }
bool can_round(const SwiGlu& op) { return op.dim % kRoundBlock == 0 && operands_are_aligned(op); }
bool can_round(const GeGlu& op) {
  return op.dim % kRoundBlock == 0 && op.up_stride % 4 == 0 && operands_are_aligned(op);
}

Launch choose(const RmsNorm& op, const Target& target) {
  const std::string what = shape("rms_norm", op.rows, op.heads, op.dim);
  check_rounding(op, what);
  return by_heads("rms_norm_kernel", long(op.rows) * op.heads, op.dim, target, what);
}

Launch choose(const GatedRmsNorm& op, const Target& target) {
  const std::string what = shape("gated_rms_norm", op.rows, op.heads, op.dim);
  check_rounding(op, what);
  return by_heads("gated_rms_norm_kernel", long(op.rows) * op.heads, op.dim, target, what);
}

Launch choose(const Rope& op, const Target& target) {
  return by_values("rope_kernel", long(op.rows) * op.heads * op.n_pairs, 1, target,
                   shape("rope", op.rows, op.heads, op.dim));
}

Launch choose(const RopeTable& op, const Target& target) {
  const std::string what = cat("[rope_table] [", op.rows, ", ", op.n_pairs, "]");
  LB_CHECK(op.rows >= 1 && op.n_pairs >= 1, kInvalid, what, ": nothing to compute");
  constexpr int kThreads = 256;
  const long blocks = (long(op.rows) * op.n_pairs + kThreads - 1) / kThreads;
  return checked({.kernel = "rope_table_kernel",
                  .grid = {uint32_t(std::min<long>(blocks, 8L * target.n_sms)), 1, 1},
                  .block = {kThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

Launch choose(const SwiGlu& op, const Target& target) {
  const std::string what = shape("swiglu", op.rows, op.dim);
  check_rounding(op, what);
  return by_values("swiglu_kernel", long(op.rows) * op.dim, 4, target, what);
}

Launch choose(const GeGlu& op, const Target& target) {
  const std::string what = shape("geglu", op.rows, op.dim);
  check_rounding(op, what);
  return by_values("geglu_kernel", long(op.rows) * op.dim, 4, target, what);
}

Launch choose(const SoftCap& op, const Target& target) {
  return by_values("soft_cap_kernel", long(op.rows) * op.dim, 1, target, shape("soft_cap", op.rows, op.dim));
}

Launch choose(const AddNorm& op, const Target& target) {
  return by_rows("add_norm_kernel", op.rows, op.dim, 1024, target, shape("add_norm", op.rows, op.dim));
}

Launch choose(const AddBias& op, const Target& target) {
  return by_values("add_bias_kernel", long(op.rows) * op.dim, 1, target, shape("add_bias", op.rows, op.dim));
}

Launch choose(const CopyRows& op, const Target& target) {
  return by_values("copy_rows_kernel", long(op.rows) * op.dim, 4, target, shape("copy_rows", op.rows, op.dim));
}

Launch choose(const Embed& op, const Target& target) {
  const std::string what = cat("[embed] ", op.rows, " rows of ", name(op.type), " [", op.vocab, ", ", op.dim, "]");
  quant::checked_plane_layout(op.type, op.vocab, op.dim);
  return by_rows("embed_kernel", op.rows, op.dim, 256, target, what);
}

Launch choose(const ReadPatches& op, const Target& target) {
  const std::string what = cat("[read_patches] ", op.rows, " patches of ", op.patch);
  LB_CHECK(op.merge >= 1 && op.height % op.merge == 0 && op.columns % op.merge == 0, kInvalid, what,
           ": the sides of an image are whole blocks of ", op.merge, " patches");
  return by_items("read_patches_kernel", op.rows, 3L * op.patch * op.patch, target, what);
}

Launch choose(const AddPositions& op, const Target& target) {
  const std::string what = shape("add_positions", op.rows, op.dim);
  check_fours({op.dim}, what);
  return by_items("add_positions_kernel", op.rows, op.dim / 4, target, what);
}

Launch choose(const AddAxisPositions& op, const Target& target) {
  const std::string what = shape("add_axis_positions", op.rows, op.dim);
  check_fours({op.dim}, what);
  return by_items("add_axis_positions_kernel", op.rows, op.dim / 4, target, what);
}

Launch choose(const PoolPatches& op, const Target& target) {
  const std::string what = shape("pool_patches", op.rows, op.dim);
  check_fours({op.dim}, what);
  return by_items("pool_patches_kernel", op.rows, op.dim / 4, target, what);
}

Launch choose(const Clamp& op, const Target& target) {
  return by_values("clamp_kernel", long(op.rows) * op.dim, 1, target, shape("clamp", op.rows, op.dim));
}

Launch choose(const LayerNorm& op, const Target& target) {
  const std::string what = shape("layer_norm", op.rows, op.dim);
  check_fours({op.dim}, what);
  return by_rows("layer_norm_kernel", op.rows, op.dim, 1024, target, what);
}

Launch choose(const BiasGelu& op, const Target& target) {
  const std::string what = shape("bias_gelu", op.rows, op.dim);
  check_fours({op.dim}, what);
  return by_items("bias_gelu_kernel", op.rows, op.dim / 4, target, what);
}

Launch choose(const SplitHeads& op, const Target& target) {
  const std::string what = shape("split_heads", op.rows, op.heads, op.dim);
  check_fours({op.dim, op.padded}, what);
  LB_CHECK(op.padded >= op.dim && (op.type == KvType::kF16 || op.type == KvType::kF32), kInvalid, what,
           ": heads are padded to at least ", op.dim, " values, of F16 or F32");
  LB_CHECK(op.is_by_axis == 0 || op.dim % 8 == 0, kInvalid, what, ": rotation by axis takes sizes in multiples of 8");
  return by_items("split_heads_kernel", op.rows, 3L * op.heads * (op.padded / 4), target, what);
}

Launch choose(const MergeHeads& op, const Target& target) {
  const std::string what = shape("merge_heads", op.rows, op.heads, op.dim);
  check_fours({op.dim, op.padded}, what);
  return by_items("merge_heads_kernel", op.rows, long(op.heads) * op.dim / 4, target, what);
}

int read_blocks(const Target& target) { return 4 * target.n_sms; }

Launch choose(const ReadMemory& op, const Target& target) {
  const std::string what = cat("[read_memory] ", op.bytes, " bytes");
  LB_CHECK(op.bytes > 0 && op.bytes % 16 == 0, kInvalid, what, ": must be a multiple of 16");
  return checked({.kernel = "read_kernel",
                  .grid = {static_cast<uint32_t>(read_blocks(target)), 1, 1},
                  .block = {512, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

}  // namespace lb::gpu
