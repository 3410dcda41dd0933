// Slots of a page as they are stored, copied to shared memory and converted there to tiles of f16 operands.
#pragma once

#include "gpu/attention/kv_load.h"

namespace lb::gpu {

// kCount consecutive slots of a KV head in shared memory: rows of codes, rows of high bits, rows of scales. With kCount
// a multiple of 8 and head_dim of 64, each part is a multiple of 16 bytes, here and in the page.
template <int kCount>
struct PackedSlots {
  KvRowBytes bytes;

  LB_DEVICE int size() const { return kCount * (bytes.codes + bytes.high + bytes.scales); }

  // Copies the 16 bytes at `offset`. head: of the page; first: the first slot in the page, a multiple of 8.
  LB_DEVICE void copy_piece(unsigned char* to, const uint8_t* head, int first, int offset) const {
    static_assert(kCount % 8 == 0);
    const int high_at = kCount * bytes.codes, scales_at = high_at + kCount * bytes.high;
    const int codes_before = kPageTokens * bytes.codes, high_before = codes_before + kPageTokens * bytes.high;
    const uint8_t* from = head + offset;
    if (offset < high_at)
      from += first * bytes.codes;
    else if (offset < scales_at)
      from += codes_before + first * bytes.high - high_at;
    else
      from += high_before + first * bytes.scales - scales_at;
    copy_async<16>(to + offset, from);
  }

  LB_DEVICE quant::KvRow row(unsigned char* at, int slot) const {
    return {at + slot * bytes.codes, at + kCount * bytes.codes + slot * bytes.high,
            reinterpret_cast<uint16_t*>(at + kCount * (bytes.codes + bytes.high) + slot * bytes.scales)};
  }
};

// Eight values from `column` on as f16. F32 is rounded.
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
