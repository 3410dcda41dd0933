// Copies between F32, F16 and BF16; one thread four values, the last ones one by one.
// Bound: bandwidth, the bytes of both types a value.
#include "dialect.h"

#include "ops/convert.h"

namespace lb::gpu {

LB_DEVICE float to(float x, float) { return x; }
LB_DEVICE f16 to(float x, f16) { return to_f16(x); }
LB_DEVICE bf16 to(float x, bf16) { return to_bf16(x); }

template <class From, class To>
LB_DEVICE void convert(const Convert& p) {
  const From* x = static_cast<const From*>(p.x);
  To* y = static_cast<To*>(p.y);
  const long first = long(block_id()) * n_threads() + thread_id(), step = long(n_blocks()) * n_threads();
  const bool is_wide = reinterpret_cast<uintptr_t>(x) % sizeof(Vec<From, 4>) == 0 &&
                       reinterpret_cast<uintptr_t>(y) % sizeof(Vec<To, 4>) == 0;
  const long n_wide = is_wide ? p.count / 4 : 0;
  for (long i = first; i < n_wide; i += step) {
    const auto v = load<Vec<From, 4>>(x + 4 * i);
    Vec<To, 4> out;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) out[j] = to(to_f32(v[j]), To{});
    store(y + 4 * i, out);
  }
  for (long i = 4 * n_wide + first; i < p.count; i += step) y[i] = to(to_f32(x[i]), To{});
}

template <class From>
LB_DEVICE void convert_from(const Convert& p) {
  if (p.to == DType::kF32)
    convert<From, float>(p);
  else if (p.to == DType::kF16)
    convert<From, f16>(p);
  else
    convert<From, bf16>(p);
}

LB_KERNEL(convert_kernel, Convert, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  if (p.from == DType::kF32)
    convert_from<float>(p);
  else if (p.from == DType::kF16)
    convert_from<f16>(p);
  else
    convert_from<bf16>(p);
}

}  // namespace lb::gpu
