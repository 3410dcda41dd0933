// The choice of kernel and geometry for an op on a target that need not be here, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/bindings.h"
#include "gpu/attention/choose.h"
#include "gpu/delta_net/choose.h"
#include "gpu/elementwise/choose.h"
#include "gpu/gemm/choose.h"
#include "gpu/gemv/choose.h"
#include "gpu/sampling/choose.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

nb::dict dict_of(const gpu::Launch& launch) {
  nb::dict result;
  result["kernel"] = launch.kernel;
  result["grid"] = nb::make_tuple(launch.grid[0], launch.grid[1], launch.grid[2]);
  result["block"] = nb::make_tuple(launch.block[0], launch.block[1], launch.block[2]);
  result["shared_bytes"] = launch.shared_bytes;
  result["cooperative"] = launch.cooperative;
  result["overlap_previous"] = launch.overlap_previous;
  result["text"] = gpu::to_string(launch);
  return result;
}

DType dtype_named(const std::string& text) {
  const auto type = dtype_from_name(text);
  LB_CHECK(type, kInvalid, "unknown element type \"", text, "\"");
  return *type;
}

gpu::Launch choose_named(const std::string& op, const gpu::Target& target, int rows, int heads, int dim) {
  if (op == "rms_norm") return choose(RmsNorm{.rows = rows, .heads = heads, .dim = dim}, target);
  if (op == "gated_rms_norm") return choose(GatedRmsNorm{.rows = rows, .heads = heads, .dim = dim}, target);
  if (op == "rope") return choose(Rope{.rows = rows, .heads = heads, .dim = dim, .n_pairs = dim / 2}, target);
  if (op == "rope_table") return choose(RopeTable{.rows = rows, .n_pairs = dim}, target);
  if (op == "causal_conv") return choose(CausalConv{.rows = rows, .channels = dim, .n_taps = 4}, target);
  if (op == "delta_prepare")
    return choose(DeltaPrepare{.rows = rows, .n_k_heads = heads, .n_v_heads = heads, .dk = dim}, target);
  if (op == "attention_prepare")
    return choose(
        AttentionPrepare{.cache = {.k_type = DType::kF16, .v_type = DType::kF16, .n_kv_heads = heads, .head_dim = dim},
                         .rows = rows,
                         .n_heads = 3 * heads,
                         .n_pairs = dim / 2},
        target);
  if (op == "delta_inputs") {
    std::vector<float> y(size_t(4) * heads * dim);
    return choose(DeltaInputs{.conv = {.y = y.data(), .rows = rows, .channels = int(y.size()), .n_taps = 4},
                              .prepare = {.q = y.data(),
                                          .k = y.data() + size_t(heads) * dim,
                                          .rows = rows,
                                          .n_k_heads = heads,
                                          .n_v_heads = heads,
                                          .dk = dim,
                                          .row_stride = long(y.size())}},
                  target);
  }
  if (op == "swiglu") return choose(SwiGlu{.rows = rows, .dim = dim}, target);
  if (op == "sample") return choose(Sample{.vocab = dim}, nullptr, target).launch;
  if (op == "count_window") return choose(CountWindow{.capacity = dim}, target);
  if (op == "next_token") return choose(NextToken{.ring = {.capacity = rows}}, target);
  fail(ErrorCode::kInvalid, "no op \"", op, "\" here");
}

nb::dict choose_rows(const std::string& manifest_json, int n_sms, const std::string& op, int rows, int dim, int heads) {
  return dict_of(choose_named(op, gpu::target_of(manifest_json, n_sms), rows, heads, dim));
}

nb::dict choose_embed(const std::string& manifest_json, int n_sms, const std::string& dtype, int vocab, int dim,
                      int rows) {
  const Embed op{.type = dtype_named(dtype), .rows = rows, .dim = dim, .vocab = vocab};
  return dict_of(choose(op, gpu::target_of(manifest_json, n_sms)));
}

LinearGroup group_of(const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in, int rows,
                     const std::string& activations) {
  LB_CHECK(dtypes.size() == n_out.size() && dtypes.size() <= kMaxProducts, kInvalid, "one n_out for each of up to ",
           kMaxProducts, " dtypes");
  LinearGroup group{};
  group.n = int(dtypes.size());
  for (int i = 0; i < group.n; ++i)
    group.products[i] = {.type = dtype_named(dtypes[i]),
                         .rows = rows,
                         .n_in = n_in,
                         .n_out = n_out[i],
                         .activations = activations == "int8" ? Activations::kInt8 : Activations::kF32};
  return group;
}

std::vector<nb::dict> choose_linear(const std::string& manifest_json, int n_sms, const std::vector<std::string>& dtypes,
                                    const std::vector<int>& n_out, int n_in, int rows, const std::string& activations) {
  const LinearGroup group = group_of(dtypes, n_out, n_in, rows, activations);
  const gpu::GemvLaunches vecs = gpu::choose(group, {}, gpu::target_of(manifest_json, n_sms));
  std::vector<nb::dict> launches;
  for (int i = 0; i < vecs.n; ++i) launches.push_back(dict_of(vecs.launches[i].launch));
  return launches;
}

std::vector<nb::dict> choose_delta(const std::string& manifest_json, int n_sms, int rows, int n_k_heads, int n_v_heads,
                                   int dk, int dv) {
  const GatedDelta op{.rows = rows,
                      .n_k_heads = n_k_heads,
                      .n_v_heads = n_v_heads,
                      .dk = dk,
                      .dv = dv,
                      .row_stride = 2L * n_k_heads * dk + long(n_v_heads) * dv};
  const gpu::DeltaLaunches chosen = gpu::choose(op, nullptr, gpu::target_of(manifest_json, n_sms));
  std::vector<nb::dict> launches;
  for (int i = 0; i < chosen.n; ++i) launches.push_back(dict_of(chosen.launches[i]));
  return launches;
}

std::vector<nb::dict> choose_attention(const std::string& manifest_json, int n_sms, const std::string& k_type,
                                       const std::string& v_type, int rows, int n_heads, int n_kv_heads, int head_dim,
                                       int capacity) {
  const gpu::Target target = gpu::target_of(manifest_json, n_sms);
  const Attention op{.cache = {.k_type = dtype_named(k_type),
                               .v_type = dtype_named(v_type),
                               .n_kv_heads = n_kv_heads,
                               .head_dim = head_dim},
                     .rows = rows,
                     .n_heads = n_heads};
  const gpu::AttentionLaunches chosen = gpu::choose(op, capacity, nullptr, target);
  const size_t values = chosen.n > 1 ? size_t(chosen.params.n_splits) * rows * n_heads * (head_dim + 2) : 0;
  LB_CHECK(values * sizeof(float) <= gpu::attention_scratch_bytes(rows, n_heads, head_dim, capacity, target), kInternal,
           "attention_scratch_bytes is too little");
  std::vector<nb::dict> launches;
  for (int i = 0; i < chosen.n; ++i) launches.push_back(dict_of(chosen.launches[i]));
  return launches;
}

nb::dict choose_gemm(const std::string& manifest_json, int n_sms, const std::vector<std::string>& dtypes,
                      const std::vector<int>& n_out, int n_in, int rows, const std::string& activations) {
  const LinearGroup group = group_of(dtypes, n_out, n_in, rows, activations);
  const gpu::Target target = gpu::target_of(manifest_json, n_sms);
  std::vector<nb::dict> launches;
  gpu::for_each_launch(gpu::choose_gemm(group, {}, nullptr, nullptr, target),
                [&](const gpu::Launch& launch, const auto&) { launches.push_back(dict_of(launch)); });
  nb::dict result;
  result["launches"] = launches;
  result["rounded_bits"] = gpu::gemm_rounded_bits(group, target);
  result["scratch_bytes"] = gpu::gemm_scratch_bytes(group, target);
  return result;
}

}  // namespace

void bind_launch(nb::module_& m) {
  m.def("choose", &choose_rows, "manifest_json"_a, "n_sms"_a, "op"_a, "rows"_a, "dim"_a, "heads"_a = 1,
        "The launch of an op on rows, as a dict.");
  m.def("choose_embed", &choose_embed, "manifest_json"_a, "n_sms"_a, "dtype"_a, "vocab"_a, "dim"_a, "rows"_a = 1);
  m.def("choose_linear", &choose_linear, "manifest_json"_a, "n_sms"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a = 1,
        "activations"_a = "int8", "The launches of a group, one for each type in it.");
  m.def("choose_delta", &choose_delta, "manifest_json"_a, "n_sms"_a, "rows"_a, "n_k_heads"_a, "n_v_heads"_a, "dk"_a,
        "dv"_a, "The launches of a gated_delta, in their order.");
  m.def("choose_attention", &choose_attention, "manifest_json"_a, "n_sms"_a, "k_type"_a, "v_type"_a, "rows"_a,
        "n_heads"_a, "n_kv_heads"_a, "head_dim"_a, "capacity"_a,
        "The attention, and the merge of its splits where there are any. Their partials are held to the scratch.");
  m.def("choose_gemm", &choose_gemm, "manifest_json"_a, "n_sms"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a,
        "activations"_a = "int8",
        "The launches of a group of products with many rows, the bits its x is rounded to, its scratch memory.");
}

}  // namespace lb
