// A warp's 16x16x16 products C += A B^T with fp32 accumulators. A lane holds the same values as on sm_80
// (src/cuda/matrix.h), so a kernel cannot read more of C than on a chip. Lanes exchange operands through the warp's
// operand buffers.
#pragma once

#include <type_traits>

namespace lb::gpu {

inline constexpr bool kHasBf16Matrix = true;

// With g = lane / 4, t = lane % 4, value i = 4q + 2r + j of A is row g + 8r, k = 8q + 2t + j; in B, r and q are
// swapped.
template <class T>
struct FragmentA {
  T v[8];
};
template <class T>
struct FragmentB {
  T v[8];
};
struct FragmentC {
  float v[8];
};

inline void fill(FragmentC& c, float value) {
  for (float& v : c.v) v = value;
}

namespace sim {

// sum + a[0] * b[0] + ... + a[15] * b[15], in this order. Keeps the sum in a register.
inline float add_products(float sum, const float* a, const float* b) {
  for (int k = 0; k < 16; ++k) sum += a[k] * b[k];
  return sum;
}

inline int fragment_row(int i) { return lane() / 4 + i / 2 % 2 * 8; }
inline int fragment_k(int i) { return i / 4 * 8 + lane() % 4 * 2 + i % 2; }

template <int kRows = 16, class T>  // rows from kRows on become zero
void load_rows(T (&v)[8], const T* from, int stride, const char* word) {
  static_assert(std::is_same_v<T, f16> || std::is_same_v<T, bf16>);
  if (uintptr_t(from) % 16 != 0 || stride % 8 != 0) {
    machine().fail("%s: rows must start 16-byte aligned, got %p and a stride of %d values", word, (const void*)from,
                   stride);
  }
  for (int i = 0; i < 8; ++i) {
    v[i] = {};
    if (fragment_row(i) >= kRows) continue;
    const T* p = from + fragment_row(i) * stride + fragment_k(i);
    check_access(p, sizeof *p, Access::kRead, word);
    v[i] = *p;
  }
}

}  // namespace sim

template <class T>
void load(FragmentA<T>& a, const std::type_identity_t<T>* from, int stride) {
  sim::load_rows(a.v, from, stride, "load of a FragmentA");
}
template <class T>
void load(FragmentB<T>& b, const std::type_identity_t<T>* from, int stride) {
  sim::load_rows(b.v, from, stride, "load of a FragmentB");
}

template <class T>
void multiply(FragmentC& c, const FragmentA<T>& a, const FragmentB<T>& b,
              sim::Location where = sim::Location::current()) {
  sim::Warp& warp = *sim::current->warp;
  float* all_a = warp.a[warp.parity];
  float* all_b = warp.b[warp.parity];
  for (int i = 0; i < 8; ++i) {
    const int at = sim::fragment_row(i) * 16 + sim::fragment_k(i);
    all_a[at] = to_f32(a.v[i]);
    all_b[at] = to_f32(b.v[i]);
  }
  const sim::CallSite site{"multiply", where};
  sim::exchange(0, site).of(31, site);  // a whole warp
  for (int i = 0; i < 8; ++i) {
    c.v[i] = sim::add_products(c.v[i], all_a + sim::fragment_row(i) * 16, all_b + sim::fragment_k(i) * 16);
  }
}

template <class Visit>
void for_each(FragmentC& c, Visit&& visit) {
  for (int i = 0; i < 8; ++i) visit(sim::fragment_row(i), sim::fragment_k(i), c.v[i]);
}

}  // namespace lb::gpu
