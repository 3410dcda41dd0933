// Every conversion and scalar function, element by element.
#include "io.h"

namespace lb::gpu {

template <class In, class Out, class Function>
LB_DEVICE void map(const Io& p, Function function) {
  const int i = block_id() * n_threads() + thread_id();
  if (i < p.n) static_cast<Out*>(p.out)[i] = function(static_cast<const In*>(p.in)[i]);
}

LB_KERNEL(f32_to_f16_kernel, Io, 256, 1) {
  map<float, f16>(p, [](float x) { return to_f16(x); });
}
LB_KERNEL(f32_to_bf16_kernel, Io, 256, 1) {
  map<float, bf16>(p, [](float x) { return to_bf16(x); });
}
LB_KERNEL(f32_to_fp8_kernel, Io, 256, 1) {
  map<float, fp8_e4m3>(p, [](float x) { return to_fp8(x); });
}
LB_KERNEL(f16_to_f32_kernel, Io, 256, 1) {
  map<f16, float>(p, [](f16 x) { return to_f32(x); });
}
LB_KERNEL(bf16_to_f32_kernel, Io, 256, 1) {
  map<bf16, float>(p, [](bf16 x) { return to_f32(x); });
}
LB_KERNEL(fp8_to_f32_kernel, Io, 256, 1) {
  map<fp8_e4m3, float>(p, [](fp8_e4m3 x) { return to_f32(x); });
}

LB_KERNEL(exp_kernel, Io, 256, 1) {
  map<float, float>(p, [](float x) { return exp_fast(x); });
}
LB_KERNEL(exp2_kernel, Io, 256, 1) {
  map<float, float>(p, [](float x) { return exp2_fast(x); });
}
LB_KERNEL(log_kernel, Io, 256, 1) {
  map<float, float>(p, [](float x) { return log_fast(x); });
}
LB_KERNEL(rsqrt_kernel, Io, 256, 1) {
  map<float, float>(p, [](float x) { return rsqrt_fast(x); });
}
LB_KERNEL(rcp_kernel, Io, 256, 1) {
  map<float, float>(p, [](float x) { return rcp_fast(x); });
}
LB_KERNEL(sqrt_kernel, Io, 256, 1) {
  map<float, float>(p, [](float x) { return sqrt(x); });
}
LB_KERNEL(round_even_kernel, Io, 256, 1) {
  map<float, float>(p, [](float x) { return round_even(x); });
}
LB_KERNEL(abs_kernel, Io, 256, 1) {
  map<float, float>(p, [](float x) { return abs(x); });
}

struct Triple {
  f16x2 a, b, c;
};
LB_KERNEL(fma2_kernel, Io, 256, 1) {
  map<Triple, f16x2>(p, [](Triple x) { return fma2(x.a, x.b, x.c); });
}
struct Ints {
  int a, b, c;
};
struct OfInts {
  int dot4, dot4_unsigned, max, min;
};
LB_KERNEL(dot4_kernel, Io, 256, 1) {
  map<Ints, OfInts>(p, [](Ints x) {
    return OfInts{dot4(x.a, x.b, x.c), dot4_unsigned(uint32_t(x.a), x.b, x.c), max(x.a, x.b), min(x.a, x.b)};
  });
}

struct Lookup {
  u32x2 table;
  uint32_t nibbles, low, high, unused;
};
LB_KERNEL(lookup8_kernel, Io, 256, 1) {
  map<Lookup, u32x4>(p, [](Lookup x) {
    const u32x2 bytes = lookup8(x.table, x.nibbles), others = lookup8_order(x.low, x.high);
    return u32x4{bytes[0], bytes[1], others[0], others[1]};
  });
}

}  // namespace lb::gpu
