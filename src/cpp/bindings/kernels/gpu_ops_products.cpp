// Runs and times weight products on a pack's device: `linear` is the GEMV of decoding, `matmul` the skinny GEMM or GEMM
// of several rows.
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

std::vector<nb::dict> linear_group(PythonPack& pack, const std::vector<nb::dict>& given) {
  ProductGroup products(pack, given);
  const Linear& first = products.first();
  run(pack, products.group(), static_cast<std::byte*>(products.scratch(rounded_bytes(first.rows, first.n_in, true))));
  return products.results();
}

uint32_t* arrived_counters(Call& call) { return static_cast<uint32_t*>(call.zeros(gpu::kSkinnyArrivedBytes)); }

std::vector<nb::dict> matmul_group(PythonPack& pack, const std::vector<nb::dict>& given) {
  ProductGroup products(pack, given);
  const LinearGroup& group = products.group();
  const Linear& first = products.first();
  RoundedRows x = {};
  if (const int bits = gpu::gemm_rounded_bits(group, pack.target())) {
    x = products.x_buffer(first, bits);
    run(pack, RoundRows{.x = first.x, .y = x, .rows = first.rows, .n_in = first.n_in});
  }
  void* scratch = products.scratch(gpu::gemm_scratch_bytes(group, pack.target()));
  Call call(pack);
  run_in_order(pack, gpu::choose_gemm(group, x, scratch, arrived_counters(call), pack.target()));
  return products.results();
}

// Defers the products, fuses `between` and sends all launches.
template <class Op>
void run_chain(PythonPack& pack, ProductGroup& products, DeviceOp<Op>& between, DeviceOp<Linear>& last) {
  const gpu::Target& target = pack.target();
  const LinearGroup& group = products.group();
  const LinearGroup readers{{last.op}, 1};
  const Linear& first = products.first();
  const RoundedRows x = products.x_buffer(first, gpu::skinny_x_bits(first));
  const RoundedRows next_x = products.x_buffer(last.op, gpu::skinny_x_bits(last.op));
  if (const auto narrow = gpu::choose_skinny_x(group, x.high, target))
    pack.run(narrow->launch, narrow->params);
  else
    run(pack, RoundRows{.x = first.x, .y = x, .rows = first.rows, .n_in = first.n_in});
  gpu::DeferredGemm chain;
  std::optional<gpu::SkinnyStep> fused;
  if (chain.begin(group, x, target)) fused = chain.try_fuse(between.op, readers, next_x, target);
  LB_CHECK(fused, kUnsupported, "the pack of ", target.name, " has no kernel for this chain");
  auto* partials = static_cast<std::byte*>(products.scratch(
      std::max(gpu::skinny_scratch(group, target).partials, gpu::skinny_scratch(readers, target).partials)));
  Call call(pack);
  uint32_t* arrived = arrived_counters(call);
  const auto start = [&](const gpu::SkinnyStep& step) {
    const gpu::SkinnyLaunch skinny = gpu::skinny_launch(step, partials, arrived, target);
    pack.run(skinny.launch, skinny.params);
  };
  start(*fused);
  std::ranges::for_each(chain.take(), start);
  pack.stream().synchronize();  // `call` frees its memory
}

// Skinny GEMMs of x, then a fused norm (of one) or gate (of two), then another product.
nb::tuple matmul_chain(PythonPack& pack, const std::vector<nb::dict>& given, const nb::dict& between,
                       const nb::dict& last) {
  ProductGroup products(pack, given);
  const LinearGroup& group = products.group();
  LB_CHECK(group.n <= 2, kInvalid, "a norm reads one product, a gate two; got ", group.n);
  const auto run_fused = [&](auto& op) {
    op.place();
    DeviceOp<Linear> reader(pack, "linear", last, {{"x", op.op.y}});
    reader.place();
    run_chain(pack, products, op, reader);
    return nb::make_tuple(products.results(), reader.fields.results());
  };
  if (group.n == 1) {
    DeviceOp<RmsNorm> norm(pack, "rms_norm", between, {{"x", group.products[0].y}});
    return run_fused(norm);
  }
  DeviceOp<SwiGlu> gate(pack, "swiglu", between, {{"gate", group.products[0].y}, {"up", group.products[1].y}});
  return run_fused(gate);
}

// Groups to time: `sets` of random weights, used in rotation, and one x.
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

  // Returns the seconds of run(group) and the bytes that it moves.
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
  // Numbers of magnitude 1 to 2: zeros would draw less power, so the clock and the speed would be higher.
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
  m.def("linear_group", &linear_group, "pack"_a, "products"_a,
        "Up to four products of one x, each by its fields as a linear, those of one type in one launch: the results of "
        "each.");
  m.def("matmul_group", &matmul_group, "pack"_a, "products"_a, "The same with many rows of x, on matrix units.");
  m.def("matmul_chain", &matmul_chain, "pack"_a, "products"_a, "between"_a, "last"_a,
        "Few rows: a product and an rms_norm of it, or two products and a swiglu of them, then the product `last` of "
        "that, each by its fields. `between` and the x of `last` have no memory that is read. The results of the "
        "products, and of `last`.");
  m.def("time_linear", &time_linear, "pack"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a = 1, "activations"_a = "int8",
        "sets"_a = 1, "replays"_a = 20, "tries"_a = 5,
        "Seconds of the mat-vec of x already rounded, over `sets` rotated sets of weights, the bytes it moves, and the "
        "launch.");
  m.def("time_matmul", &time_matmul, "pack"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a, "activations"_a = "int8",
        "sets"_a = 1, "replays"_a = 20, "tries"_a = 5,
        "Seconds of the product of x already rounded to 8 or 16 bits (16-bit numbers are made within the time), over "
        "`sets` rotated sets of weights, the bytes it moves, and the launch of its tiles.");
}

}  // namespace lb::kernels
