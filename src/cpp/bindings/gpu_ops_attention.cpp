// Attention and the upkeep of the paged cache on the device of a pack. Pages come and go as numpy arrays, so that they
// can be compared bit by bit; the two functions that write a cache return its pages.
#include "bindings/bindings.h"
#include "bindings/gpu_call.h"
#include "bindings/gpu_timing.h"

using namespace nanobind::literals;

namespace lb {
namespace {

using Pages = nb::ndarray<nb::ro, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

// Pages on the device, in memory with guards.
struct DevicePages {
  KvLayer cache;
  size_t k_bytes, v_bytes;
};

std::byte* copy_pages(Call& call, const Pages& pages, DType type) {
  LB_CHECK(pages.itemsize() == info(type).block_bytes, kInvalid, "pages of ", name(type), " hold values of ",
           info(type).block_bytes, " bytes, got ", pages.itemsize());
  return call.in_out(static_cast<const std::byte*>(pages.data()), pages.nbytes());
}

DevicePages pages_on_device(Call& call, const Pages& k, const Pages& v, const std::string& k_type,
                            const std::string& v_type, const In<int32_t, 1>& table, int n_slots) {
  for (const Pages* pages : {&k, &v})
    check_shape("pages", *pages, {k.shape(0), k.shape(1), size_t(kPageTokens), k.shape(3)});
  LB_CHECK(n_slots <= size(table, 0) * kPageTokens, kInvalid, "the page table holds ", table.shape(0) * kPageTokens,
           " slots, ", n_slots, " are needed");
  for (size_t i = 0; i < table.shape(0); ++i)
    LB_CHECK(table.data()[i] >= 0 && table.data()[i] < size(k, 0), kInvalid, "page ", table.data()[i],
             " is not in [0, ", k.shape(0), ")");
  const DType k_dtype = dtype_named(k_type), v_dtype = dtype_named(v_type);
  return {{.k = copy_pages(call, k, k_dtype),
           .v = copy_pages(call, v, v_dtype),
           .page_table = call.in(table),
           .k_type = k_dtype,
           .v_type = v_dtype,
           .n_kv_heads = size(k, 1),
           .head_dim = size(k, 3)},
          k.nbytes(),
          v.nbytes()};
}

nb::tuple read_pages(Call& call, const DevicePages& pages) {
  return nb::make_tuple(call.read(static_cast<const uint8_t*>(pages.cache.k), pages.k_bytes),
                        call.read(static_cast<const uint8_t*>(pages.cache.v), pages.v_bytes));
}

nb::tuple kv_append(PythonPack& pack, In<float, 3> k, In<float, 3> v, Pages k_pages, Pages v_pages,
                    const std::string& k_type, const std::string& v_type, In<int32_t, 1> page_table, int n_past) {
  check_shape("k", k, {k.shape(0), k_pages.shape(1), k_pages.shape(3)});
  check_shape("v", v, {k.shape(0), k_pages.shape(1), k_pages.shape(3)});
  Call call(pack);
  const DevicePages pages = pages_on_device(call, k_pages, v_pages, k_type, v_type, page_table, n_past + size(k, 0));
  const KvAppend op{
      .k = call.in(k), .v = call.in(v), .cache = pages.cache, .n_past = call.in(&n_past, 1), .rows = size(k, 0)};
  pack.run(op);
  return read_pages(call, pages);
}

// `u`: the queries are the first head_dim values of each of its heads.
nb::tuple attention_prepare(PythonPack& pack, In<float, 3> u, In<float, 3> k, In<float, 3> v,
                            std::optional<In<float, 1>> q_norm, std::optional<In<float, 1>> k_norm, FloatMatrix cos,
                            FloatMatrix sin, Pages k_pages, Pages v_pages, const std::string& k_type,
                            const std::string& v_type, In<int32_t, 1> page_table, int n_past, float eps,
                            const std::string& pairs) {
  const size_t rows = u.shape(0), n_heads = u.shape(1), dim = k_pages.shape(3);
  check_shape("k", k, {rows, k_pages.shape(1), dim});
  check_shape("v", v, {rows, k_pages.shape(1), dim});
  check_shape("cos", cos, {rows, cos.shape(1)});
  check_shape("sin", sin, {rows, cos.shape(1)});
  LB_CHECK(u.shape(2) >= dim, kInvalid, "heads of u are shorter than ", dim);
  LB_CHECK(q_norm.has_value() == k_norm.has_value(), kInvalid, "q_norm and k_norm come together");
  if (q_norm) check_shape("q_norm", *q_norm, {dim}), check_shape("k_norm", *k_norm, {dim});
  LB_CHECK(pairs == "halves" || pairs == "adjacent", kInvalid, "pairs must be halves or adjacent, got ", pairs);
  Call call(pack);
  const DevicePages pages = pages_on_device(call, k_pages, v_pages, k_type, v_type, page_table, n_past + int(rows));
  const bool in_place = !q_norm && u.shape(2) == dim;  // as the engine does
  float* projected = call.in_out(u.data(), u.size());
  float* q = in_place ? projected : call.out<float>(rows * n_heads * dim);
  pack.run(AttentionPrepare{.u = projected,
                            .q = q,
                            .k = call.in_out(k.data(), k.size()),
                            .v = call.in(v),
                            .q_norm = q_norm ? call.in(*q_norm) : nullptr,
                            .k_norm = k_norm ? call.in(*k_norm) : nullptr,
                            .cos = call.in(cos),
                            .sin = call.in(sin),
                            .cache = pages.cache,
                            .n_past = call.in(&n_past, 1),
                            .rows = int(rows),
                            .n_heads = int(n_heads),
                            .n_pairs = size(cos, 1),
                            .u_row_stride = long(n_heads * u.shape(2)),
                            .u_head_stride = long(u.shape(2)),
                            .eps = eps,
                            .pairs = pairs == "halves" ? RopePairs::kHalves : RopePairs::kAdjacent});
  const nb::tuple written = read_pages(call, pages);
  return nb::make_tuple(call.read(q, rows, n_heads, dim), written[0], written[1]);
}

nb::tuple kv_move(PythonPack& pack, Pages k_pages, Pages v_pages, const std::string& k_type, const std::string& v_type,
                  In<int32_t, 1> page_table, In<int32_t, 1> path, int n_past) {
  int last = -1;
  for (int j = 0; j < size(path, 0); ++j) {
    LB_CHECK(path.data()[j] > last && path.data()[j] < kMaxTree, kInvalid, "a path ascends to at most row ",
             kMaxTree - 1);
    last = path.data()[j];
  }
  Call call(pack);
  const DevicePages pages = pages_on_device(call, k_pages, v_pages, k_type, v_type, page_table, n_past + last + 1);
  const int32_t n = size(path, 0);
  const KvMove op{.cache = pages.cache, .accepted = {call.in(path), call.in(&n, 1)}, .n_past = call.in(&n_past, 1)};
  pack.run(op);
  return read_pages(call, pages);
}

// As the engine runs it, but twice into the same scratch, as a graph replays it. `gate`: the last head_dim values of
// each of its heads. `bits` of rounding by the merge: o, and the bytes of its rounded rows.
nb::object attention(PythonPack& pack, In<float, 3> q, Pages k_pages, Pages v_pages, const std::string& k_type,
                     const std::string& v_type, In<int32_t, 1> page_table, int n_past, float scale,
                     std::optional<In<float, 3>> gate, std::optional<In<uint64_t, 1>> ancestors, int bits) {
  const int rows = size(q, 0), n_heads = size(q, 1), head_dim = size(q, 2);
  Call call(pack);
  const DevicePages pages = pages_on_device(call, k_pages, v_pages, k_type, v_type, page_table, n_past + rows);
  LB_CHECK(pages.cache.head_dim == head_dim, kInvalid, "q has heads of ", head_dim, ", the cache of ",
           pages.cache.head_dim);
  const float* gates = nullptr;
  long gate_head = 0;
  if (gate) {
    LB_CHECK(size(*gate, 0) == rows && size(*gate, 1) == n_heads && size(*gate, 2) >= head_dim, kInvalid,
             "gate must be [", rows, ", ", n_heads, ", ", head_dim, " or more]");
    gate_head = size(*gate, 2);
    gates = call.in(*gate) + gate_head - head_dim;
  }
  if (ancestors) check_shape("ancestors", *ancestors, {q.shape(0)});
  float* o = call.out<float>(q.size());
  const Attention op{.q = call.in(q),
                     .gate = gates,
                     .o = o,
                     .cache = pages.cache,
                     .tree = {.parent = nullptr, .ancestors = ancestors ? call.in(*ancestors) : nullptr},
                     .n_past = call.in(&n_past, 1),
                     .rows = rows,
                     .n_heads = n_heads,
                     .gate_row_stride = gate_head * n_heads,
                     .gate_head_stride = gate_head,
                     .scale = scale};
  const int capacity = size(page_table, 0) * kPageTokens;
  const size_t scratch_bytes = gpu::attention_scratch_bytes(rows, n_heads, head_dim, capacity, pack.target());
  gpu::AttentionLaunches launches = gpu::choose(op, capacity, call.out<std::byte>(scratch_bytes), pack.target());
  const int n_in = n_heads * head_dim;
  const size_t bytes = bits == 0 ? 0 : rounded_bytes(rows, n_in, bits == 16);
  uint8_t* rounded = call.out<uint8_t>(bytes);
  if (bits > 0) {
    LB_CHECK(launches.n == 2 && gpu::can_round(op), kInvalid, "only merged splits of whole runs are rounded");
    launches.params.rounded = rounded_rows(rounded, rows, n_in, bits == 16);
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < launches.n; ++j) pack.run(launches.launches[j], launches.params);
  const nb::object result = call.read(o, q.shape(0), q.shape(1), q.shape(2));
  return bits == 0 ? result : nb::make_tuple(result, call.read(rounded, bytes));
}

// Keys or values between 1/2 and 1 of either sign: bits without a pattern, and no infinity or NaN.
gpu::Buffer random_pages(PythonPack& pack, DType type, size_t count, uint64_t seed) {
  const uint64_t keep = type == DType::kF16 ? 0x83ff'83ff'83ff'83ff : 0x807f'807f'807f'807f;
  const uint64_t exponents = type == DType::kF16 ? 0x3800'3800'3800'3800 : 0x3f00'3f00'3f00'3f00;
  gpu::Buffer buffer(pack.device(), count * info(type).block_bytes);
  std::vector<uint64_t> values((std::min<size_t>(buffer.size(), 64 << 20) + 7) / 8);
  for (uint64_t& value : values) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    value = type == DType::kF32 ? (seed & 0x807f'ffff'807f'ffff) | 0x3f00'0000'3f00'0000 : (seed & keep) | exponents;
  }
  const size_t piece = values.size() * 8;
  for (size_t at = 0; at < buffer.size(); at += piece)
    pack.stream().copy_to_device(buffer.data() + at, values.data(), std::min(piece, buffer.size() - at));
  pack.stream().synchronize();
  return buffer;
}

nb::dict time_attention(PythonPack& pack, const std::string& dtype, int rows, int n_heads, int n_kv_heads, int head_dim,
                        int n_past, int capacity, int sets, int replays, int tries) {
  LB_CHECK(sets >= 1 && replays >= 1 && tries >= 1, kInvalid, "sets, replays and tries must be at least 1");
  LB_CHECK(n_past >= 0 && n_past + rows <= capacity, kInvalid, "n_past and rows do not fit the capacity");
  const DType type = dtype_named(dtype);
  const int n_pages = (capacity + kPageTokens - 1) / kPageTokens;
  const size_t values = size_t(n_pages) * kPageTokens * n_kv_heads * head_dim,
               q_values = size_t(rows) * n_heads * head_dim;
  std::vector<int32_t> table(n_pages);
  for (int i = 0; i < n_pages; ++i) table[i] = n_pages - 1 - i;
  Call call(pack);
  const gpu::Buffer q = random_pages(pack, DType::kF32, q_values, 88172645463325252ull);
  float* o = call.out<float>(q_values);
  std::byte* scratch =
      call.out<std::byte>(gpu::attention_scratch_bytes(rows, n_heads, head_dim, capacity, pack.target()));
  const int32_t* device_table = call.in(table);
  const int32_t* device_n_past = call.in(&n_past, 1);
  std::deque<gpu::Buffer> memory;
  std::vector<gpu::AttentionLaunches> all;
  Attention op{};
  for (int set = 0; set < sets; ++set) {
    void* k = memory.emplace_back(random_pages(pack, type, values, 88172645463325252ull + set)).data();
    void* v = memory.emplace_back(random_pages(pack, type, values, 77172645463325252ull + set)).data();
    op = {.q = reinterpret_cast<const float*>(q.data()),
          .gate = nullptr,
          .o = o,
          .cache = {k, v, device_table, type, type, n_kv_heads, head_dim},
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

}  // namespace

void bind_gpu_attention(nb::module_& m) {
  m.def("kv_append", &kv_append, "pack"_a, "k"_a, "v"_a, "k_pages"_a, "v_pages"_a, "k_type"_a, "v_type"_a,
        "page_table"_a, "n_past"_a, "The bytes of the pages of K and of V after the append.");
  m.def("attention_prepare", &attention_prepare, "pack"_a, "u"_a, "k"_a, "v"_a, "q_norm"_a.none(), "k_norm"_a.none(),
        "cos"_a, "sin"_a, "k_pages"_a, "v_pages"_a, "k_type"_a, "v_type"_a, "page_table"_a, "n_past"_a, "eps"_a,
        "pairs"_a = "halves", "q, and the bytes of the pages of K and of V.");
  m.def("kv_move", &kv_move, "pack"_a, "k_pages"_a, "v_pages"_a, "k_type"_a, "v_type"_a, "page_table"_a, "path"_a,
        "n_past"_a, "The bytes of the pages of K and of V after the move.");
  m.def("attention", &attention, "pack"_a, "q"_a, "k_pages"_a, "v_pages"_a, "k_type"_a, "v_type"_a, "page_table"_a,
        "n_past"_a, "scale"_a, "gate"_a = nb::none(), "ancestors"_a = nb::none(), "bits"_a = 0,
        "The gate is the last head_dim values of each head of `gate`; the cache's capacity is the page table's. With "
        "bits, 8 or 16, also the bytes of the rounded rows.");
  m.def("time_attention", &time_attention, "pack"_a, "dtype"_a, "rows"_a, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a,
        "n_past"_a, "capacity"_a, "sets"_a = 1, "replays"_a = 20, "tries"_a = 5,
        "Seconds of the attention of a chain, its merge included, over `sets` rotated caches; the bytes that have to "
        "move, "
        "the flops of the slots its rows see, and the launch.");
}

}  // namespace lb
