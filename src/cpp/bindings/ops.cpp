// Single ops on numpy arrays. Results are new arrays, filled with NaN before the op so that a value it forgets shows;
// caches and recurrent states are arrays of the caller, changed in place.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/bindings.h"
#include "cpu/cpu_stream.h"
#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

template <class T, int kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <int kDims>
using State = nb::ndarray<float, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <int kDims>
using Strided = nb::ndarray<const float, nb::ndim<kDims>, nb::device::cpu>;  // last axis contiguous
template <int kDims>
using StridedState = nb::ndarray<float, nb::ndim<kDims>, nb::device::cpu>;
template <int kDims>
using Out = nb::ndarray<nb::numpy, float, nb::ndim<kDims>>;
using Indices = std::optional<In<int32_t, 1>>;
using Masks = std::optional<In<uint64_t, 1>>;

template <int kDims>
Out<kDims> fresh(std::initializer_list<size_t> shape) {
  size_t count = 1;
  for (size_t n : shape) count *= n;
  auto* data = new float[count];
  std::fill_n(data, count, std::numeric_limits<float>::quiet_NaN());
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return Out<kDims>(data, shape, owner);
}

template <class Array>
void check_shape(const char* what, const Array& array, std::initializer_list<size_t> shape) {
  bool same = array.ndim() == shape.size();
  for (size_t i = 0; same && i < shape.size(); ++i) same = array.shape(i) == shape.begin()[i];
  if (same) return;
  std::string expected, found;
  for (size_t n : shape) expected += (expected.empty() ? "" : ", ") + std::to_string(n);
  for (size_t i = 0; i < array.ndim(); ++i) found += (i ? ", " : "") + std::to_string(array.shape(i));
  fail(ErrorCode::kInvalid, what, " must have shape [", expected, "], got [", found, "]");
}

template <class Array>
void check_last_axis(const char* what, const Array& array) {
  LB_CHECK(array.stride(array.ndim() - 1) == 1, kInvalid, what, " must be contiguous along its last axis");
}

// The stride of an axis of one element means nothing, and numpy leaves any number there.
template <class Array>
bool has_packed_heads(const Array& array, int64_t row_stride) {
  const auto has_stride = [&](int axis, int64_t stride) {
    return array.shape(axis) == 1 || array.stride(axis) == stride;
  };
  return has_stride(0, row_stride) && has_stride(1, int64_t(array.shape(2))) && has_stride(2, 1);
}

int size(const auto& array, int axis) { return static_cast<int>(array.shape(axis)); }

Isa isa_named(const std::string& text) {
  if (text == "auto") return best_isa();
  for (Isa isa : {Isa::kScalar, Isa::kPortable, Isa::kAvx2, Isa::kAvx512})
    if (name(isa) == text) return isa;
  fail(ErrorCode::kInvalid, "isa must be auto, scalar, portable, avx2 or avx512, got ", text);
}

CpuStream stream_of(const std::string& isa, int threads, size_t shared_bytes = 0, size_t thread_bytes = 0) {
  return CpuStream(CpuStreamOptions{.n_threads = threads,
                                    .isa = isa_named(isa),
                                    .shared_scratch_bytes = shared_bytes,
                                    .thread_scratch_bytes = thread_bytes});
}

Tree tree_of(const Indices& parent, const Masks& ancestors, int rows) {
  if (parent) check_shape("parent", *parent, {size_t(rows)});
  if (ancestors) check_shape("ancestors", *ancestors, {size_t(rows)});
  LB_CHECK(!(parent || ancestors) || rows <= kMaxTree, kInvalid, "a tree has at most ", kMaxTree, " rows, got ", rows);
  return {parent ? parent->data() : nullptr, ancestors ? ancestors->data() : nullptr};
}

// An Accepted that points into Python's array and into itself.
struct AcceptedRows {
  int32_t n = 0;
  const int32_t* path = nullptr;
  explicit AcceptedRows(const Indices& path);
  Accepted view() const { return {path, &n}; }
};

AcceptedRows::AcceptedRows(const Indices& rows) {
  if (!rows) return;
  LB_CHECK(rows->shape(0) <= kMaxTree, kInvalid, "at most ", kMaxTree, " rows can be accepted, got ", rows->shape(0));
  for (size_t i = 0; i < rows->shape(0); ++i)
    LB_CHECK(rows->data()[i] >= 0 && rows->data()[i] < kMaxTree, kInvalid, "accepted row ", rows->data()[i],
             " is not in [0, ", kMaxTree, ")");
  path = rows->data();
  n = size(*rows, 0);
}

// Pages as arrays of float32 or of 16-bit patterns.
using Pages = nb::ndarray<nb::ndim<4>, nb::c_contig, nb::device::cpu>;

DType cache_type(const std::string& text, const Pages& pages) {
  const auto type = dtype_from_name(text);
  LB_CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kBF16, kInvalid,
           "a cache type is F32, F16 or BF16, got ", text);
  LB_CHECK(pages.itemsize() == info(*type).block_bytes, kInvalid, "pages of ", text, " need ", info(*type).block_bytes,
           " bytes a value, got ", pages.itemsize());
  return *type;
}

KvLayer cache_of(const Pages& k, const Pages& v, const std::string& k_type, const std::string& v_type,
                 const In<int32_t, 1>& page_table, int n_slots) {
  for (const Pages* pages : {&k, &v})
    check_shape("pages", *pages, {k.shape(0), k.shape(1), size_t(kPageTokens), k.shape(3)});
  LB_CHECK(k.shape(3) % 8 == 0, kInvalid, "head_dim must be a multiple of 8, got ", k.shape(3));
  LB_CHECK(n_slots <= size(page_table, 0) * kPageTokens, kInvalid, "the page table holds ",
           page_table.shape(0) * kPageTokens, " slots, ", n_slots, " are needed");
  for (size_t i = 0; i < page_table.shape(0); ++i)
    LB_CHECK(page_table.data()[i] >= 0 && page_table.data()[i] < size(k, 0), kInvalid, "page ", page_table.data()[i],
             " is not in [0, ", k.shape(0), ")");
  return {k.data(), v.data(), page_table.data(), cache_type(k_type, k), cache_type(v_type, v), size(k, 1), size(k, 3)};
}

Out<3> rms_norm(Strided<3> x, In<float, 1> w, float eps, const std::string& isa, int threads) {
  check_shape("w", w, {x.shape(2)});
  check_last_axis("x", x);
  Out<3> y = fresh<3>({x.shape(0), x.shape(1), x.shape(2)});
  CpuStream stream = stream_of(isa, threads);
  run(RmsNorm{.x = x.data(),
              .w = w.data(),
              .y = y.data(),
              .rows = size(x, 0),
              .heads = size(x, 1),
              .dim = size(x, 2),
              .row_stride = x.stride(0),
              .head_stride = x.stride(1),
              .eps = eps},
      stream);
  return y;
}

Out<3> gated_rms_norm(In<float, 3> o, In<float, 3> z, In<float, 1> w, float eps, const std::string& isa, int threads) {
  check_shape("z", z, {o.shape(0), o.shape(1), o.shape(2)});
  check_shape("w", w, {o.shape(2)});
  Out<3> y = fresh<3>({o.shape(0), o.shape(1), o.shape(2)});
  CpuStream stream = stream_of(isa, threads);
  run(GatedRmsNorm{.o = o.data(),
                   .z = z.data(),
                   .w = w.data(),
                   .y = y.data(),
                   .rows = size(o, 0),
                   .heads = size(o, 1),
                   .dim = size(o, 2),
                   .eps = eps},
      stream);
  return y;
}

Out<2> swiglu(In<float, 2> gate, In<float, 2> up, const std::string& isa, int threads) {
  check_shape("up", up, {gate.shape(0), gate.shape(1)});
  Out<2> y = fresh<2>({gate.shape(0), gate.shape(1)});
  CpuStream stream = stream_of(isa, threads);
  run(SwiGlu{.gate = gate.data(), .up = up.data(), .y = y.data(), .rows = size(gate, 0), .dim = size(gate, 1)}, stream);
  return y;
}

std::tuple<Out<2>, Out<2>> rope_table(In<int32_t, 2> pos, In<uint8_t, 1> axis, In<float, 1> inv_freq, int threads) {
  check_shape("pos", pos, {3, pos.shape(1)});
  check_shape("inv_freq", inv_freq, {axis.shape(0)});
  for (size_t i = 0; i < axis.shape(0); ++i)
    LB_CHECK(axis.data()[i] < 3, kInvalid, "an axis is 0, 1 or 2, got ", int(axis.data()[i]));
  Out<2> cos = fresh<2>({pos.shape(1), axis.shape(0)});
  Out<2> sin = fresh<2>({pos.shape(1), axis.shape(0)});
  CpuStream stream = stream_of("auto", threads);
  run(RopeTable{.pos = pos.data(),
                .axis = axis.data(),
                .inv_freq = inv_freq.data(),
                .cos = cos.data(),
                .sin = sin.data(),
                .rows = size(pos, 1),
                .n_pairs = size(axis, 0)},
      stream);
  return {cos, sin};
}

Out<3> rope(In<float, 3> x, In<float, 2> cos, In<float, 2> sin, const std::string& pairs, const std::string& isa,
            int threads) {
  LB_CHECK(pairs == "halves" || pairs == "adjacent", kInvalid, "pairs must be halves or adjacent, got ", pairs);
  LB_CHECK(2 * cos.shape(1) <= x.shape(2), kInvalid, "cannot rotate ", cos.shape(1), " pairs of a head of ",
           x.shape(2));
  check_shape("cos", cos, {x.shape(0), cos.shape(1)});
  check_shape("sin", sin, {x.shape(0), cos.shape(1)});
  Out<3> y = fresh<3>({x.shape(0), x.shape(1), x.shape(2)});
  std::copy_n(x.data(), x.size(), y.data());
  CpuStream stream = stream_of(isa, threads);
  run(Rope{.x = y.data(),
           .cos = cos.data(),
           .sin = sin.data(),
           .rows = size(x, 0),
           .heads = size(x, 1),
           .dim = size(x, 2),
           .n_pairs = size(cos, 1),
           .pairs = pairs == "halves" ? RopePairs::kHalves : RopePairs::kAdjacent},
      stream);
  return y;
}

void kv_append(In<float, 3> k, In<float, 3> v, Pages k_pages, Pages v_pages, const std::string& k_type,
               const std::string& v_type, In<int32_t, 1> page_table, int n_past, const std::string& isa, int threads) {
  check_shape("k", k, {k.shape(0), k_pages.shape(1), k_pages.shape(3)});
  check_shape("v", v, {k.shape(0), k_pages.shape(1), k_pages.shape(3)});
  const KvLayer cache = cache_of(k_pages, v_pages, k_type, v_type, page_table, n_past + size(k, 0));
  CpuStream stream = stream_of(isa, threads);
  run(KvAppend{.k = k.data(), .v = v.data(), .cache = cache, .n_past = &n_past, .rows = size(k, 0)}, stream);
}

void kv_move(Pages k_pages, Pages v_pages, const std::string& k_type, const std::string& v_type,
             In<int32_t, 1> page_table, In<int32_t, 1> path, int n_past) {
  int last = -1;
  for (size_t i = 0; i < path.shape(0); ++i) last = std::max(last, path.data()[i]);
  const KvLayer cache = cache_of(k_pages, v_pages, k_type, v_type, page_table, n_past + last + 1);
  CpuStream stream = stream_of("auto", 1);
  const int32_t n = size(path, 0);
  run(KvMove{.cache = cache, .accepted = {path.data(), &n}, .n_past = &n_past}, stream);
}

Out<3> attention(In<float, 3> q, Pages k_pages, Pages v_pages, const std::string& k_type, const std::string& v_type,
                 In<int32_t, 1> page_table, int n_past, float scale, std::optional<Strided<3>> gate, Indices parent,
                 Masks ancestors, const std::string& isa, int threads) {
  const int rows = size(q, 0), n_heads = size(q, 1), head_dim = size(q, 2);
  const KvLayer cache = cache_of(k_pages, v_pages, k_type, v_type, page_table, n_past + rows);
  LB_CHECK(cache.head_dim == head_dim && n_heads % cache.n_kv_heads == 0, kInvalid, "q [", rows, ", ", n_heads, ", ",
           head_dim, "] does not fit a cache of ", cache.n_kv_heads, " heads of ", cache.head_dim);
  if (gate) check_shape("gate", *gate, {q.shape(0), q.shape(1), q.shape(2)}), check_last_axis("gate", *gate);
  Out<3> o = fresh<3>({q.shape(0), q.shape(1), q.shape(2)});
  CpuStream stream = stream_of(isa, threads, attention_shared_scratch(rows, n_heads, head_dim, n_past + rows),
                               attention_thread_scratch(head_dim, n_heads, cache.n_kv_heads));
  run(Attention{.q = q.data(),
                .gate = gate ? gate->data() : nullptr,
                .o = o.data(),
                .cache = cache,
                .tree = tree_of(parent, ancestors, rows),
                .n_past = &n_past,
                .rows = rows,
                .n_heads = n_heads,
                .gate_row_stride = gate ? gate->stride(0) : 0,
                .gate_head_stride = gate ? gate->stride(1) : 0,
                .scale = scale},
      stream);
  return o;
}

Out<2> causal_conv(In<float, 2> x, In<float, 2> w, State<2> history, State<2> pending, Indices accepted, Indices parent,
                   const std::string& isa, int threads) {
  const int rows = size(x, 0);
  LB_CHECK(rows <= kMaxTree, kInvalid, "at most ", kMaxTree, " rows, got ", rows);
  LB_CHECK(w.shape(1) >= 2 && w.shape(1) <= 8, kInvalid, "2 to 8 taps, got ", w.shape(1));
  check_shape("w", w, {x.shape(1), w.shape(1)});
  check_shape("history", history, {w.shape(1) - 1, x.shape(1)});
  check_shape("pending", pending, {size_t(kMaxTree), x.shape(1)});
  Out<2> y = fresh<2>({x.shape(0), x.shape(1)});
  CpuStream stream = stream_of(isa, threads);
  const AcceptedRows folded(accepted);
  run(CausalConv{.x = x.data(),
                 .w = w.data(),
                 .history = history.data(),
                 .pending = pending.data(),
                 .y = y.data(),
                 .accepted = folded.view(),
                 .tree = tree_of(parent, std::nullopt, rows),
                 .rows = rows,
                 .channels = size(x, 1),
                 .n_taps = size(w, 1)},
      stream);
  return y;
}

void delta_prepare(StridedState<3> q, StridedState<3> k, State<2> g, State<2> beta, In<float, 1> a_neg,
                   In<float, 1> dt_bias, float eps, const std::string& isa, int threads) {
  check_shape("k", k, {q.shape(0), q.shape(1), q.shape(2)});
  check_shape("g", g, {q.shape(0), a_neg.shape(0)});
  check_shape("beta", beta, {q.shape(0), a_neg.shape(0)});
  check_shape("dt_bias", dt_bias, {a_neg.shape(0)});
  for (const auto* array : {&q, &k})
    LB_CHECK(has_packed_heads(*array, q.stride(0)), kInvalid,
             "the heads of q and k must be contiguous and their rows equally far apart");
  CpuStream stream = stream_of(isa, threads);
  run(DeltaPrepare{.q = q.data(),
                   .k = k.data(),
                   .g = g.data(),
                   .beta = beta.data(),
                   .a_neg = a_neg.data(),
                   .dt_bias = dt_bias.data(),
                   .rows = size(q, 0),
                   .n_k_heads = size(q, 1),
                   .n_v_heads = size(g, 1),
                   .dk = size(q, 2),
                   .row_stride = q.stride(0),
                   .eps = eps},
      stream);
}

Out<3> gated_delta(Strided<3> q, Strided<3> k, Strided<3> v, In<float, 2> g, In<float, 2> beta, State<3> S,
                   State<3> k_in, State<3> k_out, State<3> delta, State<2> cs_in, State<2> cs_out, Indices accepted,
                   Indices parent, Masks ancestors, const std::string& order, const std::string& isa, int threads) {
  const size_t rows = q.shape(0), KH = q.shape(1), VH = v.shape(1), dk = q.shape(2), dv = v.shape(2), cap = kMaxTree;
  LB_CHECK(rows <= cap, kInvalid, "at most ", cap, " rows, got ", rows);
  LB_CHECK(KH > 0 && VH % KH == 0 && dk % 8 == 0 && dv % 8 == 0, kInvalid,
           "value heads must be a multiple of key heads and dims of 8, got ", VH, " and ", KH, ", ", dk, " and ", dv);
  LB_CHECK(order == "grouped" || order == "tiled", kInvalid, "order must be grouped or tiled, got ", order);
  LB_CHECK(k_in.data() != k_out.data() && cs_in.data() != cs_out.data(), kInvalid,
           "k_in and k_out must be two arrays, and so must cs_in and cs_out");
  check_shape("k", k, {rows, KH, dk});
  check_shape("v", v, {rows, VH, dv});
  check_shape("g", g, {rows, VH});
  check_shape("beta", beta, {rows, VH});
  check_shape("S", S, {VH, dk, dv});
  check_shape("k_in", k_in, {cap, KH, dk});
  check_shape("k_out", k_out, {cap, KH, dk});
  check_shape("delta", delta, {cap, VH, dv});
  check_shape("cs_in", cs_in, {cap, VH});
  check_shape("cs_out", cs_out, {cap, VH});
  for (const auto* array : {&q, &k, &v})
    LB_CHECK(rows == 0 || has_packed_heads(*array, q.stride(0)), kInvalid,
             "the heads of q, k and v must be contiguous and their rows equally far apart");
  Out<3> o = fresh<3>({rows, VH, dv});
  CpuStream stream = stream_of(isa, threads, 0, delta_thread_scratch(dk, dv));
  const AcceptedRows folded(accepted);
  const int32_t buffer = 0;
  run(GatedDelta{.q = q.data(),
                 .k = k.data(),
                 .v = v.data(),
                 .g = g.data(),
                 .beta = beta.data(),
                 .o = o.data(),
                 .S = S.data(),
                 .k_pending = {k_in.data(), k_out.data()},
                 .cs_pending = {cs_in.data(), cs_out.data()},
                 .delta = delta.data(),
                 .buffer = &buffer,
                 .flip = 0,
                 .accepted = folded.view(),
                 .tree = tree_of(parent, ancestors, int(rows)),
                 .rows = int(rows),
                 .n_k_heads = int(KH),
                 .n_v_heads = int(VH),
                 .dk = int(dk),
                 .dv = int(dv),
                 .row_stride = q.stride(0),
                 .order = order == "grouped" ? HeadOrder::kGrouped : HeadOrder::kTiled},
      stream);
  return o;
}

}  // namespace

void bind_ops(nb::module_& m) {
  m.def("rms_norm", &rms_norm, "x"_a, "w"_a, "eps"_a, "isa"_a = "auto", "threads"_a = 1);
  m.def("gated_rms_norm", &gated_rms_norm, "o"_a, "z"_a, "w"_a, "eps"_a, "isa"_a = "auto", "threads"_a = 1);
  m.def("swiglu", &swiglu, "gate"_a, "up"_a, "isa"_a = "auto", "threads"_a = 1);
  m.def("rope_table", &rope_table, "pos"_a, "axis"_a, "inv_freq"_a, "threads"_a = 1);
  m.def("rope", &rope, "x"_a, "cos"_a, "sin"_a, "pairs"_a = "halves", "isa"_a = "auto", "threads"_a = 1);
  m.def("kv_append", &kv_append, "k"_a, "v"_a, "k_pages"_a.noconvert(), "v_pages"_a.noconvert(), "k_type"_a, "v_type"_a,
        "page_table"_a, "n_past"_a, "isa"_a = "auto", "threads"_a = 1);
  m.def("kv_move", &kv_move, "k_pages"_a.noconvert(), "v_pages"_a.noconvert(), "k_type"_a, "v_type"_a, "page_table"_a,
        "path"_a, "n_past"_a);
  m.def("attention", &attention, "q"_a, "k_pages"_a.noconvert(), "v_pages"_a.noconvert(), "k_type"_a, "v_type"_a,
        "page_table"_a, "n_past"_a, "scale"_a, "gate"_a = nb::none(), "parent"_a = nb::none(),
        "ancestors"_a = nb::none(), "isa"_a = "auto", "threads"_a = 1);
  m.def("causal_conv", &causal_conv, "x"_a, "w"_a, "history"_a.noconvert(), "pending"_a.noconvert(),
        "accepted"_a = nb::none(), "parent"_a = nb::none(), "isa"_a = "auto", "threads"_a = 1);
  m.def("delta_prepare", &delta_prepare, "q"_a.noconvert(), "k"_a.noconvert(), "g"_a.noconvert(), "beta"_a.noconvert(),
        "a_neg"_a, "dt_bias"_a, "eps"_a, "isa"_a = "auto", "threads"_a = 1);
  m.def("gated_delta", &gated_delta, "q"_a, "k"_a, "v"_a, "g"_a, "beta"_a, "S"_a.noconvert(), "k_in"_a.noconvert(),
        "k_out"_a.noconvert(), "delta"_a.noconvert(), "cs_in"_a.noconvert(), "cs_out"_a.noconvert(),
        "accepted"_a = nb::none(), "parent"_a = nb::none(), "ancestors"_a = nb::none(), "order"_a = "grouped",
        "isa"_a = "auto", "threads"_a = 1);
  bind_ops_linear(m);
  bind_ops_rows(m);
}

}  // namespace lb
