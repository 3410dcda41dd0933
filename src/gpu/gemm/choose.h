// Geometry of the matrix products with many rows of x, on matrix units: from 2 rows, the trees of speculation, to
// whole prompts.
#pragma once

#include <cstddef>
#include <optional>

#include "gpu/gemm/shape.h"
#include "gpu/gemm_skinny/choose.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

struct NarrowLaunch {
  Launch launch;
  NarrowRows params;
};
struct ExpandLaunch {
  Launch launch;
  ExpandWeights params;
};
// The tiles of one weight type, then the sums of those that several blocks have shares of. Before them, the weights
// expanded, where no kernel for many rows reads their type.
struct GemmLaunch {
  std::optional<ExpandLaunch> expand;
  Launch tiles, sum;
  bool has_sum;
  Gemm params;  // of both
};
// What makes up a group: x as 16-bit numbers, in the forms that its products read, then a product for each type, in
// tiles or of a few rows.
struct GemmLaunches {
  NarrowLaunch narrow[3];
  GemmLaunch products[kMaxProducts];
  SkinnyLaunch few[kMaxProducts];
  int n_narrow, n_products, n_skinny;
};
// Calls run(launch, params) for each launch, in the order they have to be started.
template <class Run>
void in_order(const GemmLaunches& batch, Run&& run) {
  for (int i = 0; i < batch.n_narrow; ++i) run(batch.narrow[i].launch, batch.narrow[i].params);
  for (int i = 0; i < batch.n_products; ++i) {
    const GemmLaunch& product = batch.products[i];
    if (product.expand) run(product.expand->launch, product.expand->params);
    run(product.tiles, product.params);
    if (product.has_sum) run(product.sum, product.params);
  }
  for (int i = 0; i < batch.n_skinny; ++i) run(batch.few[i].launch, batch.few[i].params);
}

// To how many bits the group wants its x rounded (round_rows), 8 or 16; 0 when none of its products reads that. Up to
// 64 rows it is what the mat-vec reads; more rows, but with 16-bit x, are multiplied as 16-bit numbers, as are expanded
// weights.
int gemm_rounded_bits(const LinearGroup& group, const Target& target);

// Where the scratch of a group begins, behind its rounded x.
size_t gemm_scratch_at(const Linear& first, int bits);
// Whether every product of the group has a kernel here; where not, the mat-vec takes row after row.
bool has_gemm(const LinearGroup& group, const Target& target);

// Weights lie in planes (quant/planes.h). `x` is what round_rows makes of the group's x, when gemm_rounded_bits says
// so; `scratch`, 256-byte aligned, has gemm_scratch_bytes of the same group, and is free again afterwards;
// `arrived` has kSkinnyArrivedBytes, zero at first, and nobody else's.
GemmLaunches choose_gemm(const LinearGroup& group, const RoundedRows& x, void* scratch, uint32_t* arrived,
                           const Target& target);
// What makes x of a group of few rows, [rows, n_in] of the type of its 16-bit weights; none where it has no kernel for
// them, or several types.
std::optional<NarrowLaunch> choose_skinny_x(const LinearGroup& group, void* y, const Target& target);
size_t gemm_scratch_bytes(const LinearGroup& group, const Target& target);

}  // namespace lb::gpu
