// The time of an attention on the device of a pack.
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "bindings/kernels/gpu_timing.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

constexpr int kScoredRows = 8;

// Bits without a pattern. Numbers of 16 or 32 bits are between 1/2 and 1, of either sign; of other types every 16 bits
// are an f16 of this kind, so that no scale is infinite.
gpu::Buffer random_pages(PythonPack& pack, KvType type, size_t bytes, uint64_t seed) {
  const bool is_bf16 = type == KvType::kBF16;
  const uint64_t keep = is_bf16 ? 0x807f'807f'807f'807f : 0x83ff'83ff'83ff'83ff;
  const uint64_t exponents = is_bf16 ? 0x3f00'3f00'3f00'3f00 : 0x3800'3800'3800'3800;
  gpu::Buffer buffer(pack.device(), bytes);
  std::vector<uint64_t> values((std::min<size_t>(buffer.size(), 64 << 20) + 7) / 8);
  for (uint64_t& value : values) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    value = type == KvType::kF32 ? (seed & 0x807f'ffff'807f'ffff) | 0x3f00'0000'3f00'0000 : (seed & keep) | exponents;
  }
  const size_t piece = values.size() * 8;
  for (size_t at = 0; at < buffer.size(); at += piece)
    pack.stream().copy_to_device(buffer.data() + at, values.data(), std::min(piece, buffer.size() - at));
  pack.stream().synchronize();
  return buffer;
}

nb::dict time_attention(PythonPack& pack, const std::string& kv, int rows, int n_heads, int n_kv_heads, int head_dim,
                        int n_past, int capacity, int sets, int replays, int tries) {
  LB_CHECK(sets >= 1 && replays >= 1 && tries >= 1, kInvalid, "sets, replays and tries must be at least 1");
  LB_CHECK(n_past >= 0 && n_past + rows <= capacity, kInvalid, "n_past and rows do not fit the capacity");
  const auto types = kv_types_from_text(kv);
  LB_CHECK(types, kInvalid, "kv must be ", kv_names(), ", or two of them as K/V, got ", kv);
  const int n_pages = (capacity + kPageTokens - 1) / kPageTokens;
  const size_t heads = size_t(n_pages) * n_kv_heads, q_values = size_t(rows) * n_heads * head_dim;
  std::vector<int32_t> table(n_pages);
  for (int i = 0; i < n_pages; ++i) table[i] = n_pages - 1 - i;
  Call call(pack);
  const gpu::Buffer q = random_pages(pack, KvType::kF32, q_values * sizeof(float), 88172645463325252ull);
  float* o = call.out<float>(q_values);
  std::byte* scratch =
      call.out<std::byte>(gpu::attention_scratch_bytes(rows, n_heads, head_dim, capacity, pack.target()));
  const int32_t* device_table = call.in(table);
  const int32_t* device_n_past = call.in(&n_past, 1);
  std::deque<gpu::Buffer> memory;
  std::vector<gpu::AttentionLaunches> all;
  Attention op{};
  for (int set = 0; set < sets; ++set) {
    void* k = memory
                  .emplace_back(random_pages(pack, types->k, heads * kv_head_bytes(types->k, head_dim),
                                             88172645463325252ull + set))
                  .data();
    void* v = memory
                  .emplace_back(random_pages(pack, types->v, heads * kv_head_bytes(types->v, head_dim),
                                             77172645463325252ull + set))
                  .data();
    op = {.q = reinterpret_cast<const float*>(q.data()),
          .gate = nullptr,
          .o = o,
          .cache = {k, v, device_table, types->k, types->v, n_kv_heads, head_dim},
          .tree = {},
          .n_past = device_n_past,
          .rows = rows,
          .n_heads = n_heads,
          .gate_row_stride = 0,
          .gate_head_stride = 0,
          .scale = 1.0f / float(head_dim)};
    all.push_back(gpu::choose(op, capacity, scratch, pack.target()));
  }
  const double seconds = time_on_device(pack, replays, tries, [&] {
    for (const gpu::AttentionLaunches& launches : all)
      for (int j = 0; j < launches.n; ++j) pack.run(launches.launches[j], launches.params);
  });
  pack.take_started();
  nb::dict result;
  result["seconds"] = seconds / sets;
  result["bytes"] = gpu::bytes_of(op, n_past);
  result["flops"] = gpu::flops_of(op, n_past);
  result["launch"] = gpu::to_string(all[0].launches[0]);
  return result;
}

// An append of `rows` rows of a scorer at the end of n_past tokens, in f16: its selection, and its attention to
// n_selected evenly spaced blocks of each query block and to all of them; and the scores of its last 8 rows.
nb::dict time_scorer(PythonPack& pack, int rows, int n_heads, int n_kv_heads, int head_dim, int n_past, int n_selected,
                     int replays, int tries) {
  LB_CHECK(rows >= kScoredRows && n_heads % n_kv_heads == 0 && n_selected >= 1, kInvalid,
           "rows must be at least 8, and heads share KV heads evenly");
  const int capacity = n_past + rows, group = n_heads / n_kv_heads,
            n_pages = (capacity + kPageTokens - 1) / kPageTokens;
  const int max_blocks = sparse_blocks(capacity), n_query_blocks = query_blocks(rows, group);
  const size_t page_bytes = size_t(n_pages) * n_kv_heads * kv_head_bytes(KvType::kF16, head_dim);
  const size_t q_values = size_t(rows) * n_heads * head_dim;
  std::vector<int32_t> table(n_pages), lists(size_t(n_query_blocks) * n_kv_heads * (max_blocks + 1));
  for (int i = 0; i < n_pages; ++i) table[i] = n_pages - 1 - i;
  for (size_t at = 0, i = 0; at < lists.size(); at += max_blocks + 1, ++i) {
    const int query_block = int(i) / n_kv_heads, last_row = std::min(rows, (query_block + 1) * sparse_rows(group)) - 1;
    const int n_seen = (n_past + last_row) / kSparseBlock + 1, n = std::min(n_seen, n_selected);
    lists[at] = n;
    for (int j = 0; j < n; ++j) lists[at + 1 + j] = n == 1 ? n_seen - 1 : int(long(n_seen - 1) * j / (n - 1));
  }
  Call call(pack);
  const gpu::Buffer q = random_pages(pack, KvType::kF32, q_values * sizeof(float), 88172645463325252ull);
  const gpu::Buffer k = random_pages(pack, KvType::kF16, page_bytes, 88172645463325252ull);
  const gpu::Buffer v = random_pages(pack, KvType::kF16, page_bytes, 77172645463325252ull);
  float* o = call.out<float>(q_values);
  float* means = call.out<float>(size_t(max_blocks) * n_kv_heads * head_dim);
  float* scores = call.out<float>(size_t(kScoredRows) * capacity);
  float* parts = call.out<float>(size_t(2) * kKeyScoreParts * kScoredRows * n_heads);
  int32_t* selected = call.out<int32_t>(lists.size());
  auto* scratch = call.out<std::byte>(gpu::attention_scratch_bytes(rows, n_heads, head_dim, capacity, pack.target()));
  const int32_t* n_past_at = call.in(&n_past, 1);
  const int32_t* first_at = call.in(std::vector<int32_t>{0});
  const KvLayer cache = {reinterpret_cast<void*>(k.data()),
                         reinterpret_cast<void*>(v.data()),
                         call.in(table),
                         KvType::kF16,
                         KvType::kF16,
                         n_kv_heads,
                         head_dim};
  const auto* queries = reinterpret_cast<const float*>(q.data());
  const float scale = 1.0f / float(head_dim);
  Attention attention{};
  attention.q = queries;
  attention.o = o;
  attention.cache = cache;
  attention.n_past = n_past_at;
  attention.rows = rows;
  attention.n_heads = n_heads;
  attention.scale = scale;
  const auto time_attention = [&] {
    const gpu::AttentionLaunches launches = gpu::choose(attention, capacity, scratch, pack.target());
    return time_on_device(pack, replays, tries, [&] {
      for (int i = 0; i < launches.n; ++i) pack.run(launches.launches[i], launches.params);
    });
  };
  nb::dict result;
  result["dense"] = time_attention();
  result["flops"] = gpu::flops_of(attention, n_past);
  attention.blocks = call.in(lists);
  attention.n_query_blocks = n_query_blocks;
  attention.list_size = max_blocks + 1;
  result["sparse"] = time_attention();
  const auto time_op = [&](const auto& op) { return time_on_device(pack, replays, tries, [&] { run(pack, op); }); };
  // The means of all blocks, which the selection reads.
  run(pack, KeyMeans{.cache = cache, .means = means, .n_past = first_at, .rows = capacity, .max_blocks = max_blocks});
  result["means"] =
      time_op(KeyMeans{.cache = cache, .means = means, .n_past = n_past_at, .rows = rows, .max_blocks = max_blocks});
  result["select"] = time_op(SelectBlocks{.q = queries,
                                          .means = means,
                                          .blocks = selected,
                                          .n_past = n_past_at,
                                          .rows = rows,
                                          .n_heads = n_heads,
                                          .n_kv_heads = n_kv_heads,
                                          .head_dim = head_dim,
                                          .n_query_blocks = n_query_blocks,
                                          .list_size = max_blocks + 1,
                                          .max_blocks = max_blocks,
                                          .scale = scale,
                                          .alpha = 0.5f});
  const KeyScores tail = {.q = queries,
                          .cache = cache,
                          .scores = scores,
                          .parts = parts,
                          .n_past = n_past_at,
                          .first_row = rows - kScoredRows,
                          .rows = kScoredRows,
                          .n_heads = n_heads,
                          .stride = capacity,
                          .scale = scale};
  const auto launches = gpu::choose(tail, pack.target());
  result["scores"] = time_on_device(pack, replays, tries, [&] {
    for (const gpu::Launch& launch : launches) pack.run(launch, tail);
  });
  pack.take_started();
  return result;
}

}  // namespace

void bind_gpu_attention(nb::module_& m) {
  m.def("time_attention", &time_attention, "pack"_a, "kv"_a, "rows"_a, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a,
        "n_past"_a, "capacity"_a, "sets"_a = 1, "replays"_a = 20, "tries"_a = 5,
        "Seconds of the attention of a chain, its merge included, over `sets` rotated caches; the bytes that have to "
        "move, "
        "the flops of the slots its rows see, and the launch.");
  m.def(
      "time_scorer", &time_scorer, "pack"_a, "rows"_a, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a, "n_past"_a,
      "n_selected"_a, "replays"_a = 3, "tries"_a = 4,
      "Seconds of a scorer's append over f16 pages: attention to all blocks (dense) and to n_selected (sparse), means, "
      "select, scores of 8 rows; and the flops of the dense one.");
}

}  // namespace lb::kernels
