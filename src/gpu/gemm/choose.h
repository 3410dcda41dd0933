// GEMM, from 2 rows of x (a speculation's tree) to a whole prompt: which launches multiply a group.
#pragma once

#include <cstddef>
#include <optional>

#include "gpu/gemm/shape.h"
#include "gpu/gemm_skinny/choose.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

// Threads of a block that casts a row of n_in values.
int cast_row_threads(int n_in);

struct NarrowLaunch {
  Launch launch;
  CastRows params;
};
struct ExpandLaunch {
  Launch launch;
  ExpandWeights params;
};
// Launches for the matrices of one weight type: expansion of the weights, if no GEMM reads their type; then the tiles;
// then the sums of tiles that several blocks share.
struct GemmLaunch {
  std::optional<ExpandLaunch> expand;
  Launch tiles, sum;
  bool has_sum;
  Gemm params;  // parameters of both the tiles and the sum
};
// A group's launches: x as 16-bit or fp8 numbers, in each form that the matrices read; then one GEMM or skinny GEMM per
// weight type.
struct GemmLaunches {
  NarrowLaunch narrow[4];
  GemmLaunch gemms[kMaxProducts];
  SkinnyLaunch skinny[kMaxProducts];
  int n_narrow, n_gemms, n_skinny;
};
// Calls run(launch, params) for each launch, in launch order.
template <class Run>
void for_each_launch(const GemmLaunches& launches, Run&& run) {
  for (int i = 0; i < launches.n_narrow; ++i) run(launches.narrow[i].launch, launches.narrow[i].params);
  for (int i = 0; i < launches.n_gemms; ++i) {
    const GemmLaunch& gemm = launches.gemms[i];
    if (gemm.expand) run(gemm.expand->launch, gemm.expand->params);
    run(gemm.tiles, gemm.params);
    if (gemm.has_sum) run(gemm.sum, gemm.params);
  }
  for (int i = 0; i < launches.n_skinny; ++i) run(launches.skinny[i].launch, launches.skinny[i].params);
}

// Bits to which the group needs its x rounded (round_rows): 8 or 16; 0 if no matrix reads rounded x. Up to 64 rows, x
// is rounded as for the GEMV. Beyond 64 rows, unless activations are fp32, and for expanded weights, GEMMs multiply
// 16-bit numbers.
int gemm_rounded_bits(const LinearGroup& group, const Target& target);

// Whether every matrix of the group has a kernel here. If not, the GEMV computes row by row.
bool has_gemm(const LinearGroup& group, const Target& target);

// The matrices of a group that skinny GEMM multiplies, and the others.
struct SkinnyParts {
  LinearGroup skinny, others;
};
SkinnyParts split_skinny(const LinearGroup& group, const Target& target);

// Weights are in planes (quant/planes.h). `x` is the output of round_rows for the group's x; unused if
// gemm_rounded_bits() is 0. `scratch` is 256-byte aligned, has gemm_scratch_bytes() and is free again afterwards.
// `arrived` has kSkinnyArrivedBytes, zero before the first launch; only skinny GEMMs write it.
GemmLaunches choose_gemm(const LinearGroup& group, const RoundedRows& x, void* scratch, uint32_t* arrived,
                         const Target& target);
size_t gemm_scratch_bytes(const LinearGroup& group, const Target& target);
// The GEMM that computes y = silu(gate) * up, in place of `gemms` of gate and up, which it has the x of. Returns
// nullopt if no kernel does, or if separate launches are expected to be faster.
std::optional<GemmLaunch> choose_gated(const GemmLaunches& gemms, float* y, const Target& target);
// Offset of a group's scratch in a buffer that starts with its x, rounded to `bits` bits.
size_t gemm_scratch_at(const Linear& first, int bits);

// The type to which x of F16 or BF16 weights is cast for gemm.h, and the launch that casts it: y is [rows,
// x16_values(n_in)] of the launch's type.
DType cast_type(DType weights, const Target& target);
NarrowLaunch choose_cast_rows(const Linear& op, void* y, const Target& target);

// The launch that converts x of a group of F16 or BF16 weights for skinny GEMM: y is [rows, n_in] of the weights' type.
// Returns nullopt if the group has several types or no skinny kernel.
std::optional<NarrowLaunch> choose_skinny_x(const LinearGroup& group, void* y, const Target& target);

}  // namespace lb::gpu
