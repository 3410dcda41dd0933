// The paged cache: kv_append rounds new keys and values into their slots, kv_move compacts the rows of an accepted
// path. Bound: latency for few rows, else bandwidth: 4 bytes per value plus the cache type's.
#include "dialect.h"

#include "gpu/attention/kv_slots.h"
#include "gpu/attention/shape.h"

namespace lb::gpu {

template <class T>
LB_DEVICE void store_four(void* values, long at, const f32x4& x) {
  Vec<T, 4> out;
  LB_UNROLL
  for (int j = 0; j < 4; ++j) out[j] = stored_as(x[j], T{});
  store(static_cast<T*>(values) + at, out);
}

// Grid y: K, V. A thread has four values.
LB_KERNEL(kv_append_kernel, KvAppend, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const KvLayer& cache = p.cache;
  const long i = 4 * (long(block_id()) * n_threads() + thread_id());
  const int row_values = cache.n_kv_heads * cache.head_dim;
  if (i >= long(p.rows) * row_values) return;
  const int row = int(i / row_values), head = int(i % row_values) / cache.head_dim, column = int(i % cache.head_dim);
  const long at = slot_row(cache, *p.n_past + row, head) * cache.head_dim + column;
  const bool is_v = block_id_y() != 0;
  const f32x4 x = load_stream<f32x4>((is_v ? p.v : p.k) + i);
  void* values = is_v ? cache.v : cache.k;
  const KvType type = is_v ? cache.v_type : cache.k_type;
  if (type == KvType::kF16)
    store_four<f16>(values, at, x);
  else if (type == KvType::kBF16)
    store_four<bf16>(values, at, x);
  else
    store_four<float>(values, at, x);
}

// Grid y: K and V of each layer. A thread moves the same 16 bytes of every row, so no other thread touches them.
// path[j] >= j and path ascends, so every row is read before it is overwritten, also in batches of kBatch reads.
LB_KERNEL(kv_move_kernel, KvMoves, 128, 1) {
  constexpr int kBatch = 8;
  dependents_may_launch();
  wait_for_previous();
  const KvMove& op = p.op;
  const KvLayer& cache = op.cache;
  const int layer = block_id_y() / 2;
  const bool is_v = block_id_y() % 2 != 0;
  const KvType type = is_v ? cache.v_type : cache.k_type;
  const long head_bytes = long(cache.head_dim) * (type == KvType::kF32 ? 4 : 2);
  const long piece = 16 * (long(block_id()) * n_threads() + thread_id());
  const long head = piece / head_bytes;
  if (head >= cache.n_kv_heads) return;
  unsigned char* values = static_cast<unsigned char*>(is_v ? p.v[layer] : p.k[layer]) + piece % head_bytes;
  const int n_past = *op.n_past, n = *op.accepted.n;
  const auto at = [&](int row) { return values + slot_row(cache, n_past + row, int(head)) * head_bytes; };
  for (int first = 0; first < n; first += kBatch) {
    u32x4 moved[kBatch] = {};
    LB_UNROLL
    for (int j = 0; j < kBatch; ++j)
      if (first + j < n) moved[j] = load<u32x4>(at(op.accepted.path[first + j]));
    LB_UNROLL
    for (int j = 0; j < kBatch; ++j)
      if (first + j < n) store(at(first + j), moved[j]);
  }
}

}  // namespace lb::gpu
