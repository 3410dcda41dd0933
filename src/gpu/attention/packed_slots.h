// Slots in their stored form: copied from a page to shared memory, and converted there to f16 operands.
#pragma once

#include "gpu/attention/kv_load.h"

namespace lb::gpu {

// kCount consecutive slots of a KV head in shared memory: rows of codes, each followed by kPad bytes against bank
// conflicts; rows of high bits; rows of scales. If kCount is a multiple of 8 and head_dim a multiple of 64, each part
// is a multiple of 16 bytes, here and in the page.
template <int kCount, int kPad = 0>
struct PackedSlots {
  KvRowBytes bytes;
  int code_shift = 0;  // with padding, a row has 2^code_shift bytes of codes

  LB_DEVICE int size() const { return kCount * (bytes.codes + kPad + bytes.high + bytes.scales); }

  // Copies slots of a head's page asynchronously, from `first` on, a multiple of 8. Called by `n_threads` threads.
  LB_DEVICE void copy(unsigned char* to, const uint8_t* head, int first, int thread, int n_threads) const {
    static_assert(kCount % 8 == 0);
    const int codes = kCount * bytes.codes, high = kCount * bytes.high, rest = high + kCount * bytes.scales;
    const uint8_t* from = head + first * bytes.codes;
    LB_UNROLL_BY(1)
    for (int i = 16 * thread; i < codes; i += 16 * n_threads)
      copy_async<16>(to + i + (kPad > 0 ? (i >> code_shift) * kPad : 0), from + i);
    to += codes + kCount * kPad;
    const uint8_t* from_high = head + kPageTokens * bytes.codes + first * bytes.high;
    const uint8_t* from_scales = head + kPageTokens * (bytes.codes + bytes.high) + first * bytes.scales - high;
    LB_UNROLL_BY(1)
    for (int i = 16 * thread; i < rest; i += 16 * n_threads)
      copy_async<16>(to + i, (i < high ? from_high : from_scales) + i);
  }

  // Copies n slots one by one, slot i from row_at(i). Called by `n_threads` threads. The rows of high bits and scales
  // may be too small for an asynchronous copy; the ring's barrier makes them visible.
  template <class RowAt>
  LB_DEVICE void copy_each(unsigned char* to, RowAt&& row_at, int n, int thread, int n_threads) const {
    const int pieces = bytes.codes / 16;
    LB_UNROLL_BY(1)
    for (int i = thread; i < n * pieces; i += n_threads) {
      const int slot = i / pieces, at = i % pieces * 16;
      copy_async<16>(row(to, slot).codes + at, row_at(slot).codes + at);
    }
    const int n_high = bytes.high / 2, pairs = n_high + bytes.scales / 2;
    LB_UNROLL_BY(4)
    for (int i = thread; i < n * pairs; i += n_threads) {
      const int slot = i / pairs, at = i % pairs;
      const quant::KvRow from = row_at(slot), own = row(to, slot);
      if (at < n_high)
        store(own.high + 2 * at, load<uint16_t>(from.high + 2 * at));
      else
        store(own.scales + at - n_high, load<uint16_t>(from.scales + at - n_high));
    }
  }

  LB_DEVICE quant::KvRow row(unsigned char* at, int slot) const {
    const int high_at = kCount * (bytes.codes + kPad);
    return {at + slot * (bytes.codes + kPad), at + high_at + slot * bytes.high,
            reinterpret_cast<uint16_t*>(at + high_at + kCount * bytes.high + slot * bytes.scales)};
  }

  // Zeroes every byte of the slots from n_valid on, as one warp. Zero bytes mean zero values in every type.
  LB_DEVICE void clear(unsigned char* at, int n_valid) const {
    LB_UNROLL_BY(1)
    for (int slot = max(n_valid, 0); slot < kCount; ++slot) {
      const quant::KvRow own = row(at, slot);
      LB_UNROLL_BY(1)
      for (int i = 2 * lane(); i < bytes.codes; i += 64) store(own.codes + i, uint16_t{0});
      if (2 * lane() < bytes.high) store(own.high + 2 * lane(), uint16_t{0});
      if (2 * lane() < bytes.scales) store(own.scales + lane(), uint16_t{0});
    }
  }
};

// Eight values from `column` on, as f16. F32 values are rounded.
template <KvType kType>
LB_DEVICE u32x4 unpack_eight(const quant::KvRow& row, int column, int shift) {
  if constexpr (kType == KvType::kF32) {
    f32x4 x[2];
    load_eight<kType, FromShared>(row, column, shift, x);
    u32x4 pairs;
    LB_UNROLL
    for (int j = 0; j < 4; ++j)
      pairs[j] = __builtin_bit_cast(uint32_t, to_f16x2(x[j / 2][j % 2 * 2], x[j / 2][j % 2 * 2 + 1]));
    return pairs;
  } else {
    return load_operands<kType, FromShared>(row, column, shift);
  }
}

}  // namespace lb::gpu
