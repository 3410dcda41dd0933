// Chooses an op's kernel and geometry on a target that need not be installed, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/kernels/bindings.h"
#include "bindings/names.h"
#include "gpu/attention/choose.h"
#include "gpu/attention/choose_config.h"
#include "gpu/delta_net/choose.h"
#include "gpu/draft/choose.h"
#include "gpu/elementwise/choose.h"
#include "gpu/experts/choose.h"
#include "gpu/gemm/choose.h"
#include "gpu/gemm/choose_config.h"
#include "gpu/gemm_skinny/choose_config.h"
#include "gpu/gemv/choose.h"
#include "gpu/linear_group.h"
#include "gpu/sampling/choose.h"
#include "ops/operands.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
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

// Fills an op of which only the numbers matter: given numbers, else 0. Operands get an address that is never read.
class ShapeFields {
 public:
  explicit ShapeFields(const nb::kwargs& given) {
    for (const auto& [key, value] : given) given_[key] = value;
  }

  void scalar(const char* name, int& value) { value = number(name); }
  void scalar(const char* name, bool& value) { value = number(name) != 0; }
  void scalar(const char* name, DType& value) {
    if (const nb::object given = take(name); given.is_valid()) value = dtype_named(nb::cast<std::string>(given));
  }
  void scalar(const char* name, KvType& value) {
    if (const nb::object given = take(name); given.is_valid()) value = kv_type_named(nb::cast<std::string>(given));
  }
  void scalar(const char*, auto&) {}
  void stride(const char*, auto&) {}
  void in(const char*, auto*& p, Axes, Axes = {}) { put(p); }
  void out(const char*, auto*& p, Axes, Axes = {}) { put(p); }
  void in_out(const char*, auto*& p, Axes, Axes = {}) { put(p); }
  void optional_in(const char*, auto*&, Axes, Axes = {}) {}
  void optional_in_out(const char*, auto*& p, Axes) { put(p); }
  void indices(const char*, auto*& p, Axes, long, long) { put(p); }
  void optional_indices(const char*, auto*&, Axes, long, long) {}
  void weights(const char*, const void*& p, DType, int, int) { p = address(); }
  void pages(const char*, void*& p, KvType, int, int, Access) { p = address(); }
  void page_table(const char*, const int32_t*& p) { put(p); }
  void rounded(const char*, RoundedRows&, int, int) {}
  template <class T>
  void inside(T*& p, const char*, long offset) {
    p = static_cast<T*>(address()) + offset;
  }

  int number(const char* name) {
    const nb::object given = take(name);
    return given.is_valid() ? nb::cast<int>(given) : 0;
  }
  void check_all_used() const {
    for (const auto& [key, value] : given_)
      fail(ErrorCode::kInvalid, "the op has no number ", nb::cast<std::string>(key));
  }

 private:
  static void* address() { return reinterpret_cast<void*>(uintptr_t{4096}); }
  template <class T>
  static void put(T*& p) {
    p = static_cast<T*>(address());
  }
  nb::object take(const char* name) {
    if (!given_.contains(name)) return {};
    nb::object value = given_[name];
    nb::del(given_[name]);
    return value;
  }

  nb::dict given_;
};

std::vector<nb::dict> dicts_of(std::span<const gpu::Launch> launches) {
  std::vector<nb::dict> result;
  for (const gpu::Launch& launch : launches) result.push_back(dict_of(launch));
  return result;
}

std::vector<nb::dict> launches_of(const auto& op, int, const gpu::Target& target) {
  return {dict_of(gpu::choose(op, target))};
}
std::vector<nb::dict> launches_of(const Linear& op, int, const gpu::Target& target) {
  return {dict_of(gpu::choose(LinearGroup{{op}, 1}, {}, target).launches[0].launch)};
}
std::vector<nb::dict> launches_of(const MixExperts& op, int, const gpu::Target& target) {
  std::vector<nb::dict> launches;
  std::visit(
      [&](const auto& chosen) {
        gpu::for_each_launch(chosen,
                             [&](const gpu::Launch& launch, const auto&) { launches.push_back(dict_of(launch)); });
      },
      gpu::choose(op, nullptr, target));
  return launches;
}
std::vector<nb::dict> launches_of(const GatedDelta& op, int, const gpu::Target& target) {
  const gpu::DeltaLaunches chosen = gpu::choose(op, nullptr, target);
  return dicts_of({chosen.launches, size_t(chosen.n)});
}
std::vector<nb::dict> launches_of(const DeltaNet&, int, const gpu::Target&) {
  fail(ErrorCode::kUnsupported, "[delta_net] has no launch of its own");
}
std::vector<nb::dict> launches_of(const KvMove& op, int, const gpu::Target& target) {
  return {dict_of(gpu::choose(std::span(&op, 1), target).launch)};
}
std::vector<nb::dict> launches_of(const KeyScores& op, int, const gpu::Target& target) {
  return dicts_of(gpu::choose(op, target));
}
std::vector<nb::dict> launches_of(const TopTokens& op, int, const gpu::Target& target) {
  return dicts_of(gpu::choose(op, nullptr, target).launches);
}
std::vector<nb::dict> launches_of(const SelectCandidates& op, int, const gpu::Target& target) {
  return dicts_of(gpu::choose(op, nullptr, target).launches);
}
std::vector<nb::dict> launches_of(const Attention& op, int capacity, const gpu::Target& target) {
  const int head_dim = op.cache.head_dim;
  const gpu::AttentionLaunches chosen = gpu::choose(op, capacity, nullptr, target);
  const int n_splits = chosen.params.n_splits, per_split = n_splits > 1 ? head_dim + 2 : 2;  // o, m and l
  const size_t values = chosen.n > 1 ? size_t(n_splits) * op.rows * op.n_heads * per_split : 0;
  LB_CHECK(values * sizeof(float) <= gpu::attention_scratch_bytes(op.rows, op.n_heads, head_dim, capacity, target),
           kInternal, "attention_scratch_bytes is too little");
  std::vector<nb::dict> launches = dicts_of({chosen.launches, size_t(chosen.n)});
  launches[0]["config"] = to_string(gpu::attention_config(op, capacity, target));
  return launches;
}

std::vector<nb::dict> choose_op(const std::string& manifest_json, int n_sms, const std::string& name, int capacity,
                                const nb::kwargs& given) {
  const gpu::Target target = gpu::target_of(manifest_json, n_sms);
  return with_op(name, [&](auto op) {
    ShapeFields fields(given);
    operands(op, fields);
    fields.check_all_used();
    return launches_of(op, capacity, target);
  });
}

// `size`: the vocabulary, the tokens of the window, or the slots of the ring.
nb::dict choose_sampling(const std::string& manifest_json, int n_sms, const std::string& op, int size) {
  const gpu::Target target = gpu::target_of(manifest_json, n_sms);
  if (op == "sample") return dict_of(choose(Sample{.vocab = size}, nullptr, target).launch);
  if (op == "count_window") return dict_of(choose(CountWindow{.capacity = size}, target));
  if (op == "walk_tree") {  // of 64 rows
    const WalkTree walk{.choice = {.vocab = size}, .rows = kMaxTree, .ring = {.capacity = kMaxTree}};
    return dict_of(choose(walk, nullptr, target).launch);
  }
  if (op == "next_token") return dict_of(choose(NextToken{.ring = {.capacity = size}}, target));
  fail(ErrorCode::kInvalid, "no op \"", op, "\" of sampling");
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
                         .activations = activations_named(activations)};
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

nb::dict choose_gemm(const std::string& manifest_json, int n_sms, const std::vector<std::string>& dtypes,
                     const std::vector<int>& n_out, int n_in, int rows, const std::string& activations) {
  const LinearGroup group = group_of(dtypes, n_out, n_in, rows, activations);
  const gpu::Target target = gpu::target_of(manifest_json, n_sms);
  const gpu::GemmLaunches chosen = gpu::choose_gemm(group, {}, nullptr, nullptr, target);
  std::vector<nb::dict> launches;
  gpu::for_each_launch(chosen, [&](const gpu::Launch& launch, const auto&) { launches.push_back(dict_of(launch)); });
  nb::dict result;
  if (group.n == 1 && chosen.n_skinny > 0)
    result["config"] = to_string(gpu::skinny_config(group, gpu::Epilogue::kSums, target).value());
  else if (group.n == 1 && !chosen.gemms[0].expand)
    result["config"] = to_string(gpu::gemm_config(group, gpu::checked_text(group, "gemm"), target));
  result["launches"] = launches;
  result["rounded_bits"] = gpu::gemm_rounded_bits(group, target);
  result["scratch_bytes"] = gpu::gemm_scratch_bytes(group, target);
  return result;
}

}  // namespace

void bind_launch(nb::module_& m) {
  m.def(
      "choose", &choose_op, "manifest_json"_a, "n_sms"_a, "op"_a, "capacity"_a = 0, "fields"_a,
      "The launches of an op, by its numbers as src/cpp/ops/operands.h names them; those not given are 0. `capacity`: "
      "of an attention's cache; the partials of its splits are held to the scratch, and its config is given as text.");
  m.def("choose_sampling", &choose_sampling, "manifest_json"_a, "n_sms"_a, "op"_a, "size"_a,
        "The launch of sample, count_window or next_token.");
  m.def("choose_linear", &choose_linear, "manifest_json"_a, "n_sms"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a = 1,
        "activations"_a = "int8", "The launches of a group, one for each type in it.");
  m.def("choose_gemm", &choose_gemm, "manifest_json"_a, "n_sms"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a,
        "activations"_a = "int8",
        "The launches of a group of products with many rows, the bits its x is rounded to, its scratch memory; of one "
        "product that is not expanded also the config of its kernel, as text.");
}

}  // namespace lb::kernels
