// Addresses of keys and values in the paged cache, and rounding to its types.
#pragma once

#include "ops/attention.h"

namespace lb::gpu {

LB_DEVICE int32_t page_of(const KvLayer& cache, int slot) {
  return load_cached<int32_t>(cache.page_table + slot / kPageTokens);
}
// Index, through all pages, of the row of head_dim values of a slot in this page.
LB_DEVICE long row_in(const KvLayer& cache, int32_t page, int slot, int head) {
  return (long(page) * cache.n_kv_heads + head) * kPageTokens + slot % kPageTokens;
}
LB_DEVICE long slot_row(const KvLayer& cache, int slot, int head) {
  return row_in(cache, page_of(cache, slot), slot, head);
}

LB_DEVICE float stored_as(float x, float) { return x; }
LB_DEVICE f16 stored_as(float x, f16) { return to_f16(x); }
LB_DEVICE bf16 stored_as(float x, bf16) { return to_bf16(x); }

}  // namespace lb::gpu
