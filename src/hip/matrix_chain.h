// Primitives for two chained products, as in attention: operands from shared memory, also transposed; row reductions of
// an accumulator; an accumulator as the operand of the next product. Register layout: matrix.h.
#pragma once

#include <stdint.h>

namespace lb::gpu {

// Same as load(), from shared memory.
template <class T>
LB_DEVICE void load_shared(FragmentA<T>& a, const T* from, int stride) {
  __builtin_amdgcn_sched_barrier(0);
  load(a, from, stride);
}
template <class T>
LB_DEVICE void load_shared(FragmentB<T>& b, const T* from, int stride) {
  load(b, from, stride);
}
// Loads B from its transpose [16 k, 16 n] in shared memory, n contiguous. Uses 16-bit loads, because there is no
// transposing load.
template <class T>
LB_DEVICE void load_shared_transposed(FragmentB<T>& b, const T* from, int stride) {
#ifdef __GFX12__
  from += lane() / 16 * 8 * stride;
#endif
  from += lane() % 16;
  __builtin_amdgcn_sched_barrier(0);  // otherwise the scheduler hoists the operand loads of a whole unrolled loop
  LB_UNROLL
  for (int i = 0; i < kLaneValues / 8; ++i) {
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const T* pair = from + (8 * i + 2 * j) * stride;
      b.r[i][j] = uint32_t(pair[0].bits) | uint32_t(pair[stride].bits) << 16;
    }
  }
}

inline constexpr bool kSumIsOperand = false;  // a lane's values of C are not its values of A
inline constexpr int kLaneRows = 8;           // rows of C in which a lane has values
#ifdef __GFX12__
LB_DEVICE int lane_row(int i) { return i + lane() / 16 * 8; }
#else
LB_DEVICE int lane_row(int i) { return 2 * i + lane() / 16; }
#endif

// Calls visit(i, column, value) for each value of the lane; i counts the lane's rows.
template <class Visit>
LB_DEVICE void for_each_row(FragmentC& c, Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) {
    float value = c.v[i];
    visit(i, lane() % 16, value);
    c.v[i] = value;
  }
}

// Reductions over the lanes that share a row.
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
// Omits to_bf16's branch for NaN, which costs hundreds of registers in an unrolled loop. Rounding cannot overflow the
// payload of a NaN that arithmetic produced.
LB_DEVICE bf16 narrow(float x, bf16) {
  const uint32_t bits = quant::bits_of(x);
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// Rounds C to operand A of the next product, through scratch [16, 24] in shared memory, private to the warp.
template <class T>
LB_DEVICE void to_operand(FragmentA<T>& a, FragmentC& c, T* scratch) {
  __builtin_amdgcn_sched_barrier(0);
  warp_barrier();  // earlier reads of the scratch are done
  for_each(c, [&](int row, int column, float& value) { scratch[row * 24 + column] = narrow(value, T{}); });
  warp_barrier();
  load(a, scratch, 24);
}

// Splits each value of C into high + low, two 16-bit numbers, and stores both in shared memory.
template <class T>
LB_DEVICE void store_parts(FragmentC& c, T* high, T* low, int stride) {
  for_each(c, [&](int row, int column, float& x) {
    const T rounded = narrow(x, T{});
    high[row * stride + column] = rounded;
    low[row * stride + column] = narrow(x - to_f32(rounded), T{});
  });
}

}  // namespace lb::gpu
