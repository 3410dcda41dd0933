#include "gpu/experts/choose.h"

#include <algorithm>
#include <iterator>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/experts/instances.h"
#include "gpu/gemv/choose.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

struct ExpertKernel {
  DType type;
  int x_bits;
  const char* name;
};
constexpr ExpertKernel kExpertKernels[] = {
#define X(kernel, Type, kXBits, ...) {DType::k##Type, kXBits, #kernel},
    LB_EXPERT_KERNELS_PLAIN(X) LB_EXPERT_KERNELS_QUANTISED(X)
#undef X
};

constexpr int kMaxGridY = 65535;

}  // namespace

Launch choose(const RouteExperts& op, const Target& target) {
  const std::string what = cat("[route_experts] ", op.k, " of ", op.n_experts, " experts for ", op.rows, " rows");
  LB_CHECK(op.rows >= 1 && op.k >= 1 && op.k <= op.n_experts, kInvalid, what, ": nothing to choose");
  LB_CHECK(op.k <= kMaxChosen && op.n_experts <= kMaxExperts, kUnsupported, what, ": at most ", kMaxChosen, " of ",
           kMaxExperts);
  return checked({.kernel = "route_experts_kernel",
                  .grid = {uint32_t(ceil_div(op.rows, kRouteThreads / 32)), 1, 1},
                  .block = {kRouteThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

Launch choose(const CombineExperts& op, const Target& target) {
  const std::string what = cat("[combine_experts] [", op.rows, ", ", op.k, ", ", op.dim, "]");
  LB_CHECK(op.rows >= 1 && op.k >= 1 && op.dim >= 1, kInvalid, what, ": nothing to compute");
  const long blocks = ceil_div(long(op.rows) * op.dim, 4 * kCombineThreads);
  return checked({.kernel = "combine_experts_kernel",
                  .grid = {uint32_t(std::min<long>(blocks, 8L * target.n_sms)), 1, 1},
                  .block = {kCombineThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

int rounded_bits(const ExpertLinear& op) {
  return rounded_bits(LinearGroup{{{.type = op.type, .activations = op.activations}}, 1});
}

int x_rows(const ExpertLinear& op) { return op.x_per_row ? op.rows : op.rows * op.k; }

ExpertLaunch choose(const ExpertLinear& op, const RoundedRows& x, const Target& target) {
  const std::string what = cat("[expert_linear] ", name(op.type), " [", op.n_experts, ", ", op.expert_rows, ", ",
                               op.n_in, "], ", op.rows, " rows of ", op.k, " choices");
  LB_CHECK(op.rows >= 1 && op.k >= 1 && op.n_out >= 1 && op.first_row >= 0 && op.first_row + op.n_out <= op.expert_rows,
           kInvalid, what, ": nothing to compute, or rows outside an expert");
  const auto* kernel = std::ranges::find_if(kExpertKernels, [&](const ExpertKernel& entry) {
    return entry.type == op.type && entry.x_bits == rounded_bits(op);
  });
  LB_CHECK(kernel != std::end(kExpertKernels), kUnsupported, what, ": no kernel reads experts of ", name(op.type),
           " on a GPU. Use Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, IQ4_XS, MXFP4, NVFP4, F16 or BF16, or device = \"cpu\"");
  const quant::PlaneLayout layout = quant::checked_plane_layout(op.type, op.n_experts * op.expert_rows, op.n_in);
  const quant::PlaneFormat format = quant::plane_format(op.type);
  ExpertLaunch result = {};
  ExpertGemv& p = result.params;
  p.gemv.x = x;
  p.gemv.group.products[0] = {.x = op.x, .n_in = op.n_in};
  p.gemv.row_pieces = ceil_div(op.n_in, 16 * format.block_values / format.part_bytes[0]);
  p.gemv.matrices[0].w = static_cast<const uint8_t*>(op.w);
  for (int plane = 0; plane < layout.n_planes; ++plane) {
    p.gemv.row_bytes[plane] = int(layout.row_bytes[plane]);
    if (plane > 0) p.gemv.matrices[0].offset[plane - 1] = uint32_t(layout.offset[plane] / quant::kPlaneAlignment);
  }
  p.experts = op.experts;
  p.y = op.y;
  p.n_choices = op.rows * op.k;
  p.sharers = op.x_per_row ? op.k : 1;
  p.n_out = op.n_out;
  p.expert_rows = op.expert_rows;
  p.first_row = op.first_row;
  result.launch = checked(
      {.kernel = kernel->name,
       .grid = {uint32_t(ceil_div(op.n_out, kExpertGemvThreads / 32)), uint32_t(std::min(p.n_choices, kMaxGridY)), 1},
       .block = {kExpertGemvThreads, 1, 1},
       .overlap_previous = true},
      target, what);
  return result;
}

}  // namespace lb::gpu
