// Ops on the paged cache: kv_append stores new keys and values in their slots; kv_move compacts the rows of an accepted
// path.
// Bound: latency for few rows, else bandwidth: 4 bytes per value plus the bytes of the cache type.
#include "dialect.h"

#include "gpu/attention/kv_store.h"
#include "gpu/attention/shape.h"

namespace lb::gpu {

template <int kRounds>
LB_DEVICE void append_head(const KvAppend& p, const float* from, const quant::KvRow& slot, KvType type) {
  const int dim = key_dim_of(p.cache);
  f32x4 x[kRounds];
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    x[j] = {};
    if (head_column(j) < dim) x[j] = load_stream<f32x4>(from + head_column(j));
  }
  store_head(type, slot, x, dim);
}

// Grid y: K, and V if it is apart. One warp per head of a row.
LB_KERNEL(kv_append_kernel, KvAppend, kAppendThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  const KvLayer& cache = p.cache;
  const int item = block_id() * n_warps() + warp(), row = item / cache.n_kv_heads, head = item % cache.n_kv_heads;
  if (row >= p.rows) return;
  const bool is_v = block_id_y() != 0;
  const KvType type = is_v ? cache.v_type : cache.k_type;
  const float* from = (is_v ? p.v : p.k) + long(item) * key_dim_of(cache);
  const quant::KvRow slot = slot_of(is_v ? cache.v : cache.k, type, cache, *p.n_past + row, head);
  if (key_dim_of(cache) <= 128)
    append_head<1>(p, from, slot, type);
  else if (key_dim_of(cache) <= 256)
    append_head<2>(p, from, slot, type);
  else
    append_head<kMaxKeyDim / 128>(p, from, slot, type);
}

// Moves one piece of a slot, of type V, along the path. at(row) is the piece's address in a row of the append.
template <class V, class At>
LB_DEVICE void move_piece(const Accepted& accepted, At&& at) {
  constexpr int kBatch = 8;
  const int n = *accepted.n;
  for (int first = 0; first < n; first += kBatch) {
    V moved[kBatch] = {};
    LB_UNROLL
    for (int j = 0; j < kBatch; ++j)
      if (first + j < n) moved[j] = load<V>(at(accepted.path[first + j]));
    LB_UNROLL
    for (int j = 0; j < kBatch; ++j)
      if (first + j < n) store(at(first + j), moved[j]);
  }
}

// Grid y: K and V of each layer, or K alone if values are parts of the keys. A thread moves the same piece of every
// row, so no other thread touches that piece. path[j] >= j and the path ascends, so every row is read before it is
// overwritten, even with batched reads.
LB_KERNEL(kv_move_kernel, KvMoves, kMoveThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  const KvMove& op = p.op;
  const KvLayer& cache = op.cache;
  const int n_parts = kv_parts(cache), layer = block_id_y() / n_parts;
  const bool is_v = block_id_y() % n_parts != 0;
  const KvRowBytes bytes = row_bytes(is_v ? cache.v_type : cache.k_type, key_dim_of(cache));
  const int n_codes = move_pieces(bytes.codes), n_high = move_pieces(bytes.high), n_scales = move_pieces(bytes.scales);
  const int i = block_id() * n_threads() + thread_id(), n_pieces = n_codes + n_high + n_scales;
  const int head = i / n_pieces, of_head = i % n_pieces;
  if (head >= cache.n_kv_heads) return;

  // The piece's plane: its offset in the head's part of a page, the bytes per row, and the piece's offset in the row.
  const bool is_code = of_head < n_codes, is_high = !is_code && of_head < n_codes + n_high;
  const int plane = is_code ? 0 : kPageTokens * (is_high ? bytes.codes : bytes.codes + bytes.high);
  const int per_row = is_code ? bytes.codes : is_high ? bytes.high : bytes.scales, each = move_bytes(per_row);
  const int piece = (is_code ? of_head : is_high ? of_head - n_codes : of_head - n_codes - n_high) * each;
  const int n_past = *op.n_past;
  void* pages = is_v ? p.v[layer] : p.k[layer];
  const auto at = [&](int row) {
    const int slot = n_past + row;
    return head_of(pages, bytes, cache, page_of(cache, slot), head) + plane + slot % kPageTokens * per_row + piece;
  };
  switch (each) {
    case 16: return move_piece<u32x4>(op.accepted, at);
    case 8: return move_piece<u32x2>(op.accepted, at);
    case 4: return move_piece<uint32_t>(op.accepted, at);
    default: return move_piece<uint16_t>(op.accepted, at);
  }
}

}  // namespace lb::gpu
