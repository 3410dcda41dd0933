// What a chain of two products needs: operands in shared memory, also stored the other way around, the rows of a sum,
// and a sum as the operand of the next product. Layout of the registers: matrix.h.
#pragma once

#include <stdint.h>

namespace lb::gpu {

// As load(), from shared memory.
template <class T>
LB_DEVICE void load_shared(FragmentA<T>& a, const T* from, int stride) {
  __builtin_amdgcn_sched_barrier(0);
  load(a, from, stride);
}
template <class T>
LB_DEVICE void load_shared(FragmentB<T>& b, const T* from, int stride) {
  load(b, from, stride);
}
// B from its transpose in shared memory: [16 k, 16 n], n contiguous. One value at a time: no load turns rows here.
template <class T>
LB_DEVICE void load_shared_transposed(FragmentB<T>& b, const T* from, int stride) {
#ifdef __GFX12__
  from += lane() / 16 * 8 * stride;
#endif
  from += lane() % 16;
  __builtin_amdgcn_sched_barrier(0);  // or the scheduler has the operands of a whole unrolled loop in registers at once
  LB_UNROLL
  for (int i = 0; i < kLaneValues / 8; ++i) {
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const T* pair = from + (8 * i + 2 * j) * stride;
      b.r[i][j] = uint32_t(pair[0].bits) | uint32_t(pair[stride].bits) << 16;
    }
  }
}

inline constexpr bool kSumIsOperand = false;  // values of C lie in other lanes than A's
inline constexpr int kLaneRows = 8;           // rows of C that a lane has values of
#ifdef __GFX12__
LB_DEVICE int lane_row(int i) { return i + lane() / 16 * 8; }
#else
LB_DEVICE int lane_row(int i) { return 2 * i + lane() / 16; }
#endif

// visit(i, column, value): in the i-th of the lane's rows.
template <class Visit>
LB_DEVICE void for_each_row(FragmentC& c, Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) {
    float value = c.v[i];
    visit(i, lane() % 16, value);
    c.v[i] = value;
  }
}

// Over the lanes that have values of the same rows.
LB_DEVICE float row_max(float v) {
  v = max(v, shuffle_xor(v, 8));
  v = max(v, shuffle_xor(v, 4));
  v = max(v, shuffle_xor(v, 2));
  return max(v, shuffle_xor(v, 1));
}
LB_DEVICE float row_sum(float v) {
  v += shuffle_xor(v, 8);
  v += shuffle_xor(v, 4);
  v += shuffle_xor(v, 2);
  return v + shuffle_xor(v, 1);
}

LB_DEVICE f16 narrow(float x, f16) { return to_f16(x); }
// Without to_bf16's branch for NaN, which costs registers by the hundred in an unrolled loop; a NaN that arithmetic
// makes has no payload to overflow.
LB_DEVICE bf16 narrow(float x, bf16) {
  const uint32_t bits = quant::bits_of(x);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// C, rounded, by way of the warp's own scratch [16, 24] in shared memory.
template <class T>
LB_DEVICE void to_operand(FragmentA<T>& a, FragmentC& c, T* scratch) {
  __builtin_amdgcn_sched_barrier(0);
  warp_barrier();  // what read the scratch before is done
  for_each(c, [&](int row, int column, float& value) { scratch[row * 24 + column] = narrow(value, T{}); });
  warp_barrier();
  load(a, scratch, 24);
}

// C as two numbers each, high + low, into shared memory.
template <class T>
LB_DEVICE void store_parts(FragmentC& c, T* high, T* low, int stride) {
  for_each(c, [&](int row, int column, float& x) {
    const T rounded = narrow(x, T{});
    high[row * stride + column] = rounded;
    low[row * stride + column] = narrow(x - to_f32(rounded), T{});
  });
}

}  // namespace lb::gpu
