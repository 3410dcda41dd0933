// Vector body of SwiGLU.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace lb::cpu {
namespace {

void swiglu(const SwiGlu& op, int begin, int end) {
  const long last = long(end) * op.dim;
  for (long i = long(begin) * op.dim; i < last; i += kLanes) {
    const int n = last - i < kLanes ? static_cast<int>(last - i) : kLanes;
    store(op.y + i, silu(load(op.gate + i, n)) * load(op.up + i, n), n);
  }
}

}  // namespace
}  // namespace lb::cpu
