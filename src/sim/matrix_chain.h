// Primitives for two chained products, as in attention: operands from shared memory, also transposed; row reductions of
// an accumulator; an accumulator as the operand of the next product, through scratch as on chips that need it.
#pragma once

namespace lb::gpu {

namespace sim {

template <class T>
void check_operand(const T* from, const char* word) {
  if (!current->block->shared.contains(from)) machine().fail("%s reads shared memory, got %p", word, (const void*)from);
}

}  // namespace sim

// Same as load(), from shared memory.
template <class T>
void load_shared(FragmentA<T>& a, const std::type_identity_t<T>* from, int stride) {
  sim::check_operand(from, "load_shared of a FragmentA");
  load(a, from, stride);
}
// Loads eight rows; the other eight rows are zero.
template <class T>
void load_shared_8_rows(FragmentA<T>& a, const std::type_identity_t<T>* from, int stride) {
  sim::check_operand(from, "load_shared_8_rows of a FragmentA");
  sim::load_rows<8>(a.v, from, stride, "load_shared_8_rows of a FragmentA");
}
template <class T>
void load_shared(FragmentB<T>& b, const std::type_identity_t<T>* from, int stride) {
  sim::check_operand(from, "load_shared of a FragmentB");
  load(b, from, stride);
}
// Loads B from its transpose [16 k, 16 n] in shared memory, n contiguous.
template <class T>
void load_shared_transposed(FragmentB<T>& b, const std::type_identity_t<T>* from, int stride) {
  constexpr const char* kWord = "load_shared_transposed of a FragmentB";
  sim::check_operand(from, kWord);
  if (uintptr_t(from) % 16 != 0 || stride % 8 != 0)
    sim::machine().fail("%s: rows must start 16-byte aligned, got %p and a stride of %d values", kWord,
                        (const void*)from, stride);
  for (int i = 0; i < 8; ++i) {
    const T* p = from + sim::fragment_k(i) * stride + sim::fragment_row(i);
    sim::check_access(p, sizeof *p, sim::Access::kRead, kWord);
    b.v[i] = *p;
  }
}

inline constexpr int kLaneRows = 2;  // rows of C in which a lane has values
inline int lane_row(int i) { return lane() / 4 + 8 * i; }

// Calls visit(i, column, value) for each value of the lane; i counts the lane's rows.
template <class Visit>
void for_each_row(FragmentC& c, Visit&& visit) {
  for (int i = 0; i < 8; ++i) visit(i / 2 % 2, sim::fragment_k(i), c.v[i]);
}

// Reductions over the lanes that share a row.
inline float row_max(float v) {
  v = max(v, shuffle_xor(v, 2));
  return max(v, shuffle_xor(v, 1));
}
inline float row_sum(float v) {
  v += shuffle_xor(v, 2);
  return v + shuffle_xor(v, 1);
}

namespace sim {

inline f16 narrow(float x, f16) { return to_f16(x); }
inline bf16 narrow(float x, bf16) { return to_bf16(x); }

}  // namespace sim

// Rounds C to operand A of the next product. As with mma, a lane's values of C are its values of A.
inline constexpr bool kSumIsOperand = true;
template <class T>
void sum_as_operand(FragmentA<T>& a, const FragmentC& c) {
  for (int i = 0; i < 8; ++i) a.v[i] = sim::narrow(c.v[i], T{});
}
// Same, through scratch [16, 24] in shared memory, private to the warp.
template <class T>
void to_operand(FragmentA<T>& a, FragmentC& c, T* scratch) {
  warp_barrier();  // earlier reads of the scratch are done
  for_each(c, [&](int row, int column, float& value) { store(scratch + row * 24 + column, sim::narrow(value, T{})); });
  warp_barrier();
  load(a, scratch, 24);
}

// Splits each value of C into high + low, two 16-bit numbers, and stores both in shared memory.
template <class T>
void store_parts(FragmentC& c, T* high, T* low, int stride) {
  sim::check_operand(high, "store_parts");
  for_each(c, [&](int row, int column, float x) {
    T parts[2];
    parts[0] = sim::narrow(x, T{});
    parts[1] = sim::narrow(x - to_f32(parts[0]), T{});
    store(high + row * stride + column, parts[0]);
    store(low + row * stride + column, parts[1]);
  });
}

}  // namespace lb::gpu
