// Which product kernel, and how many blocks.
#include "launch/linear.h"

#include <algorithm>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "launch/linear_shape.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

std::string describe(const LinearGroup& group) {
  const Linear& first = group.products[0];
  std::string text = cat("[linear] ", first.rows, " rows x ");
  for (int i = 0; i < group.n; ++i)
    text += cat(i ? " + " : "", name(group.products[i].type), " [", group.products[i].n_out, ", ", first.n_in, "]");
  return text + (first.activations == Activations::kInt8 ? " int8" : " f32");
}

bool is_int8(const Linear& op) {
  return op.activations == Activations::kInt8 && quant::plane_format(op.type).block_values > 1;
}

struct VecKernel {
  DType type;
  bool is_int8;
  const char* kernel;
};
constexpr VecKernel kVecKernels[] = {
    {DType::kF32, false, "linear_vec_f32_kernel"},       {DType::kF16, false, "linear_vec_f16_kernel"},
    {DType::kBF16, false, "linear_vec_bf16_kernel"},     {DType::kQ8_0, true, "linear_vec_q8_0_int8_kernel"},
    {DType::kQ4_0, true, "linear_vec_q4_0_int8_kernel"}, {DType::kQ4_K, true, "linear_vec_q4_k_int8_kernel"},
    {DType::kQ6_K, true, "linear_vec_q6_k_int8_kernel"}, {DType::kQ8_0, false, "linear_vec_q8_0_f32_kernel"},
    {DType::kQ4_0, false, "linear_vec_q4_0_f32_kernel"}, {DType::kQ4_K, false, "linear_vec_q4_k_f32_kernel"},
    {DType::kQ6_K, false, "linear_vec_q6_k_f32_kernel"},
};

const char* vec_kernel(const Linear& op, const std::string& what, const Target& target) {
  for (const VecKernel& entry : kVecKernels)
    if (entry.type == op.type && entry.is_int8 == is_int8(op)) return entry.kernel;
  fail(ErrorCode::kUnsupported, what, " on ", target.name, ": no mat-vec kernel reads ", name(op.type), " weights");
}

}  // namespace

Launch choose(const LinearGroup& group, const Target& target) {
  LB_CHECK(group.n >= 1 && group.n <= kMaxProducts, kInvalid, "[linear] a group has 1 to ", kMaxProducts,
           " products, got ", group.n);
  const std::string what = describe(group);
  const std::span products(group.products, group.n);
  const Linear& first = products[0];
  LB_CHECK(first.rows >= 1 && first.n_in >= 1, kInvalid, what, ": nothing to compute");
  bool is_mixed = false;
  int n_tiles = 0;
  for (const Linear& op : products) {
    LB_CHECK(op.n_out >= 1, kInvalid, what, ": nothing to compute");
    LB_CHECK(op.x == first.x && op.rows == first.rows && op.n_in == first.n_in && op.activations == first.activations,
             kInvalid, what, ": the products of a group share x, rows, n_in and activations");
    vec_kernel(op, what, target);
    quant::checked_plane_layout(op.type, op.n_out, op.n_in);
    LB_CHECK(is_int8(op) == is_int8(first), kUnsupported, what, " on ", target.name,
             ": 8-bit and fp32 activations are two launches");
    is_mixed = is_mixed || op.type != first.type;
    n_tiles += vec_tiles(op.n_out);
  }
  LB_CHECK(!is_int8(first) || reinterpret_cast<uintptr_t>(first.x) % 16 == 0, kInvalid, what,
           ": x must be 16-byte aligned");

  const int n_threads = target.tune("matvec_threads");
  LB_CHECK(n_threads >= 32 && n_threads % 32 == 0, kInvalid, target.name,
           ": matvec_threads must be whole warps of 32, got ", n_threads);
  const int most_blocks = target.n_sms * target.tune("matvec_blocks_per_sm");
  const int n_blocks = std::max(std::min(most_blocks, n_tiles), group.n);
  const VecParts parts = vec_parts(first.n_in, is_int8(first));
  size_t shared_bytes = parts.stage_bytes;
  if (parts.n_parts > 1) {
    int most_sums = vec_kept_sums(n_tiles, n_blocks);
    for (int block = 0; is_mixed && block < n_blocks; ++block) {
      const VecShare share = vec_share(group, is_mixed, block, n_blocks);
      most_sums = std::max(most_sums, vec_kept_sums(vec_tiles(products[share.first].n_out), share.n_blocks));
    }
    shared_bytes += most_sums * sizeof(float);
  }
  const char* mixed = is_int8(first) ? "linear_vec_mixed_int8_kernel" : "linear_vec_mixed_f32_kernel";
  return checked({.kernel = is_mixed ? mixed : vec_kernel(first, what, target),
                  .grid = {static_cast<uint32_t>(n_blocks), static_cast<uint32_t>(first.rows), 1},
                  .block = {static_cast<uint32_t>(n_threads), 1, 1},
                  .shared_bytes = shared_bytes,
                  .overlap_previous = true},
                 target, what);
}

Launch choose_tile(const Linear& op, const Target& target) {
  const std::string what =
      cat("[linear_tile] ", op.rows, " rows x ", name(op.type), " [", op.n_out, ", ", op.n_in, "]");
  LB_CHECK(op.type == DType::kF16 || op.type == DType::kBF16, kUnsupported, what, " on ", target.name,
           ": only F16 and BF16 weights");
  LB_CHECK(op.rows >= 1 && op.n_in >= 1 && op.n_out >= 1, kInvalid, what, ": nothing to compute");
  return checked({.kernel = op.type == DType::kF16 ? "linear_tile_f16_kernel" : "linear_tile_bf16_kernel",
                  .grid = {static_cast<uint32_t>((op.n_out + kTileOuts - 1) / kTileOuts),
                           static_cast<uint32_t>((op.rows + kTileRows - 1) / kTileRows), 1},
                  .block = {kTileThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

size_t bytes_of(const Linear& op) {
  const size_t row_values = size_t(op.n_out) * (op.add ? 2 : 1) + size_t(op.n_in);
  return row_bytes(op.type, size_t(op.n_in)) * op.n_out + size_t(op.rows) * row_values * sizeof(float);
}

size_t bytes_of(const LinearGroup& group) {
  size_t bytes = 0;
  for (int i = 0; i < group.n; ++i) bytes += bytes_of(group.products[i]);
  return bytes - (group.n - 1) * size_t(group.products[0].rows) * group.products[0].n_in * sizeof(float);
}

}  // namespace lb::gpu
