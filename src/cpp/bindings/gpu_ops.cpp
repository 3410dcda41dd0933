// The functions of gpu_ops: one op each, run on the device of a pack.
#include "bindings/bindings.h"
#include "bindings/gpu_call.h"
#include "bindings/gpu_timing.h"
#include "device/graph.h"
#include "quant/repack.h"

using namespace nanobind::literals;

namespace lb {
namespace {

void start(PythonPack& pack, OpFields&, const auto& op, const RoundedRows&) { pack.run(op); }

// Twice into the same scratch, as a graph replays it. The cache's capacity is the page table's.
void start(PythonPack& pack, OpFields& fields, const Attention& op, const RoundedRows& rounded) {
  const int capacity = int(fields.size("page_table")) * kPageTokens, dim = op.cache.head_dim;
  void* scratch = fields.scratch(gpu::attention_scratch_bytes(op.rows, op.n_heads, dim, capacity, pack.target()));
  gpu::AttentionLaunches launches = gpu::choose(op, capacity, scratch, pack.target());
  LB_CHECK(!rounded.high || (launches.n == 2 && gpu::can_round(op)), kInvalid,
           "only merged splits of whole blocks are rounded");
  launches.params.rounded = rounded;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < launches.n; ++j) pack.run(launches.launches[j], launches.params);
}

void start(PythonPack& pack, OpFields& fields, const GatedDelta& op, const RoundedRows&) {
  void* scratch = fields.scratch(gpu::gated_delta_scratch_bytes(op, pack.target()));
  const gpu::DeltaLaunches launches = gpu::choose(op, static_cast<float*>(scratch), pack.target());
  for (int i = 0; i < launches.n; ++i) pack.run(launches.launches[i], launches.params);
}

nb::dict run_op(PythonPack& pack, const std::string& name, const nb::kwargs& given) {
  return with_op(name, [&](auto op) {
    DeviceMemory memory(pack);
    OpFields fields(memory, name, given);
    operands(op, fields);
    RoundedRows merged{};
    if constexpr (std::is_same_v<decltype(op), Attention>)
      fields.rounded("rounded", merged, op.rows, op.n_heads * op.cache.head_dim);
    fields.place();
    check_slots(op, fields);
    start(pack, fields, op, merged);
    return fields.results();
  });
}

// `add` is given in the memory of y, as a residual is.
std::vector<nb::object> linear_group(PythonPack& pack, const std::vector<Bytes>& weights,
                                     const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in,
                                     FloatMatrix x, const std::optional<std::vector<FloatMatrix>>& add,
                                     const std::string& activations) {
  const size_t rows = x.shape(0);
  check_shape("x", x, {rows, size_t(n_in)});
  LB_CHECK(weights.size() == dtypes.size() && weights.size() == n_out.size() && (!add || add->size() == weights.size()),
           kInvalid, "weights, dtypes, n_out and add must be as many");
  LB_CHECK(weights.size() >= 1 && weights.size() <= kMaxProducts, kInvalid, "a group has 1 to ", kMaxProducts,
           " weights, got ", weights.size());
  Call call(pack);
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
  pack.run(group, call.out<std::byte>(rounded_bytes(int(rows), n_in, true)));
  std::vector<nb::object> results;
  for (int i = 0; i < group.n; ++i) results.push_back(call.read(group.products[i].y, rows, size_t(n_out[i])));
  return results;
}

nb::object linear(PythonPack& pack, Bytes w, const std::string& dtype, int n_out, int n_in, FloatMatrix x,
                  const std::optional<FloatMatrix>& add, const std::string& activations) {
  std::optional<std::vector<FloatMatrix>> adds;
  if (add) adds.emplace().push_back(*add);
  return linear_group(pack, {w}, {dtype}, {n_out}, n_in, x, adds, activations)[0];
}

nb::object read_memory(PythonPack& pack, Bytes x) {
  Call call(pack);
  const size_t n_blocks = size_t(gpu::read_blocks(pack.target()));
  uint32_t* sums = call.out<uint32_t>(n_blocks);
  pack.run(ReadMemory{.x = call.in(x), .bytes = x.size(), .sums = sums});
  return call.read(sums, n_blocks);
}

nb::dict time_linear(PythonPack& pack, const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in,
                     int rows, const std::string& activations, int sets, int replays, int tries) {
  LB_CHECK(dtypes.size() == n_out.size() && !dtypes.empty() && dtypes.size() <= kMaxProducts, kInvalid,
           "one n_out for each of 1 to ", kMaxProducts, " dtypes");
  LB_CHECK(sets >= 1 && replays >= 1 && tries >= 1, kInvalid, "sets, replays and tries must be at least 1");
  const gpu::Buffer x(pack.device(), size_t(rows) * n_in * sizeof(float));
  pack.stream().fill(x.data(), 0, x.size());
  std::deque<gpu::Buffer> memory;
  std::vector<LinearGroup> groups;
  for (int set = 0; set < sets; ++set) {
    LinearGroup group{};
    group.n = int(dtypes.size());
    for (int i = 0; i < group.n; ++i) {
      const DType type = dtype_named(dtypes[i]);
      const size_t bytes = quant::checked_plane_layout(type, n_out[i], n_in).bytes;
      const gpu::Buffer& w = memory.emplace_back(random_buffer(pack, bytes, 88172645463325252ull + set));
      const gpu::Buffer& y = memory.emplace_back(pack.device(), size_t(rows) * n_out[i] * sizeof(float));
      group.products[i] = {.w = w.data(),
                           .type = type,
                           .x = reinterpret_cast<const float*>(x.data()),
                           .add = nullptr,
                           .y = reinterpret_cast<float*>(y.data()),
                           .rows = rows,
                           .n_in = n_in,
                           .n_out = n_out[i],
                           .activations = activations_named(activations)};
    }
    groups.push_back(group);
  }
  const gpu::Buffer rounded(pack.device(), rounded_bytes(rows, n_in, true));
  pack.run(groups[0], rounded.data());
  const RoundedRows rounded_x = rounded_rows(rounded.data(), rows, n_in, gpu::rounded_bits(groups[0]) == 16);
  const double seconds = time_on_device(pack, replays, tries, [&] {
    for (const LinearGroup& group : groups) pack.run_rounded(group, rounded_x);
  });
  pack.take_started();
  nb::dict result;
  result["seconds"] = seconds / sets;
  result["bytes"] = gpu::bytes_of(groups[0]);
  result["launch"] = pack.last();
  return result;
}

double read_bandwidth(PythonPack& pack, size_t bytes, int sets, int replays, int tries) {
  LB_CHECK(bytes >= 16 && sets >= 1 && replays >= 1 && tries >= 1, kInvalid,
           "bytes must be at least 16; sets, replays and tries at least 1");
  bytes = bytes / 16 * 16;
  const gpu::Buffer x = random_buffer(pack, sets * bytes, 88172645463325252ull);
  const gpu::Buffer sums(pack.device(), size_t(gpu::read_blocks(pack.target())) * sizeof(uint32_t));
  const double seconds = time_on_device(pack, replays, tries, [&] {
    for (int set = 0; set < sets; ++set)
      pack.run(
          ReadMemory{.x = x.data() + set * bytes, .bytes = bytes, .sums = reinterpret_cast<uint32_t*>(sums.data())});
  });
  pack.take_started();
  return double(x.size()) / seconds;
}

void bind_timing(nb::module_& m) {
  m.def("time_linear", &time_linear, "pack"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "rows"_a = 1, "activations"_a = "int8",
        "sets"_a = 1, "replays"_a = 20, "tries"_a = 5,
        "Seconds of the mat-vec of x already rounded, over `sets` rotated sets of weights, the bytes it moves, and the "
        "launch.");
  m.def("read_bandwidth", &read_bandwidth, "pack"_a, "bytes"_a = size_t(1) << 30, "sets"_a = 1, "replays"_a = 20,
        "tries"_a = 5, "Bytes a second of a kernel that only reads `bytes` a launch, from `sets` buffers in turn.");
}

}  // namespace

void bind_gpu_ops(nb::module_& gpu, nb::module_& m) {
  nb::class_<PythonPack>(gpu, "Pack", "A kernel pack loaded on a device.")
      .def(nb::init<const gpu::Device&, const std::string&, const std::map<std::string, nb::bytes>&>(), "device"_a,
           "manifest_json"_a, "files"_a)
      .def_prop_ro("target", [](const PythonPack& pack) { return pack.target().name; })
      .def_prop_ro("name", &PythonPack::name, "The device it is on: cuda:0, sim.")
      .def_prop_ro("device", [](const PythonPack& pack) { return pack.device().info(); })
      .def_prop_ro("launched", &PythonPack::last, "The last launch, as text.")
      .def("take_started", &PythonPack::take_started, "Names of the kernels started since the last call of this.");
  m.def("run", &run_op, "pack"_a, "op"_a, "fields"_a,
        "Runs an op on its fields, by the names in src/cpp/ops/operands.h: a dict of what it writes. An output that is "
        "given the name of an input takes that input's memory; rounded rows are given as their bits, 8 or 16.");
  m.def("linear", &linear, "pack"_a, "w"_a, "dtype"_a, "n_out"_a, "n_in"_a, "x"_a, "add"_a = nb::none(),
        "activations"_a = "int8");
  m.def("linear_group", &linear_group, "pack"_a, "weights"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "x"_a,
        "add"_a = nb::none(), "activations"_a = "int8",
        "Up to four products of one x, those of one type in one launch.");
  m.def("read_memory", &read_memory, "pack"_a, "x"_a, "Sums of the 32-bit words that each block has read.");
  bind_timing(m);
  bind_gpu_attention(m);
  bind_gpu_delta(m);
  bind_gpu_sample(m);
  bind_gpu_matmul(m);
  bind_gpu_load(m);
  bind_gpu_megakernel(m);
}

}  // namespace lb
