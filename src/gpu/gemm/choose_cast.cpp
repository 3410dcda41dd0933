#include "gpu/gemm/choose_cast.h"

#include <algorithm>
#include <span>

#include "gpu/ceil_div.h"
#include "gpu/gemm/instances.h"
#include "ops/operands.h"

namespace lb::gpu {
namespace {

enum class Form { ToF16, ToF8, ToPlain };
enum class Of { RmsNorm, GatedRmsNorm, SwiGlu };
struct CastKernel {
  Of of;
  Form form;
  const char* name;
};
constexpr CastKernel kKernels[] = {
#define X(kernel, Op, To) {Of::Op, Form::To, #kernel},
    LB_CAST_RESULTS(X)
#undef X
};

Form form_of(const CastRows& cast) {
  if (cast.type == DType::kF8_E4M3) return Form::ToF8;
  return cast.is_permuted ? Form::ToF16 : Form::ToPlain;  // of tiled x, only F16 with scales is permuted
}

// op: the op's inputs; its result has op.cast.n_in values per row.
std::optional<CastResultLaunch> launch_of(Of of, CastResult op, const GemmLaunches& gemms, const Target& target) {
  if (gemms.n_narrow != 1 || gemms.n_skinny > 0) return {};
  const CastRows& cast = gemms.narrow[0].params;
  const std::span parts(gemms.gemms, size_t(gemms.n_gemms));
  const auto reads_cast = [&](const GemmLaunch& gemm) { return gemm.params.x16 == cast.y; };
  if (!cast.is_tiled || cast.type == DType::kNVFP4 || cast.n_in % kCastValues != 0 || op.row_stride % 4 != 0 ||
      tiled_values(cast.n_in) > kCastPasses * kCastThreads * kCastValues || !std::ranges::all_of(parts, reads_cast))
    return {};
  const auto kernel =
      std::ranges::find_if(kKernels, [&](const CastKernel& one) { return one.of == of && one.form == form_of(cast); });
  if (!target.has(kernel->name)) return {};
  const float* x = op.cast.x;
  op.cast = cast;
  op.cast.x = x;
  return CastResultLaunch{.launch = checked({.kernel = kernel->name,
                                             .grid = {uint32_t(cast.rows), 1, 1},
                                             .block = {uint32_t(cast_row_threads(cast.n_in)), 1, 1},
                                             .overlap_previous = true},
                                            target, "[cast_result]"),
                          .params = op};
}

}  // namespace

std::optional<CastResultLaunch> choose_cast(const RmsNorm& op, const GemmLaunches& gemms, const Target& target) {
  if (op.heads != 1 || !operands_are_aligned(op)) return {};
  return launch_of(Of::RmsNorm,
                   {.cast = {.x = op.x}, .factor = nullptr, .w = op.w, .row_stride = op.row_stride, .eps = op.eps},
                   gemms, target);
}

std::optional<CastResultLaunch> choose_cast(const GatedRmsNorm& op, const GemmLaunches& gemms, const Target& target) {
  if (op.dim != kCastHead || !operands_are_aligned(op)) return {};
  const long row_stride = long(op.heads) * op.dim;
  return launch_of(Of::GatedRmsNorm,
                   {.cast = {.x = op.o}, .factor = op.z, .w = op.w, .row_stride = row_stride, .eps = op.eps}, gemms,
                   target);
}

std::optional<CastResultLaunch> choose_cast(const SwiGlu& op, const GemmLaunches& gemms, const Target& target) {
  if (!operands_are_aligned(op)) return {};
  return launch_of(Of::SwiGlu, {.cast = {.x = op.gate}, .factor = op.up, .w = nullptr, .row_stride = op.dim, .eps = 0},
                   gemms, target);
}

}  // namespace lb::gpu
