// Where a token's keys and values lie in the paged cache, and how they are rounded to its types.
#pragma once

#include "ops/attention.h"

namespace lb::gpu {

// The row of head_dim values, counted through all pages.
LB_DEVICE long slot_row(const KvLayer& cache, int slot, int head) {
  const long page = load_cached<int32_t>(cache.page_table + slot / kPageTokens);
  return (page * cache.n_kv_heads + head) * kPageTokens + slot % kPageTokens;
}

LB_DEVICE float stored_as(float x, float) { return x; }
LB_DEVICE f16 stored_as(float x, f16) { return to_f16(x); }
LB_DEVICE bf16 stored_as(float x, bf16) { return to_bf16(x); }

}  // namespace lb::gpu
