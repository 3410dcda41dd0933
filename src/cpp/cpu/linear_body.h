// The four linear bodies of one instruction set; included once by each file that is compiled for one.
// embed_rows and quantize_q8 are here, the products in the headers below.
#pragma once

#include "cpu/kernels.h"
#include "cpu/linear_f32.h"
#include "quant/decode.h"
#if defined(__AVX512VNNI__)
#include "cpu/linear_q8_avx512.h"
#else
#include "cpu/linear_q8.h"
#endif

namespace lb::cpu {
namespace {

void embed_rows(const Embed& op, int begin, int end) {
  const long stride = quant::bytes_of(op.type, op.dim);
  for (int r = begin; r < end; ++r)
    quant::decode_row(op.type, static_cast<const char*>(op.table) + op.ids[r] * stride, op.y + long(r) * op.dim, op.dim);
}

// A block with an infinity or a NaN gets a NaN scale and q = 0, so every product with it is NaN.
void quantize_q8(const float* x, int n_in, int stride, int8_t* q, float* scale, int32_t* sum) {
  for (int b = 0; b < stride / 32; ++b, x += 32, q += 32) {
    if (32 * b >= n_in) {
      for (int i = 0; i < 32; ++i) q[i] = 0;
      scale[b] = 0;
      sum[b] = 0;
      continue;
    }
    uint32_t largest = 0;  // compared as integers, |x| keeps its order and NaN is the largest
    for (int i = 0; i < 32; ++i) {
      const uint32_t magnitude = quant::bits_of(x[i]) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
    scale[b] = quant::float_of(largest < 0x7f800000 ? largest : 0x7fc00000) / 127.0f;
    const bool is_usable = scale[b] > 0;
    const float divisor = is_usable ? scale[b] : 1.0f;
    int32_t total = 0;
    for (int i = 0; i < 32; ++i) {
      float v = is_usable ? __builtin_rintf(x[i] / divisor) : 0.0f;
      v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;  // a subnormal scale is too coarse to bound the quotient
      q[i] = int8_t(v);
      total += q[i];
    }
    sum[b] = total;
  }
}

}  // namespace
}  // namespace lb::cpu
