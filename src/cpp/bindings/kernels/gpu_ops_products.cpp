// Products with weights on the device of a pack: linear as the engine decodes (GEMV), matmul as it runs many rows
// (skinny GEMM and GEMM), and their times.
#include <random>
#include <span>

#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "bindings/kernels/gpu_timing.h"
#include "gpu/gemm/choose.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

void run_in_order(PythonPack& pack, const gpu::GemmLaunches& launches) {
  gpu::for_each_launch(launches, [&](const gpu::Launch& launch, const auto& params) { pack.run(launch, params); });
}

using Matrices = std::optional<std::vector<FloatMatrix>>;

// Products of one x on the device. `add` is given in the memory of y, as a residual is.
LinearGroup group_on_device(Call& call, const std::vector<Bytes>& weights, const std::vector<std::string>& dtypes,
                            const std::vector<int>& n_out, int n_in, FloatMatrix x, const Matrices& add,
                            const std::string& activations) {
  const size_t rows = x.shape(0);
  check_shape("x", x, {rows, size_t(n_in)});
  LB_CHECK(weights.size() == dtypes.size() && weights.size() == n_out.size() && (!add || add->size() == weights.size()),
           kInvalid, "weights, dtypes, n_out and add must be as many");
  LB_CHECK(weights.size() >= 1 && weights.size() <= kMaxProducts, kInvalid, "a group has 1 to ", kMaxProducts,
           " weights, got ", weights.size());
  LinearGroup group{};
  group.n = int(weights.size());
  const float* on_device = call.in(x);
  for (int i = 0; i < group.n; ++i) {
    const size_t outs = size_t(n_out[i]);
    if (add) check_shape("add", (*add)[i], {rows, outs});
    float* y = add ? call.in_out((*add)[i].data(), rows * outs) : call.out<float>(rows * outs);
    const DType type = dtype_named(dtypes[i]);
    group.products[i] = {.w = call.weights(weights[i], type, n_out[i], n_in),
                         .type = type,
                         .x = on_device,
                         .add = add ? y : nullptr,
                         .y = y,
                         .rows = int(rows),
                         .n_in = n_in,
                         .n_out = n_out[i],
                         .activations = activations_named(activations)};
  }
  return group;
}

std::vector<nb::object> read_results(Call& call, const LinearGroup& group) {
  std::vector<nb::object> results;
  for (const Linear& op : std::span(group.products, group.n))
    results.push_back(call.read(op.y, size_t(op.rows), size_t(op.n_out)));
  return results;
}

std::vector<nb::object> linear_group(PythonPack& pack, const std::vector<Bytes>& weights,
                                     const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in,
                                     FloatMatrix x, const Matrices& add, const std::string& activations) {
  Call call(pack);
  const LinearGroup group = group_on_device(call, weights, dtypes, n_out, n_in, x, add, activations);
  run(pack, group, call.out<std::byte>(rounded_bytes(size(x, 0), n_in, true)));
  return read_results(call, group);
}

std::vector<nb::object> matmul_group(PythonPack& pack, const std::vector<Bytes>& weights,
                                     const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in,
                                     FloatMatrix x, const Matrices& add, const std::string& activations) {
  Call call(pack);
  const LinearGroup group = group_on_device(call, weights, dtypes, n_out, n_in, x, add, activations);
  const int rows = size(x, 0);
  RoundedRows rounded = {};
  if (const int bits = gpu::gemm_rounded_bits(group, pack.target())) {
    rounded = rounded_rows(call.out<std::byte>(rounded_bytes(rows, n_in, bits == 16)), rows, n_in, bits == 16);
    run(pack, RoundRows{.x = group.products[0].x, .y = rounded, .rows = rows, .n_in = n_in});
  }
  void* scratch = call.out<std::byte>(gpu::gemm_scratch_bytes(group, pack.target()));
  auto* arrived = static_cast<uint32_t*>(call.zeros(gpu::kSkinnyArrivedBytes));
  run_in_order(pack, gpu::choose_gemm(group, rounded, scratch, arrived, pack.target()));
  return read_results(call, group);
}

nb::object matmul(PythonPack& pack, Bytes w, const std::string& dtype, int n_out, int n_in, FloatMatrix x,
                  const std::optional<FloatMatrix>& add, const std::string& activations) {
  Matrices adds;
  if (add) adds.emplace().push_back(*add);
  return matmul_group(pack, {w}, {dtype}, {n_out}, n_in, x, adds, activations)[0];
}

// Products of few rows of x, then a norm (of one) or a gate (of two), which has no launch of its own, then a product.
nb::tuple matmul_chain(PythonPack& pack, const std::vector<Bytes>& weights, const std::string& dtype, int n_out,
                       int n_in, FloatMatrix x, const std::optional<FloatMatrix>& add,
                       const std::optional<In<float, 1>>& norm, float eps, Bytes last, const std::string& last_dtype,
                       int n_last) {
  const int rows = int(x.shape(0));
  check_shape("x", x, {size_t(rows), size_t(n_in)});
  LB_CHECK(weights.size() == (norm ? 1 : 2), kInvalid, "a norm reads one product, a gate two; got ", weights.size());
  if (add) check_shape("add", *add, {size_t(rows), size_t(n_out)});
  if (norm) check_shape("norm", *norm, {size_t(n_out)});
  Call call(pack);
  const size_t n_between = size_t(rows) * n_out;
  const auto product = [&](Bytes w, const std::string& of, const float* from, float* y, int n, int n_from) {
    const DType type = dtype_named(of);
    return Linear{.w = call.weights(w, type, n, n_from),
                  .type = type,
                  .x = from,
                  .add = nullptr,
                  .y = y,
                  .rows = rows,
                  .n_in = n_from,
                  .n_out = n,
                  .activations = Activations::kInt8};
  };
  const float* on_device = call.in(x);
  LinearGroup group{}, readers{};
  for (const Bytes& w : weights) {
    float* y = add ? call.in_out(add->data(), n_between) : call.out<float>(n_between);
    group.products[group.n++] = product(w, dtype, on_device, y, n_out, n_in);
    if (add) group.products[group.n - 1].add = y;
  }
  float* between = call.out<float>(n_between);
  float* y = call.out<float>(size_t(rows) * n_last);
  readers.products[readers.n++] = product(last, last_dtype, between, y, n_last, n_out);

  const auto rounded_for = [&](const Linear& reader) {
    const bool is_16_bit = gpu::skinny_x_bits(reader) == 16;
    auto* memory = call.out<std::byte>(rounded_bytes(rows, reader.n_in, is_16_bit));
    return rounded_rows(memory, rows, reader.n_in, is_16_bit);
  };
  const RoundedRows rounded_x = rounded_for(group.products[0]), next_x = rounded_for(readers.products[0]);
  const size_t pieces = std::max(gpu::skinny_scratch(group, pack.target()).partials,
                                 gpu::skinny_scratch(readers, pack.target()).partials);
  auto* scratch = call.out<std::byte>(pieces);
  auto* arrived = static_cast<uint32_t*>(call.zeros(gpu::kSkinnyArrivedBytes));
  if (const auto narrow = gpu::choose_skinny_x(group, rounded_x.high, pack.target()))
    pack.run(narrow->launch, narrow->params);
  else
    run(pack, RoundRows{.x = on_device, .y = rounded_x, .rows = rows, .n_in = n_in});
  gpu::DeferredGemm chain;
  std::optional<gpu::SkinnyStep> first;
  if (chain.begin(group, rounded_x, pack.target())) {
    if (norm)
      first = chain.try_fuse(RmsNorm{.x = group.products[0].y,
                                     .w = call.in(*norm),
                                     .y = between,
                                     .rows = rows,
                                     .heads = 1,
                                     .dim = n_out,
                                     .row_stride = n_out,
                                     .head_stride = 0,
                                     .eps = eps},
                             readers, next_x, pack.target());
    else
      first = chain.try_fuse(SwiGlu{group.products[0].y, group.products[1].y, between, rows, n_out}, readers, next_x,
                             pack.target());
  }
  LB_CHECK(first, kUnsupported, "the pack of ", pack.target().name, " has no kernel for this chain");
  const auto start = [&](const gpu::SkinnyStep& step) {
    const gpu::SkinnyLaunch few = gpu::skinny_launch(step, scratch, arrived, pack.target());
    pack.run(few.launch, few.params);
  };
  start(*first);
  std::ranges::for_each(chain.take(), start);
  return nb::make_tuple(call.read(group.products[0].y, size_t(rows), size_t(n_out)),
                        call.read(y, size_t(rows), size_t(n_last)));
}

// Groups to time: `sets` of random weights, which take turns, and one x.
class TimedGroups {
 public:
  // x: [rows, n_in]; empty: zeros.
  TimedGroups(PythonPack& pack, const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in,
              int rows, const std::string& activations, int sets, std::span<const uint32_t> x)
      : x_(pack.device(), size_t(rows) * n_in * sizeof(float)) {
    LB_CHECK(dtypes.size() == n_out.size() && !dtypes.empty() && dtypes.size() <= kMaxProducts, kInvalid,
             "one n_out for each of 1 to ", kMaxProducts, " dtypes");
    LB_CHECK(sets >= 1, kInvalid, "sets must be at least 1");
    if (x.empty())
      pack.stream().fill(x_.data(), 0, x_.size());
    else
      pack.stream().copy_to_device(x_.data(), x.data(), x_.size());
    pack.stream().synchronize();
    for (int set = 0; set < sets; ++set) {
      LinearGroup group{};
      group.n = int(dtypes.size());
      for (int i = 0; i < group.n; ++i) {
        const DType type = dtype_named(dtypes[i]);
        const size_t bytes = quant::checked_plane_layout(type, n_out[i], n_in).bytes;
        const gpu::Buffer& w = memory_.emplace_back(random_buffer(pack, bytes, 88172645463325252ull + set));
        const gpu::Buffer& y = memory_.emplace_back(pack.device(), size_t(rows) * n_out[i] * sizeof(float));
        group.products[i] = {.w = w.data(),
                             .type = type,
                             .x = reinterpret_cast<const float*>(x_.data()),
                             .add = nullptr,
                             .y = reinterpret_cast<float*>(y.data()),
                             .rows = rows,
                             .n_in = n_in,
                             .n_out = n_out[i],
                             .activations = activations_named(activations)};
      }
      groups_.push_back(group);
    }
  }

  const LinearGroup& first() const { return groups_[0]; }

  // Seconds of run(group), the bytes it moves.
  template <class Run>
  nb::dict time(PythonPack& pack, int replays, int tries, Run&& run) const {
    LB_CHECK(replays >= 1 && tries >= 1, kInvalid, "replays and tries must be at least 1");
    const double seconds = time_on_device(pack, replays, tries, [&] { std::ranges::for_each(groups_, run); });
    pack.take_started();
    nb::dict result;
    result["seconds"] = seconds / double(groups_.size());
    result["bytes"] = gpu::bytes_of(first());
    return result;
  }

 private:
  gpu::Buffer x_;
  std::deque<gpu::Buffer> memory_;
  std::vector<LinearGroup> groups_;
};

nb::dict time_linear(PythonPack& pack, const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in,
                     int rows, const std::string& activations, int sets, int replays, int tries) {
  const TimedGroups groups(pack, dtypes, n_out, n_in, rows, activations, sets, {});
  const gpu::Buffer rounded(pack.device(), rounded_bytes(rows, n_in, true));
  run(pack, groups.first(), rounded.data());
  const RoundedRows x = rounded_rows(rounded.data(), rows, n_in, gpu::rounded_bits(groups.first()) == 16);
  nb::dict result = groups.time(pack, replays, tries, [&](const LinearGroup& group) { run_rounded(pack, group, x); });
  result["launch"] = pack.last();
  return result;
}

nb::dict time_matmul(PythonPack& pack, const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in,
                     int rows, const std::string& activations, int sets, int replays, int tries) {
  // Numbers of magnitude 1 to 2: zeros would take less power, and with it less time.
  std::vector<uint32_t> numbers(size_t(rows) * n_in);
  std::minstd_rand random(1);
  for (uint32_t& number : numbers) number = 0x3f800000u | (uint32_t(random()) & 0x7fffffu) | uint32_t(random()) << 31;
  const TimedGroups groups(pack, dtypes, n_out, n_in, rows, activations, sets, numbers);
  const LinearGroup& first = groups.first();
  const gpu::Buffer rounded(pack.device(), rounded_bytes(rows, n_in, true));
  RoundedRows x = {};
  if (const int bits = gpu::gemm_rounded_bits(first, pack.target())) {
    x = rounded_rows(rounded.data(), rows, n_in, bits == 16);
    run(pack, RoundRows{.x = first.products[0].x, .y = x, .rows = rows, .n_in = n_in});
  }
  const size_t scratch_bytes = gpu::gemm_scratch_bytes(first, pack.target());
  const gpu::Buffer scratch(pack.device(), std::max<size_t>(scratch_bytes, 16));
  const gpu::Buffer arrived_memory(pack.device(), gpu::kSkinnyArrivedBytes);
  pack.stream().fill(arrived_memory.data(), 0, arrived_memory.size());
  auto* arrived = reinterpret_cast<uint32_t*>(arrived_memory.data());
  const auto choose = [&](const LinearGroup& group) {
    return gpu::choose_gemm(group, x, scratch.data(), arrived, pack.target());
  };
  nb::dict result =
      groups.time(pack, replays, tries, [&](const LinearGroup& group) { run_in_order(pack, choose(group)); });
  const gpu::GemmLaunches launches = choose(first);
  result["launch"] = gpu::to_string(launches.n_skinny ? launches.skinny[0].launch : launches.gemms[0].tiles);
  result["scratch_bytes"] = scratch_bytes;
  return result;
}

}  // namespace

void bind_gpu_products(nb::module_& m) {
  m.def("linear_group", &linear_group, "pack"_a, "weights"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "x"_a,
        "add"_a = nb::none(), "activations"_a = "int8",
        "Up to four products of one x, those of one type in one launch.");
  m.def("time_linear", &time_linear, "pack"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a = 1, "activations"_a = "int8",
        "sets"_a = 1, "replays"_a = 20, "tries"_a = 5,
        "Seconds of the mat-vec of x already rounded, over `sets` rotated sets of weights, the bytes it moves, and the "
        "launch.");
  m.def("matmul", &matmul, "pack"_a, "w"_a, "dtype"_a, "n_out"_a, "n_in"_a, "x"_a, "add"_a = nb::none(),
        "activations"_a = "int8", "The product with many rows of x, on matrix units.");
  m.def("matmul_group", &matmul_group, "pack"_a, "weights"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "x"_a,
        "add"_a = nb::none(), "activations"_a = "int8",
        "Up to four products of one x, those of one type in one launch.");
  m.def("matmul_chain", &matmul_chain, "pack"_a, "weights"_a, "dtype"_a, "n_out"_a, "n_in"_a, "x"_a, "add"_a.none(),
        "norm"_a.none(), "eps"_a, "last"_a, "last_dtype"_a, "n_last"_a,
        "Few rows: (x w^T + add, the product of `last` with its norm), or with `norm` None and two weights (NaN, the "
        "product of `last` with silu(x w0^T) * x w1^T).");
  m.def("time_matmul", &time_matmul, "pack"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a, "activations"_a = "int8",
        "sets"_a = 1, "replays"_a = 20, "tries"_a = 5,
        "Seconds of the product of x already rounded to 8 or 16 bits (16-bit numbers are made within the time), over "
        "`sets` rotated sets of weights, the bytes it moves, and the launch of its tiles.");
}

}  // namespace lb::kernels
