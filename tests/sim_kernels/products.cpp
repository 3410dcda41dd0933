// Correct kernels with the words of matrix products. A second library has them with the layouts of sm_70.
#include "io.h"

namespace lb::gpu {

// C [16, 16] = A [16, n] B [16, n]^T; A goes through shared memory with padded rows, B is loaded from global memory.
template <class T>
LB_DEVICE void matrix(const Io& p) {
  if constexpr (kHasBf16Matrix || __is_same(T, f16)) {
    LB_SHARED(T, tile, 16 * 24);
    const T* a = static_cast<const T*>(p.in);
    const T* b = a + 16 * p.n;
    FragmentA<T> fa;
    FragmentB<T> fb;
    FragmentC fc;
    fill(fc, 0);
    for (int k = 0; k < p.n; k += 16) {
      warp_barrier();
      store(&tile[lane() / 2 * 24 + lane() % 2 * 8], load_stream<u32x4>(a + lane() / 2 * p.n + k + lane() % 2 * 8));
      warp_barrier();
      load(fa, tile + 0, 24);
      load(fb, b + k, p.n);
      multiply(fc, fa, fb);
    }
    float* out = static_cast<float*>(p.out);
    for_each(fc, [&](int row, int col, float& v) { out[16 * row + col] += v; });
  }
}
LB_KERNEL(matrix_f16_kernel, Io, 32, 1) { matrix<f16>(p); }
LB_KERNEL(matrix_bf16_kernel, Io, 32, 1) { matrix<bf16>(p); }

// in: f16 A, B and M [16, 16], M stored [k, n]. out: float, C = f16(A B^T) M [16, 16], the maximum and the sum of each
// row of A B^T [2, 16]
LB_KERNEL(chain_kernel, Io, 32, 1) {
  LB_SHARED(f16, tiles, 3 * 16 * 24);
  LB_SHARED(f16, scratch, 16 * 24);
  for (int i = lane(); i < 3 * 16 * 2; i += 32)
    store(&tiles[i / 2 * 24 + i % 2 * 8], load_stream<u32x4>(static_cast<const f16*>(p.in) + i * 8));
  warp_barrier();
  float* out = static_cast<float*>(p.out);
  FragmentA<f16> a;
  FragmentB<f16> b;
  FragmentC first, second;
  fill(first, 0);
  fill(second, 0);
  load_shared(a, tiles + 0, 24);
  load_shared(b, tiles + 16 * 24, 24);
  multiply(first, a, b);
  float top[kLaneRows], sum[kLaneRows];
  for (int i = 0; i < kLaneRows; ++i) top[i] = -1e30f, sum[i] = 0;
  for_each_row(first, [&](int i, int, float& value) {
    top[i] = max(top[i], value);
    sum[i] += value;
  });
  for (int i = 0; i < kLaneRows; ++i) {
    out[256 + lane_row(i)] = row_max(top[i]);
    out[272 + lane_row(i)] = row_sum(sum[i]);
  }
  to_operand(a, first, static_cast<f16*>(scratch));
  load_shared_transposed(b, tiles + 2 * 16 * 24, 24);
  multiply(second, a, b);
  for_each(second, [&](int row, int col, float& v) { out[16 * row + col] = v; });
}

// in: int8 A [16, 64] and B [8, 64]; out: int [2, 16, 8], the products of all bytes and of the first 16, both plus n
LB_KERNEL(matrix_bytes_kernel, Io, 32, 1) {
  LB_SHARED(u32x4, rows, 24 * 5);
  const u32x4* in = static_cast<const u32x4*>(p.in);
  for (int i = lane(); i < 24 * 4; i += 32) rows[i / 4 * 5 + i % 4] = in[i];
  warp_barrier();
  ByteHalf a[4], again;
  BytesB b[2];
  const char* from = reinterpret_cast<const char*>(&rows[0]);
  for (int i = 0; i < 2; ++i) {
    ByteHalf two[2];
    load(two, from + 32 * i, 80);
    a[2 * i] = two[0];
    a[2 * i + 1] = two[1];
  }
  load(again, from, 80);
  load(b, from + 16 * 80, 80);
  const ByteSums first = multiply(a[0], a[1], b[0], p.n), second = multiply(a[2], a[3], b[1], 0);
  const ByteSums half = multiply_half(again, b[0], 0, p.n);
  int* out = static_cast<int*>(p.out);
  for_each_sum([&](int row, int column, int, int, int i) {
    out[row * 8 + column] = first.v[i] + second.v[i];
    out[128 + row * 8 + column] = half.v[i];
  });
}

// A [16, 16] B [16, 16]^T of expanded bytes. in: int8 A [16, 16], fields of each row f32x2 [16], f16 B [16, 16]; out:
// float [16, 16]
LB_KERNEL(expand_kernel, Io, 32, 1) {
  LB_SHARED(u32x4, rows, 16);
  LB_SHARED(f32x2, fields, 16);
  LB_SHARED(f16, tile, 16 * 24);
  const char* in = static_cast<const char*>(p.in);
  if (lane() < 16) {
    rows[lane()] = load_stream<u32x4>(in + 16 * lane());
    fields[lane()] = load_stream<f32x2>(in + 256 + 8 * lane());
    for (int k = 0; k < 16; ++k)
      tile[24 * lane() + expanded_index(k)] = load_stream<f16>(in + 384 + 32 * lane() + 2 * k);
  }
  warp_barrier();
  ByteHalf bytes;
  OperandRows<f32x2> of_rows;
  FragmentA<f16> a;
  FragmentB<f16> b;
  FragmentC c;
  fill(c, 0);
  load(bytes, &rows[0], 16);
  load(of_rows, &fields[0], 8);
  expand(a, bytes, of_rows, signed_numbers);
  load_shared(b, tile + 0, 24);
  multiply(c, a, b);
  for_each(c, [&](int row, int col, float& v) { static_cast<float*>(p.out)[16 * row + col] = v; });
}

}  // namespace lb::gpu
