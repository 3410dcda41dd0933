// sm_90a extensions: warpgroup products (wgmma m64nNk16, of fp8 k32), whose B operand stays in shared memory; barriers
// that count arrivals (mbarrier); register reallocation between warpgroups (setmaxnreg). A warpgroup is four warps;
// warp w has rows [16w, 16w + 16) in the fragments of matrix.h. operand_tile.h defines the layout of operand tiles.
#pragma once

#include "gpu/operand_tile.h"

namespace lb::gpu {

// Matrix descriptors of operands in shared memory: the address and two strides, in units of 16 bytes, and the 128-byte
// swizzle.
template <class T>
struct TileRows {
  uint64_t bits;
};
template <class T>
struct TileColumns {
  uint64_t bits;
};

LB_DEVICE uint64_t operand_bits(const void* from, int block_distance) {
  constexpr uint64_t kRowGroup = 8 * 128 / 16, kPermuted128 = uint64_t(1) << 62;
  const uint64_t address = uint32_t(__cvta_generic_to_shared(from)) / 16 & 0x3fff;
  return address | uint64_t(block_distance / 16) << 16 | kRowGroup << 32 | kPermuted128;
}

// B [n, k] is stored like the tile: n starts at `row`, k at `column`; row % 8 == 0, column a multiple of 32 bytes.
template <class T>
LB_DEVICE TileRows<T> rows_of(const T* tile, int tile_rows, int row, int column) {
  constexpr int kBlock = 128 / sizeof(T);
  return {operand_bits(tile + column / kBlock * tile_rows * kBlock + row * kBlock + column % kBlock, 16)};
}
// B [n, k] is the tile's transpose: k starts at `row`, n at `column`; row % 16 == 0, column % 64 == 0.
template <class T>
LB_DEVICE TileColumns<T> columns_of(const T* tile, int tile_rows, int row, int column) {
  return {operand_bits(tile + column / 64 * tile_rows * 64 + row * 64, tile_rows * 128)};
}

// wgmma.fence: required before the first product after a write to operand or accumulator registers.
LB_DEVICE void group_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LB_DEVICE void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending committed groups are pending. The operands of the finished groups may be overwritten.
template <int kPending>
LB_DEVICE void group_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Same wait; afterwards the accumulators c may be read. The asm ties c to the wait, so no read moves ahead of it.
template <int kPending, int kCount>
LB_DEVICE void group_wait(FragmentC (&c)[kCount]) {
  group_wait<kPending>();
  LB_UNROLL
  for (int i = 0; i < kCount; ++i) {
    LB_UNROLL
    for (int j = 0; j < 8; ++j) asm volatile("" : "+f"(c[i].v[j])::"memory");
  }
}

#define LB_SUMS(c) \
  "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3]), "+f"(c.v[4]), "+f"(c.v[5]), "+f"(c.v[6]), "+f"(c.v[7])
#define LB_NAMES_32                                                                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LB_NAMES_64                                                                                             \
  LB_NAMES_32                                                                                                   \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LB_GROUP_PRODUCTS(Type, name)                                                                                  \
  template <bool kFresh, bool kIsTransposed>                                                                           \
  LB_DEVICE void group_product(FragmentC* c, const FragmentA<Type>& a, uint64_t b, Columns<64>) {                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name \
                 " {" LB_NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"                                     \
                 : LB_SUMS(c[0]), LB_SUMS(c[1]), LB_SUMS(c[2]), LB_SUMS(c[3])                                          \
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b), "n"(int(!kFresh)),                      \
                   "n"(int(kIsTransposed)));                                                                           \
  }                                                                                                                    \
  template <bool kFresh, bool kIsTransposed>                                                                           \
  LB_DEVICE void group_product(FragmentC* c, const FragmentA<Type>& a, uint64_t b, Columns<128>) {                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." name         \
                 "." name " {" LB_NAMES_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"                            \
                 : LB_SUMS(c[0]), LB_SUMS(c[1]), LB_SUMS(c[2]), LB_SUMS(c[3]), LB_SUMS(c[4]), LB_SUMS(c[5]),           \
                   LB_SUMS(c[6]), LB_SUMS(c[7])                                                                        \
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b), "n"(int(!kFresh)),                      \
                   "n"(int(kIsTransposed)));                                                                           \
  }                                                                                                                    \
  template <bool kFresh, bool kIsTransposed>                                                                           \
  LB_DEVICE void group_product(FragmentC* c, const TileRows<Type>& a, uint64_t b, Columns<64>) {                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name \
                 " {" LB_NAMES_32 "}, %32, %33, p, 1, 1, 0, %35;\n}"                                                   \
                 : LB_SUMS(c[0]), LB_SUMS(c[1]), LB_SUMS(c[2]), LB_SUMS(c[3])                                          \
                 : "l"(a.bits), "l"(b), "n"(int(!kFresh)), "n"(int(kIsTransposed)));                                   \
  }
template <int kCount>
struct Columns {};
LB_GROUP_PRODUCTS(f16, "f16")
LB_GROUP_PRODUCTS(bf16, "bf16")
#undef LB_GROUP_PRODUCTS
template <bool kFresh, bool kIsTransposed>
LB_DEVICE void group_product(FragmentC* c, const FragmentA<fp8_e4m3>& a, uint64_t b, Columns<128>) {
  static_assert(!kIsTransposed);
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" LB_NAMES_64
      "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}"
      : LB_SUMS(c[0]), LB_SUMS(c[1]), LB_SUMS(c[2]), LB_SUMS(c[3]), LB_SUMS(c[4]), LB_SUMS(c[5]), LB_SUMS(c[6]),
        LB_SUMS(c[7])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b), "n"(int(!kFresh)));
}
#undef LB_NAMES_64
#undef LB_NAMES_32
#undef LB_SUMS

// A of fp8 numbers, 16 rows of 32: r[i] is row g + 8 (i % 2), bytes [16 (i / 2) + 4t, 16 (i / 2) + 4t + 4), with g =
// lane / 4 and t = lane % 4. stride is in bytes.
LB_DEVICE void load_shared(FragmentA<fp8_e4m3>& a, const fp8_e4m3* from, int stride) {
  load_matrices(a.r, from + lane() % 16 * stride + lane() / 16 * 16);
}

// C [64, kColumns] += A [64, 16] B^T, or C = A B^T when kFresh; c points to the first fragment. A of bytes is [64, 32].
// The product is asynchronous until group_wait; the registers of a must not change before.
//
// The matrix unit truncates sums of fp8 products to 13 bits after the leading one (sim/fused_sum.h): add C to an fp32
// sum after a few products.
template <int kColumns, bool kFresh, class T, class A>
LB_DEVICE void group_multiply(FragmentC* c, const A& a, const TileRows<T>& b) {
  group_product<kFresh, false>(c, a, b.bits, Columns<kColumns>());
}
template <int kColumns, bool kFresh, class T, class A>
LB_DEVICE void group_multiply(FragmentC* c, const A& a, const TileColumns<T>& b) {
  group_product<kFresh, true>(c, a, b.bits, Columns<kColumns>());
}

// Makes this thread's stores to shared memory visible to the async proxy: products may read them after a barrier.
LB_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// An mbarrier in shared memory. A phase completes after `count` arrivals, and the next phase begins. Waiters name phase
// n by its parity n % 2. Before the first phase completes, a wait for parity 1 returns immediately.
struct CountedBarrier {
  uint64_t state;
};
LB_DEVICE void barrier_init(CountedBarrier* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(uint32_t(__cvta_generic_to_shared(b))), "r"(count)
               : "memory");
}
LB_DEVICE void barrier_arrive(CountedBarrier* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(uint32_t(__cvta_generic_to_shared(b))) : "memory");
}
LB_DEVICE bool barrier_has_passed(CountedBarrier* b, int parity) {  // tests once, without waiting
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(uint32_t(__cvta_generic_to_shared(b))), "r"(parity)
      : "memory");
  return passed != 0;
}
LB_DEVICE void barrier_wait(CountedBarrier* b, int parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;\n}" ::"r"(uint32_t(__cvta_generic_to_shared(b))),
      "r"(parity)
      : "memory");
}

// Set the registers per thread to kCount, a multiple of 8: a producer warpgroup releases registers, and consumer
// warpgroups take them.
template <int kCount>
LB_DEVICE void dealloc_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
LB_DEVICE void alloc_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace lb::gpu
