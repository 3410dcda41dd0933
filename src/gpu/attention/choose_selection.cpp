// Choice of kernels for key scores and for the selection of key blocks.
#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"
#include "gpu/attention/choose.h"
#include "gpu/attention/instances.h"
#include "quant/kv_names.h"

namespace lb::gpu {
namespace {

struct HeadKernel {
  const char* name;
  int head_dim;
};
#define X(kernel, kDim) {#kernel, kDim},
constexpr HeadKernel kSelect[] = {LB_SELECT_BLOCKS(X)};
#undef X
#define X(kernel, kPage, page, kDim) {#kernel, kDim},
constexpr HeadKernel kSparse[] = {LB_ATTENTION_SPARSE_16(X) LB_ATTENTION_SPARSE_256(X) LB_ATTENTION_SPARSE_32(X)
                                      LB_ATTENTION_SPARSE_SM90(X)};
#undef X

// Returns null if no kernel takes this head_dim.
const char* select_kernel(int head_dim) {
  const auto found = std::ranges::find(kSelect, head_dim, &HeadKernel::head_dim);
  return found == std::end(kSelect) ? nullptr : found->name;
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

std::array<Launch, 2> choose(const KeyScores& op, const Target& target) {
  const KvLayer& cache = op.cache;
  const std::string what = cat("[key_scores] [", op.rows, ", ", op.n_heads, ", ", cache.head_dim, "] over ",
                               cache.n_kv_heads, " heads of ", kv_name(cache.k_type));
  check_cache(cache, what);
  LB_CHECK(op.rows >= 1 && op.rows <= kMaxKeyScoreRows && op.first_row >= 0, kInvalid, what, ": takes 1 to ",
           kMaxKeyScoreRows, " rows");
  LB_CHECK(op.n_heads >= 1 && op.n_heads % cache.n_kv_heads == 0, kInvalid, what,
           ": heads do not share KV heads evenly");
  LB_CHECK(is_aligned(op.q), kInvalid, what, ": q must be 16-byte aligned");
  const size_t shared = key_shared_bytes(op.rows, op.n_heads, op.n_heads / cache.n_kv_heads, cache.head_dim);
  const auto launch = [&](const char* kernel, int heads) {
    return checked({.kernel = kernel,
                    .grid = {kKeyScoreParts, static_cast<uint32_t>(heads), 1},
                    .block = {kKeyThreads, 1, 1},
                    .shared_bytes = shared,
                    .overlap_previous = true},
                   target, what);
  };
  return {launch("key_sums_kernel", cache.n_kv_heads), launch("key_scores_kernel", 1)};
}

// An append of n rows completes up to n / kSparseBlock + 1 key blocks, depending on its first slot.
Launch choose(const KeyMeans& op, const Target& target) {
  const KvLayer& cache = op.cache;
  const std::string what = cat("[key_means] ", op.rows, " rows of ", cache.n_kv_heads, " heads of ", cache.head_dim);
  check_cache(cache, what);
  LB_CHECK(op.rows >= 1 && op.max_blocks >= 1, kInvalid, what, ": nothing to compute");
  return checked(
      {.kernel = "key_means_kernel",
       .grid = {static_cast<uint32_t>(op.rows / kSparseBlock + 1), static_cast<uint32_t>(cache.n_kv_heads), 1},
       .block = {kMeansThreads, 1, 1},
       .shared_bytes = means_shared_bytes(cache.head_dim),
       .overlap_previous = true},
      target, what);
}

Launch choose(const SelectBlocks& op, const Target& target) {
  const std::string what =
      cat("[select_blocks] [", op.rows, ", ", op.n_heads, ", ", op.head_dim, "] over ", op.n_kv_heads, " heads");
  LB_CHECK(op.rows >= 1 && op.n_kv_heads >= 1 && op.n_heads % op.n_kv_heads == 0, kInvalid, what,
           ": nothing to compute, or heads that do not share KV heads evenly");
  const int group = op.n_heads / op.n_kv_heads;
  LB_CHECK(group <= kSparseBlock, kUnsupported, what, ": takes at most ", kSparseBlock, " heads to a KV head");
  LB_CHECK(op.n_query_blocks == query_blocks(op.rows, group), kInvalid, what, ": the rows are ",
           query_blocks(op.rows, group), " query blocks, not ", op.n_query_blocks);
  LB_CHECK(op.list_size > op.max_blocks, kInvalid, what, ": a list must hold ", op.max_blocks, " blocks");
  LB_CHECK(is_aligned(op.q), kInvalid, what, ": q must be 16-byte aligned");
  const char* const kernel = select_kernel(op.head_dim);
  LB_CHECK(kernel != nullptr, kUnsupported, what, ": takes heads of 64, 128 or 256. Compute all blocks instead");
  return checked({.kernel = kernel,
                  .grid = {static_cast<uint32_t>(op.n_query_blocks), static_cast<uint32_t>(op.n_kv_heads), 1},
                  .block = {kAttentionThreads, 1, 1},
                  .shared_bytes = block_scores_shared_bytes(op.head_dim, op.list_size),
                  .overlap_previous = true},
                 target, what);
}

bool has_sparse_attention(const Target& target) { return target.has("key_means_kernel"); }

bool has_sparse_attention(int n_heads, int n_kv_heads, int head_dim, const Target& target) {
  const char* const select = select_kernel(head_dim);
  return has_sparse_attention(target) && select != nullptr && target.has(select) &&
         n_heads <= kSparseBlock * n_kv_heads && std::ranges::any_of(kSparse, [&](const HeadKernel& entry) {
           return entry.head_dim == head_dim && target.has(entry.name);
         });
}

}  // namespace lb::gpu
