// Products of fp8 and block-scaled operands: each warp multiplies one A by one B.
#include "io.h"

#include "narrow_matrix.h"

namespace lb::gpu {
namespace {

struct NarrowCase {
  uint8_t a[16][32], b[8][32];
  uint32_t scales_a[16], scales_b[8];
  float c[16][8];
};

// in: NarrowCase [blocks]; out: float [blocks, 16, 8]
template <class Multiply>
LB_DEVICE void multiply_case(const Io& p, Multiply&& multiply) {
  const NarrowCase& given = static_cast<const NarrowCase*>(p.in)[block_id()];
  float* out = static_cast<float*>(p.out) + block_id() * 16 * 8;
  auto rows = dynamic_shared<uint8_t>();
  constexpr int kStride = 48;
  for (int i = lane(); i < 24 * 8; i += 32)
    store(rows + i / 8 * kStride + i % 8 * 4, load<uint32_t>(&given.a[0][0] + i * 4));
  warp_barrier();
  ByteHalf a[2];
  BytesB b;
  load(a, rows, kStride);
  for (int i = 0; i < 2; ++i) b.r[i] = load<uint32_t>(rows + (16 + lane() / 4) * kStride + i * 16 + lane() % 4 * 4);
  float c[4];
  for_each_sum([&](int row, int column, int, int, int i) { c[i] = given.c[row][column]; });
  multiply(c, a, b, given.scales_a[lane() / 4 + lane() % 2 * 8], given.scales_b[lane() / 4]);
  for_each_sum([&](int row, int column, int, int, int i) { out[row * 8 + column] = c[i]; });
}

}  // namespace

LB_KERNEL(multiply_fp8_13_kernel, Io, 32, 1) {
  multiply_case(p, [](auto& c, auto& a, auto& b, uint32_t, uint32_t) { multiply_fp8<13>(c, a, b); });
}
LB_KERNEL(multiply_fp8_25_kernel, Io, 32, 1) {
  multiply_case(p, [](auto& c, auto& a, auto& b, uint32_t, uint32_t) { multiply_fp8<25>(c, a, b); });
}
LB_KERNEL(multiply_nvfp4_kernel, Io, 32, 1) {
  multiply_case(p,
                [](auto& c, auto& a, auto& b, uint32_t of_a, uint32_t of_b) { multiply_nvfp4(c, a, b, of_a, of_b); });
}
LB_KERNEL(multiply_mxfp4_kernel, Io, 32, 1) {
  multiply_case(p,
                [](auto& c, auto& a, auto& b, uint32_t of_a, uint32_t of_b) { multiply_mxfp4(c, a, b, of_a, of_b); });
}
LB_KERNEL(multiply_mxfp8_kernel, Io, 32, 1) {
  multiply_case(p,
                [](auto& c, auto& a, auto& b, uint32_t of_a, uint32_t of_b) { multiply_mxfp8(c, a, b, of_a, of_b); });
}

// in: float [n, 2]; out: uint8 [n]
LB_KERNEL(to_fp4_pair_kernel, Io, 256, 1) {
  const int i = block_id() * n_threads() + thread_id();
  const float* pair = static_cast<const float*>(p.in) + 2 * i;
  if (i < p.n) static_cast<uint8_t*>(p.out)[i] = uint8_t(to_fp4_pair(pair[0], pair[1]));
}

}  // namespace lb::gpu
