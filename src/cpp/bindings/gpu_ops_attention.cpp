// Attention and the upkeep of the paged cache on the device of a pack. Pages come and go as numpy arrays, so that they
// can be compared bit by bit; the two functions that write a cache return its pages.
#include "bindings/bindings.h"
#include "bindings/gpu_call.h"

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
// each of its heads.
nb::object attention(PythonPack& pack, In<float, 3> q, Pages k_pages, Pages v_pages, const std::string& k_type,
                     const std::string& v_type, In<int32_t, 1> page_table, int n_past, float scale,
                     std::optional<In<float, 3>> gate, std::optional<In<uint64_t, 1>> ancestors) {
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
  const gpu::AttentionLaunches launches = gpu::choose(op, capacity, call.out<std::byte>(scratch_bytes), pack.target());
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < launches.n; ++j) pack.run(launches.launches[j], launches.params);
  return call.read(o, q.shape(0), q.shape(1), q.shape(2));
}

}  // namespace

void bind_gpu_attention(nb::module_& m) {
  m.def("kv_append", &kv_append, "pack"_a, "k"_a, "v"_a, "k_pages"_a, "v_pages"_a, "k_type"_a, "v_type"_a,
        "page_table"_a, "n_past"_a, "The bytes of the pages of K and of V after the append.");
  m.def("kv_move", &kv_move, "pack"_a, "k_pages"_a, "v_pages"_a, "k_type"_a, "v_type"_a, "page_table"_a, "path"_a,
        "n_past"_a, "The bytes of the pages of K and of V after the move.");
  m.def("attention", &attention, "pack"_a, "q"_a, "k_pages"_a, "v_pages"_a, "k_type"_a, "v_type"_a, "page_table"_a,
        "n_past"_a, "scale"_a, "gate"_a = nb::none(), "ancestors"_a = nb::none(),
        "The gate is the last head_dim values of each head of `gate`; the cache's capacity is the page table's.");
}

}  // namespace lb
