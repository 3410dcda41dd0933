// A warp's int8 products with exact int32 accumulators: C = A B^T + start, A of 16 rows, B of kByteRows rows. A lane
// holds the same values as on sm_80 (src/cuda/byte_matrix.h).
#pragma once

#include <cstring>
#include <type_traits>

namespace lb::gpu {

inline constexpr int kByteRows = 8;

struct ByteHalf {  // 16 rows x 16 bytes of A
  uint32_t r[2];
};
struct BytesB {  // kByteRows rows x 32 bytes
  uint32_t r[2];
};
struct ByteSums {
  int v[4];
};

// Per-row tables in the form that a lane needs. SumRowsA and SumRowsB: entries for the rows of its sums. OperandRows:
// entries for the rows of A in its operand registers.
template <class T>
struct SumRowsA {
  T v[2];
};
struct SumRowsB {
  float v[2];
};
template <class T>
struct OperandRows {
  T v[2];
};
template <class T>
void load(SumRowsA<T>& rows, const T* from) {
  for (int i = 0; i < 2; ++i) rows.v[i] = load<T>(from + lane() / 4 + 8 * i);
}
inline void load(SumRowsB& rows, const float* from) {
  const f32x2 v = load<f32x2>(from + lane() % 4 * 2);
  for (int i = 0; i < 2; ++i) rows.v[i] = v[i];
}
template <class T>
void load(OperandRows<T>& rows, const void* from, int stride) {
  for (int i = 0; i < 2; ++i) rows.v[i] = load<T>(static_cast<const char*>(from) + (lane() / 4 + 8 * i) * stride);
}
constexpr int operand_row(int i) { return i; }       // index into OperandRows for r[i] of a ByteHalf
inline int operand_word(int) { return lane() % 4; }  // index of r[i]'s four bytes in the row's 16
// Calls visit(row of A, row of B, index into SumRowsA, index into SumRowsB, index of the sum) for each sum of the lane.
template <class Visit>
void for_each_sum(Visit&& visit) {
  for (int i = 0; i < 4; ++i) visit(lane() / 4 + i / 2 * 8, lane() % 4 * 2 + i % 2, i / 2, i % 2, i);
}

namespace sim {

inline const char* shared_rows(const void* from, int stride, const char* word) {
  if (uintptr_t(from) % 16 != 0 || stride % 16 != 0 || !current->block->shared.contains(from)) {
    machine().fail("%s: rows must be shared memory and start 16-byte aligned, got %p and a stride of %d bytes", word,
                   from, stride);
  }
  return static_cast<const char*>(from);
}

}  // namespace sim

// Loads 16 rows of 32 bytes from shared memory. Rows start 16-byte aligned; stride is in bytes.
inline void load(ByteHalf (&h)[2], const void* from, int stride) {
  const char* rows = sim::shared_rows(from, stride, "load of a ByteHalf");
  for (int i = 0; i < 4; ++i)
    h[i / 2].r[i % 2] = load<uint32_t>(rows + (lane() / 4 + i % 2 * 8) * stride + i / 2 * 16 + lane() % 4 * 4);
}
// Loads 16 rows of 16 bytes.
inline void load(ByteHalf& h, const void* from, int stride) {
  const char* rows = sim::shared_rows(from, stride, "load of a ByteHalf");
  for (int i = 0; i < 2; ++i) h.r[i] = load<uint32_t>(rows + (lane() / 4 + 8 * i) * stride + lane() % 4 * 4);
}
// Loads kByteRows rows of 64 bytes.
inline void load(BytesB (&b)[2], const void* from, int stride) {
  const char* rows = sim::shared_rows(from, stride, "load of BytesB");
  for (int i = 0; i < 4; ++i) b[i / 2].r[i % 2] = load<uint32_t>(rows + lane() / 4 * stride + i * 16 + lane() % 4 * 4);
}
namespace sim {

// The product of two rows of n x 16 bytes. With vectors of words, whose bytes shifts extract, because gcc -O1 makes no
// vectors, and converts vectors of bytes one by one.
inline int dot(const void* x, const void* y, int n) {
  using Words [[gnu::vector_size(16)]] = int32_t;
  Words sums = {};
  for (int i = 0; i < n; ++i) {
    Words a, b;
    std::memcpy(&a, static_cast<const char*>(x) + 16 * i, sizeof a);
    std::memcpy(&b, static_cast<const char*>(y) + 16 * i, sizeof b);
    sums += (a >> 24) * (b >> 24) + (a << 8 >> 24) * (b << 8 >> 24) + (a << 16 >> 24) * (b << 16 >> 24) +
            (a << 24 >> 24) * (b << 24 >> 24);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Lanes copy their operand words to the warp's operand buffers, in rows of up to 8 words. Then each lane computes its
// sums.
inline ByteSums multiply_bytes(const uint32_t* a, const uint32_t* b, int n_halves, int start, const CallSite& site) {
  Warp& warp = *current->warp;
  float* all_a = warp.a[warp.parity];
  float* all_b = warp.b[warp.parity];
  for (int h = 0; h < n_halves; ++h) {
    const int k = 4 * h + lane() % 4, row = lane() / 4;
    std::memcpy(all_a + row * 8 + k, a + 2 * h, 4);
    std::memcpy(all_a + (row + 8) * 8 + k, a + 2 * h + 1, 4);
    std::memcpy(all_b + row * 8 + k, b + h, 4);
  }
  exchange(0, site).of(31, site);  // a whole warp
  ByteSums c;
  for_each_sum([&](int row_a, int row_b, int, int, int i) {
    c.v[i] = start + dot(all_a + row_a * 8, all_b + row_b * 8, n_halves);
  });
  return c;
}

}  // namespace sim

// Product over 32 bytes of k.
inline ByteSums multiply(const ByteHalf& a0, const ByteHalf& a1, const BytesB& b, int start,
                         sim::Location where = sim::Location::current()) {
  const uint32_t a[4] = {a0.r[0], a0.r[1], a1.r[0], a1.r[1]};
  return sim::multiply_bytes(a, b.r, 2, start, {"multiply", where});
}
// Product over 16 bytes of k; `half` selects the half of b.
inline ByteSums multiply_half(const ByteHalf& a, const BytesB& b, int half, int start,
                              sim::Location where = sim::Location::current()) {
  return sim::multiply_bytes(a.r, b.r + half, 1, start, {"multiply_half", where});
}

// expand() converts 16 x 16 bytes to a 16-bit fragment: number * scale - offset, with each row's scale and offset,
// rounded once. numbers(word) are the numbers of four bytes. It permutes k: the other operand must have value k (of 16)
// at expanded_index(k).
constexpr int expanded_index(int k) { return k / 4 * 2 + k % 4 / 2 * 8 + k % 2; }

template <class T, class Numbers>
void expand(FragmentA<T>& a, const ByteHalf& h, const OperandRows<f32x2>& scale, Numbers&& numbers) {
  const f32x4 of_rows[2] = {numbers(h.r[0]), numbers(h.r[1])};
  for (int i = 0; i < 8; ++i) {
    const int row = i / 2 % 2, byte = i / 4 * 2 + i % 2;
    const float v = fma(of_rows[row][byte], scale.v[row][0], -scale.v[row][1]);
    if constexpr (std::is_same_v<T, bf16>)
      a.v[i] = to_bf16(v);
    else
      a.v[i] = to_f16(v);
  }
}

// expand_codes() does the same for bytes below 128. Its fields come from code_field(scale, offset) of the row.
inline f32x2 code_field(float scale, float offset) { return {scale, offset}; }

template <class T>
void expand_codes(FragmentA<T>& a, const ByteHalf& h, const OperandRows<f32x2>& field) {
  for (const uint32_t word : h.r)
    if (word & 0x80808080u) sim::machine().fail("expand_codes takes bytes below 128, got %08x", word);
  expand(a, h, field, signed_numbers);
}

}  // namespace lb::gpu
