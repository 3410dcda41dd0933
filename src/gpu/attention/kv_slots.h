// Addresses of keys and values in the paged cache, and rounding to the 16-bit and 32-bit cache types.
#pragma once

#include "ops/attention.h"

namespace lb::gpu {

// Calls body with a KvTag of the type, so that the switch runs once, outside of loops over values.
template <KvType kValue>
struct KvTag {
  static constexpr KvType kType = kValue;
};
template <class Body>
LB_DEVICE void with_kv_type(KvType type, Body&& body) {
  switch (type) {
    case KvType::kF32: return body(KvTag<KvType::kF32>{});
    case KvType::kF16: return body(KvTag<KvType::kF16>{});
    case KvType::kBF16: return body(KvTag<KvType::kBF16>{});
    case KvType::kFp8: return body(KvTag<KvType::kFp8>{});
    case KvType::kQ8_0: return body(KvTag<KvType::kQ8_0>{});
    case KvType::kQ5_1: return body(KvTag<KvType::kQ5_1>{});
    case KvType::kQ5_0: return body(KvTag<KvType::kQ5_0>{});
    case KvType::kQ4_1: return body(KvTag<KvType::kQ4_1>{});
    case KvType::kQ4_0: return body(KvTag<KvType::kQ4_0>{});
    case KvType::kTQ3_0: return body(KvTag<KvType::kTQ3_0>{});
    case KvType::kWHT4: return body(KvTag<KvType::kWHT4>{});
    case KvType::kWHT3: return body(KvTag<KvType::kWHT3>{});
  }
}

// kv_row_bytes without a lookup table in memory.
LB_DEVICE KvRowBytes row_bytes(KvType type, int head_dim) {
  KvRowBytes bytes = {};
  with_kv_type(type, [&](auto tag) { bytes = kv_row_bytes(tag.kType, head_dim); });
  return bytes;
}

LB_DEVICE bool stores_rotated(KvType type) {
  return type == KvType::kTQ3_0 || type == KvType::kWHT4 || type == KvType::kWHT3;
}

// The address of a KV head in a page. Its planes start at bytes 0, 64 codes and 64 (codes + high).
LB_DEVICE uint8_t* head_of(void* pages, const KvRowBytes& bytes, const KvLayer& cache, int32_t page, int head) {
  return static_cast<uint8_t*>(pages) +
         (long(page) * cache.n_kv_heads + head) * (kPageTokens * (bytes.codes + bytes.high + bytes.scales));
}
// A row in a head's part of a page.
LB_DEVICE quant::KvRow row_of(uint8_t* head, const KvRowBytes& bytes, int in_page) {
  return {head + in_page * bytes.codes, head + kPageTokens * bytes.codes + in_page * bytes.high,
          reinterpret_cast<uint16_t*>(head + kPageTokens * (bytes.codes + bytes.high) + in_page * bytes.scales)};
}

LB_DEVICE int32_t page_of(const KvLayer& cache, int slot) {
  return load_cached<int32_t>(cache.page_table + slot / kPageTokens);
}
// Index, across all pages, of the row of head_dim values that belongs to a slot in this page.
LB_DEVICE long row_in(const KvLayer& cache, int32_t page, int slot, int head) {
  return (long(page) * cache.n_kv_heads + head) * kPageTokens + slot % kPageTokens;
}
LB_DEVICE long slot_row(const KvLayer& cache, int slot, int head) {
  return row_in(cache, page_of(cache, slot), slot, head);
}

// The row of a slot. pages, type: of K or of V.
LB_DEVICE quant::KvRow slot_of(void* pages, KvType type, const KvLayer& cache, int slot, int head) {
  const KvRowBytes bytes = row_bytes(type, key_dim_of(cache));
  return row_of(head_of(pages, bytes, cache, page_of(cache, slot), head), bytes, slot % kPageTokens);
}

LB_DEVICE float stored_as(float x, float) { return x; }
LB_DEVICE f16 stored_as(float x, f16) { return to_f16(x); }
LB_DEVICE bf16 stored_as(float x, bf16) { return to_bf16(x); }

}  // namespace lb::gpu
