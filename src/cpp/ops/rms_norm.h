// Root-mean-square norms; all sums in fp32 or wider.
#pragma once

#include "ops/round_rows.h"

namespace lb {

// y[r,h,:] = x[r,h,:] / sqrt(mean(x[r,h,:]^2) + eps) * w
struct RmsNorm {
  const float* x;  // [rows, heads, dim], strides below
  const float* w;  // [dim]; for zero-centred checkpoints the loader has added 1
  float* y;        // [rows, heads, dim] contiguous; may be x when x is contiguous
  int rows, heads, dim;
  long row_stride;   // values between rows of x
  long head_stride;  // values between heads of x
  float eps;
  RoundedRows
      rounded{};  // [rows, heads * dim] y rounded as by RoundRows, in addition to y; devices only; null: not written
};

// y[r,h,:] = o[r,h,:] / sqrt(mean(o[r,h,:]^2) + eps) * w * silu(z[r,h,:])    the norm after Gated DeltaNet
struct GatedRmsNorm {
  const float* o;  // [rows, heads, dim]
  const float* z;  // [rows, heads, dim]
  const float* w;  // [dim]
  float* y;        // [rows, heads, dim]; may be o
  int rows, heads, dim;
  float eps;
  RoundedRows rounded{};  // as in RmsNorm
};

// y[r,:] = scale * (x[r,:] + z[r,:] / sqrt(mean(z[r,:]^2) + eps) * w)    the norm of a branch before it joins the
// residual
struct AddNorm {
  const float* x;  // [rows, dim]
  float* z;        // [rows, dim] in: the branch; out: undefined
  const float* w;  // [dim]
  float* y;        // [rows, dim]; may be x
  int rows, dim;
  float eps, scale;
};

}  // namespace lb
