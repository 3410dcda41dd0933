// The functions of gpu_ops for recurrent layers, and the rope table. States come back as new arrays.
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings/bindings.h"
#include "bindings/gpu_call.h"
#include "dispatch/gpu_stream.h"
#include "gpu/delta_net/choose.h"

using namespace nanobind::literals;

namespace lb {
namespace {

using Indices = std::optional<In<int32_t, 1>>;
using Masks = std::optional<In<uint64_t, 1>>;

Accepted accepted_of(Call& call, const Indices& path) {
  if (!path) return {nullptr, nullptr};
  LB_CHECK(path->size() <= kMaxTree, kInvalid, "at most ", kMaxTree, " rows can be accepted, got ", path->size());
  for (size_t i = 0; i < path->size(); ++i)
    LB_CHECK(path->data()[i] >= 0 && path->data()[i] < kMaxTree, kInvalid, "accepted row ", path->data()[i],
             " is not in [0, ", kMaxTree, ")");
  const int32_t n = size(*path, 0);
  return {call.in(*path), call.in(&n, 1)};
}

Tree tree_of(Call& call, const Indices& parent, const Masks& ancestors, size_t rows) {
  if (parent) check_shape("parent", *parent, {rows});
  if (ancestors) check_shape("ancestors", *ancestors, {rows});
  return {parent ? call.in(*parent) : nullptr, ancestors ? call.in(*ancestors) : nullptr};
}

std::tuple<nb::object, nb::object> rope_table(PythonPack& pack, In<int32_t, 2> pos, In<uint8_t, 1> axis,
                                              In<float, 1> inv_freq) {
  const size_t rows = pos.shape(1), n_pairs = axis.shape(0);
  check_shape("pos", pos, {3, rows});
  check_shape("inv_freq", inv_freq, {n_pairs});
  for (size_t i = 0; i < n_pairs; ++i)
    LB_CHECK(axis.data()[i] < 3, kInvalid, "an axis is 0, 1 or 2, got ", int(axis.data()[i]));
  Call call(pack);
  float* cos = call.out<float>(rows * n_pairs);
  float* sin = call.out<float>(rows * n_pairs);
  const RopeTable op{.pos = call.in(pos),
                     .axis = call.in(axis),
                     .inv_freq = call.in(inv_freq),
                     .cos = cos,
                     .sin = sin,
                     .rows = int(rows),
                     .n_pairs = int(n_pairs)};
  pack.run(gpu::choose(op, pack.target()), op);
  return {call.read(cos, rows, n_pairs), call.read(sin, rows, n_pairs)};
}

std::tuple<nb::object, nb::object, nb::object> causal_conv(PythonPack& pack, FloatMatrix x, FloatMatrix w,
                                                           FloatMatrix history, FloatMatrix pending, Indices accepted,
                                                           Indices parent) {
  const size_t rows = x.shape(0), channels = x.shape(1), n_taps = w.shape(1);
  check_shape("w", w, {channels, n_taps});
  check_shape("history", history, {n_taps - 1, channels});
  check_shape("pending", pending, {size_t(kMaxTree), channels});
  Call call(pack);
  float* y = call.out<float>(x.size());
  const CausalConv op{.x = call.in(x),
                      .w = call.in(w),
                      .history = call.in_out(history.data(), history.size()),
                      .pending = call.in_out(pending.data(), pending.size()),
                      .y = y,
                      .accepted = accepted_of(call, accepted),
                      .tree = tree_of(call, parent, std::nullopt, rows),
                      .rows = int(rows),
                      .channels = int(channels),
                      .n_taps = int(n_taps)};
  pack.run(gpu::choose(op, pack.target()), op);
  return {call.read(y, rows, channels), call.read(op.history, n_taps - 1, channels),
          call.read(op.pending, size_t(kMaxTree), channels)};
}

// qk: rows of `row_stride` values, q and k first.
DeltaPrepare prepare_of(Call& call, float* qk, size_t rows, size_t row_stride, FloatMatrix g, FloatMatrix beta,
                        In<float, 1> a_neg, In<float, 1> dt_bias, int n_k_heads, int dk, float eps) {
  const size_t n_v_heads = a_neg.shape(0);
  check_shape("g", g, {rows, n_v_heads});
  check_shape("beta", beta, {rows, n_v_heads});
  check_shape("dt_bias", dt_bias, {n_v_heads});
  return {.q = qk,
          .k = qk + size_t(n_k_heads) * dk,
          .g = call.in_out(g.data(), g.size()),
          .beta = call.in_out(beta.data(), beta.size()),
          .a_neg = call.in(a_neg),
          .dt_bias = call.in(dt_bias),
          .rows = int(rows),
          .n_k_heads = n_k_heads,
          .n_v_heads = int(n_v_heads),
          .dk = dk,
          .row_stride = long(row_stride),
          .eps = eps};
}

// qk: q and k side by side, and whatever follows them in a row.
std::tuple<nb::object, nb::object, nb::object> delta_prepare(PythonPack& pack, FloatMatrix qk, FloatMatrix g,
                                                             FloatMatrix beta, In<float, 1> a_neg, In<float, 1> dt_bias,
                                                             int n_k_heads, int dk, float eps) {
  const size_t rows = qk.shape(0), n_v_heads = a_neg.shape(0), keys = size_t(n_k_heads) * dk;
  LB_CHECK(n_k_heads >= 1 && dk >= 1 && 2 * keys <= qk.shape(1), kInvalid, "rows of qk are too short");
  Call call(pack);
  float* q = call.in_out(qk.data(), qk.size());
  const DeltaPrepare op = prepare_of(call, q, rows, qk.shape(1), g, beta, a_neg, dt_bias, n_k_heads, dk, eps);
  pack.run(gpu::choose(op, pack.target()), op);
  return {call.read(q, rows, qk.shape(1)), call.read(op.g, rows, n_v_heads), call.read(op.beta, rows, n_v_heads)};
}

DeltaInputs inputs_of(Call& call, FloatMatrix x, FloatMatrix w, FloatMatrix history, FloatMatrix pending, FloatMatrix g,
                      FloatMatrix beta, In<float, 1> a_neg, In<float, 1> dt_bias, int n_k_heads, int dk, float eps,
                      const Accepted& accepted, const Tree& tree) {
  const size_t rows = x.shape(0), channels = x.shape(1), n_taps = w.shape(1);
  check_shape("w", w, {channels, n_taps});
  check_shape("history", history, {n_taps - 1, channels});
  check_shape("pending", pending, {size_t(kMaxTree), channels});
  float* y = call.out<float>(x.size());
  return {.conv = {.x = call.in(x),
                   .w = call.in(w),
                   .history = call.in_out(history.data(), history.size()),
                   .pending = call.in_out(pending.data(), pending.size()),
                   .y = y,
                   .accepted = accepted,
                   .tree = tree,
                   .rows = int(rows),
                   .channels = int(channels),
                   .n_taps = int(n_taps)},
          .prepare = prepare_of(call, y, rows, channels, g, beta, a_neg, dt_bias, n_k_heads, dk, eps)};
}

// The convolution, whose first channels are prepared as q and k: y, history, pending, g and beta after it.
std::tuple<nb::object, nb::object, nb::object, nb::object, nb::object> delta_inputs(
    PythonPack& pack, FloatMatrix x, FloatMatrix w, FloatMatrix history, FloatMatrix pending, FloatMatrix g,
    FloatMatrix beta, In<float, 1> a_neg, In<float, 1> dt_bias, int n_k_heads, int dk, float eps, Indices accepted,
    Indices parent) {
  Call call(pack);
  const DeltaInputs op = inputs_of(call, x, w, history, pending, g, beta, a_neg, dt_bias, n_k_heads, dk, eps,
                                   accepted_of(call, accepted), tree_of(call, parent, std::nullopt, x.shape(0)));
  pack.run(gpu::choose(op, pack.target()), op);
  const size_t channels = x.shape(1), n_v_heads = a_neg.shape(0);
  return {call.read(op.conv.y, x.shape(0), channels), call.read(op.conv.history, history.shape(0), channels),
          call.read(op.conv.pending, size_t(kMaxTree), channels), call.read(op.prepare.g, x.shape(0), n_v_heads),
          call.read(op.prepare.beta, x.shape(0), n_v_heads)};
}

// What a layer keeps from append to append, but for the convolution's part. Shapes follow from k_pending and delta.
GatedDelta delta_of(Call& call, const float* qkv, const float* g, const float* beta, size_t rows, In<float, 3> S,
                    In<float, 4> k_pending, In<float, 3> cs_pending, In<float, 3> delta, int buffer,
                    const Accepted& accepted, const Tree& tree, const std::string& order) {
  const size_t KH = k_pending.shape(2), dk = k_pending.shape(3), VH = delta.shape(1), dv = delta.shape(2),
               cap = kMaxTree;
  LB_CHECK(order == "grouped" || order == "tiled", kInvalid, "order must be grouped or tiled, got ", order);
  LB_CHECK(buffer == 0 || buffer == 1, kInvalid, "buffer must be 0 or 1, got ", buffer);
  check_shape("S", S, {VH, dk, dv});
  check_shape("k_pending", k_pending, {2, cap, KH, dk});
  check_shape("cs_pending", cs_pending, {2, cap, VH});
  check_shape("delta", delta, {cap, VH, dv});
  float* keys = call.in_out(k_pending.data(), k_pending.size());
  float* cs = call.in_out(cs_pending.data(), cs_pending.size());
  const int32_t filled = 1 - buffer;  // flip turns it back
  return {.q = qkv,
          .k = qkv + KH * dk,
          .v = qkv + 2 * KH * dk,
          .g = g,
          .beta = beta,
          .o = call.out<float>(rows * VH * dv),
          .S = call.in_out(S.data(), S.size()),
          .k_pending = {keys, keys + k_pending.size() / 2},
          .cs_pending = {cs, cs + cs_pending.size() / 2},
          .delta = call.in_out(delta.data(), delta.size()),
          .buffer = call.in(&filled, 1),
          .flip = 1,
          .accepted = accepted,
          .tree = tree,
          .rows = int(rows),
          .n_k_heads = int(KH),
          .n_v_heads = int(VH),
          .dk = int(dk),
          .dv = int(dv),
          .row_stride = long(2 * KH * dk + VH * dv),
          .order = order == "grouped" ? HeadOrder::kGrouped : HeadOrder::kTiled};
}

// S, k_pending, cs_pending and delta after it.
nb::tuple read_state(Call& call, const GatedDelta& op) {
  const size_t KH = op.n_k_heads, dk = op.dk, VH = op.n_v_heads, dv = op.dv, cap = kMaxTree;
  return nb::make_tuple(call.read(op.S, VH, dk, dv), call.read(op.k_pending[0], size_t(2), cap, KH, dk),
                        call.read(op.cs_pending[0], size_t(2), cap, VH), call.read(op.delta, cap, VH, dv));
}

// qkv: prepared q and k and v side by side in a row.
nb::tuple gated_delta(PythonPack& pack, FloatMatrix qkv, FloatMatrix g, FloatMatrix beta, In<float, 3> S,
                      In<float, 4> k_pending, In<float, 3> cs_pending, In<float, 3> delta, int buffer, Indices accepted,
                      Indices parent, Masks ancestors, const std::string& order) {
  const size_t rows = qkv.shape(0), VH = delta.shape(1), dv = delta.shape(2);
  check_shape("qkv", qkv, {rows, 2 * k_pending.shape(2) * k_pending.shape(3) + VH * dv});
  check_shape("g", g, {rows, VH});
  check_shape("beta", beta, {rows, VH});
  Call call(pack);
  const GatedDelta op = delta_of(call, call.in(qkv), call.in(g), call.in(beta), rows, S, k_pending, cs_pending, delta,
                                 buffer, accepted_of(call, accepted), tree_of(call, parent, ancestors, rows), order);
  float* work = call.out<float>(gpu::gated_delta_scratch_bytes(op, pack.target()) / sizeof(float));
  const gpu::DeltaLaunches launches = gpu::choose(op, work, pack.target());
  for (int i = 0; i < launches.n; ++i) pack.run(launches.launches[i], launches.params);
  return nb::tuple(nb::make_tuple(call.read(op.o, rows, VH, dv)) + read_state(call, op));
}

// All that lies between a recurrent layer's projections, and the last of these, as the engine sends them.
nb::tuple delta_net(PythonPack& pack, FloatMatrix x, FloatMatrix w, FloatMatrix history, FloatMatrix pending,
                    FloatMatrix g, FloatMatrix beta, In<float, 1> a_neg, In<float, 1> dt_bias, In<float, 3> S,
                    In<float, 4> k_pending, In<float, 3> cs_pending, In<float, 3> delta, int buffer, FloatMatrix z,
                    In<float, 1> norm_w, float eps, Bytes last, const std::string& last_dtype, int n_last,
                    Indices accepted, Indices parent, Masks ancestors, const std::string& order) {
  const size_t rows = x.shape(0), KH = k_pending.shape(2), dk = k_pending.shape(3), VH = delta.shape(1),
               dv = delta.shape(2), n_in = VH * dv;
  check_shape("x", x, {rows, 2 * KH * dk + n_in});
  check_shape("a_neg", a_neg, {VH});
  check_shape("z", z, {rows, n_in});
  check_shape("norm_w", norm_w, {dv});
  Call call(pack);
  const Accepted taken = accepted_of(call, accepted);
  const Tree tree = tree_of(call, parent, ancestors, rows);
  DeltaNet op;
  op.inputs = inputs_of(call, x, w, history, pending, g, beta, a_neg, dt_bias, int(KH), int(dk), eps, taken, tree);
  op.delta = delta_of(call, op.inputs.conv.y, op.inputs.prepare.g, op.inputs.prepare.beta, rows, S, k_pending,
                      cs_pending, delta, buffer, taken, tree, order);
  float* o = op.delta.o;
  op.norm = {o, call.in(z), call.in(norm_w), o, int(rows), int(VH), int(dv), eps};
  const DType type = dtype_named(last_dtype);
  float* y = call.out<float>(rows * n_last);
  const LinearGroup readers = {{{.w = call.weights(last, type, n_last, int(n_in)),
                                 .type = type,
                                 .x = o,
                                 .add = nullptr,
                                 .y = y,
                                 .rows = int(rows),
                                 .n_in = int(n_in),
                                 .n_out = n_last,
                                 .activations = Activations::kInt8}},
                               1};
  pack.stream().synchronize();  // the engine's stream is another
  GpuStream stream(pack.shared(),
                   gpu::gemm_scratch_at(readers.products[0], 16) +
                       gpu::gemm_scratch_bytes(readers, pack.target()) +
                       gpu::gated_delta_scratch_bytes(op.delta, pack.target()),
                   kMaxTree);
  nb::dict started;
  for (const gpu::KernelTime& time : stream.time_kernels([&] { run_fused(op, readers, stream); }))
    started[time.kernel.c_str()] = time.launches;
  return nb::tuple(nb::make_tuple(call.read(y, rows, size_t(n_last)), started,
                                  call.read(op.inputs.conv.history, history.shape(0), x.shape(1)),
                                  call.read(op.inputs.conv.pending, size_t(kMaxTree), x.shape(1))) +
                   read_state(call, op.delta));
}

}  // namespace

void bind_gpu_delta(nb::module_& m) {
  m.def("rope_table", &rope_table, "pack"_a, "pos"_a, "axis"_a, "inv_freq"_a);
  m.def("causal_conv", &causal_conv, "pack"_a, "x"_a, "w"_a, "history"_a, "pending"_a, "accepted"_a = nb::none(),
        "parent"_a = nb::none(), "y and the state after it: history, pending.");
  m.def("delta_prepare", &delta_prepare, "pack"_a, "qk"_a, "g"_a, "beta"_a, "a_neg"_a, "dt_bias"_a, "n_k_heads"_a,
        "dk"_a, "eps"_a, "qk, g and beta, prepared.");
  m.def("delta_inputs", &delta_inputs, "pack"_a, "x"_a, "w"_a, "history"_a, "pending"_a, "g"_a, "beta"_a, "a_neg"_a,
        "dt_bias"_a, "n_k_heads"_a, "dk"_a, "eps"_a, "accepted"_a = nb::none(), "parent"_a = nb::none(),
        "Of one row, or more of the usual shape: y with q and k prepared, and the state after it: history, pending, "
        "then g and beta.");
  m.def("gated_delta", &gated_delta, "pack"_a, "qkv"_a, "g"_a, "beta"_a, "S"_a, "k_pending"_a, "cs_pending"_a,
        "delta"_a, "buffer"_a = 0, "accepted"_a = nb::none(), "parent"_a = nb::none(), "ancestors"_a = nb::none(),
        "order"_a = "grouped", "o and the state after it: S, k_pending, cs_pending, delta.");
  m.def("delta_net", &delta_net, "pack"_a, "x"_a, "w"_a, "history"_a, "pending"_a, "g"_a, "beta"_a, "a_neg"_a,
        "dt_bias"_a, "S"_a, "k_pending"_a, "cs_pending"_a, "delta"_a, "buffer"_a, "z"_a, "norm_w"_a, "eps"_a, "last"_a,
        "last_dtype"_a, "n_last"_a, "accepted"_a = nb::none(), "parent"_a = nb::none(), "ancestors"_a = nb::none(),
        "order"_a = "grouped",
        "As the engine runs it: the product of `last` with the norm of o, launches of each kernel, and the state after "
        "it: history, pending, S, k_pending, cs_pending, delta.");
}

}  // namespace lb
