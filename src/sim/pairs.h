// Products of 16-bit numbers with a permuted inner dimension. A lane holds the same values as on a chip
// (src/cuda/pairs.h).
#pragma once

namespace lb::gpu {

struct PairsA {
  uint32_t r[4];
};

template <class T>
void multiply_pairs_of(float (&c)[4], const PairsA& a, uint32_t b0, uint32_t b1, sim::Location where) {
  sim::Warp& warp = *sim::current->warp;
  float* all_a = warp.a[warp.parity];  // [16, 16]
  float* all_b = warp.b[warp.parity];  // [8, 16]
  const auto put = [](float* to, uint32_t pair) {
    to[0] = to_f32(T{uint16_t(pair)});
    to[1] = to_f32(T{uint16_t(pair >> 16)});
  };
  const int row = lane() / 4, k = lane() % 4 * 4;
  for (int i = 0; i < 4; ++i) put(all_a + (row + i % 2 * 8) * 16 + k + i / 2 * 2, a.r[i]);
  put(all_b + row * 16 + k, b0);
  put(all_b + row * 16 + k + 2, b1);
  const sim::CallSite site{"multiply_pairs", where};
  sim::exchange(0, site).of(31, site);  // a whole warp
  for_each_sum([&](int of_a, int of_b, int, int, int n) {
    c[n] = sim::add_products(c[n], all_a + of_a * 16, all_b + of_b * 16);
  });
}

inline void multiply_pairs(float (&c)[4], const PairsA& a, uint32_t b0, uint32_t b1,
                           sim::Location where = sim::Location::current()) {
  multiply_pairs_of<f16>(c, a, b0, b1, where);
}
inline void multiply_bf16_pairs(float (&c)[4], const PairsA& a, uint32_t b0, uint32_t b1,
                                sim::Location where = sim::Location::current()) {
  multiply_pairs_of<bf16>(c, a, b0, b1, where);
}

inline uint32_t and_xor(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) ^ bits; }

inline f16x2 add2(f16x2 a, f16x2 b) { return fma2(a, f16x2{{0x3c00}, {0x3c00}}, b); }

// Sets register i of an operand of matrix.h.
inline void set_pair(FragmentA<f16>& a, int i, f16x2 pair) {
  a.v[2 * i] = pair.lo;
  a.v[2 * i + 1] = pair.hi;
}

inline uint32_t transpose_pairs(uint32_t pair, sim::Location where = sim::Location::current()) {
  const sim::CallSite site{"transpose_pairs", where};
  const sim::Exchange all = sim::exchange(sim::carry(pair), site);
  const int row = lane() / 4, first = lane() % 4 * 2;
  const auto value = [&](int from_row) {
    return sim::uncarry<uint32_t>(all.of(4 * from_row + row / 2, site)) >> 16 * (row % 2) & 0xffff;
  };
  return value(first) | value(first + 1) << 16;
}

}  // namespace lb::gpu
