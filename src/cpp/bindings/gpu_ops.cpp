// The functions of gpu_ops: one op each, run on the device of a pack.
#include "bindings/bindings.h"
#include "bindings/gpu_call.h"
#include "bindings/gpu_timing.h"
#include "device/graph.h"
#include "quant/repack.h"

using namespace nanobind::literals;

namespace lb {
namespace {

nb::object rms_norm(PythonPack& pack, In<float, 3> x, In<float, 1> w, float eps) {
  check_shape("w", w, {x.shape(2)});
  Call call(pack);
  float* y = call.out<float>(x.size());
  pack.run(RmsNorm{.x = call.in(x),
                   .w = call.in(w),
                   .y = y,
                   .rows = size(x, 0),
                   .heads = size(x, 1),
                   .dim = size(x, 2),
                   .row_stride = long(x.shape(1) * x.shape(2)),
                   .head_stride = long(x.shape(2)),
                   .eps = eps});
  return call.read(y, x.shape(0), x.shape(1), x.shape(2));
}

// The first `dim` of each head's values, read at the head's stride.
nb::object rms_norm_strided(PythonPack& pack, In<float, 3> x, In<float, 1> w, float eps) {
  LB_CHECK(w.shape(0) <= x.shape(2), kInvalid, "w is longer than a head of x");
  const size_t dim = w.shape(0);
  Call call(pack);
  float* y = call.out<float>(x.shape(0) * x.shape(1) * dim);
  pack.run(RmsNorm{.x = call.in(x),
                   .w = call.in(w),
                   .y = y,
                   .rows = size(x, 0),
                   .heads = size(x, 1),
                   .dim = int(dim),
                   .row_stride = long(x.shape(1) * x.shape(2)),
                   .head_stride = long(x.shape(2)),
                   .eps = eps});
  return call.read(y, x.shape(0), x.shape(1), dim);
}

nb::object gated_rms_norm(PythonPack& pack, In<float, 3> o, In<float, 3> z, In<float, 1> w, float eps) {
  check_shape("z", z, {o.shape(0), o.shape(1), o.shape(2)});
  check_shape("w", w, {o.shape(2)});
  Call call(pack);
  float* y = call.in_out(o.data(), o.size());  // in place, as the engine does
  pack.run(GatedRmsNorm{.o = y,
                        .z = call.in(z),
                        .w = call.in(w),
                        .y = y,
                        .rows = size(o, 0),
                        .heads = size(o, 1),
                        .dim = size(o, 2),
                        .eps = eps});
  return call.read(y, o.shape(0), o.shape(1), o.shape(2));
}

nb::object swiglu(PythonPack& pack, FloatMatrix gate, FloatMatrix up) {
  check_shape("up", up, {gate.shape(0), gate.shape(1)});
  Call call(pack);
  float* y = call.out<float>(gate.size());
  pack.run(SwiGlu{.gate = call.in(gate), .up = call.in(up), .y = y, .rows = size(gate, 0), .dim = size(gate, 1)});
  return call.read(y, gate.shape(0), gate.shape(1));
}

nb::object rope(PythonPack& pack, In<float, 3> x, FloatMatrix cos, FloatMatrix sin, const std::string& pairs) {
  LB_CHECK(pairs == "halves" || pairs == "adjacent", kInvalid, "pairs must be halves or adjacent, got ", pairs);
  LB_CHECK(2 * cos.shape(1) <= x.shape(2), kInvalid, "cannot rotate ", cos.shape(1), " pairs of a head of ",
           x.shape(2));
  check_shape("cos", cos, {x.shape(0), cos.shape(1)});
  check_shape("sin", sin, {x.shape(0), cos.shape(1)});
  Call call(pack);
  float* y = call.in_out(x.data(), x.size());
  pack.run(Rope{.x = y,
                .cos = call.in(cos),
                .sin = call.in(sin),
                .rows = size(x, 0),
                .heads = size(x, 1),
                .dim = size(x, 2),
                .n_pairs = size(cos, 1),
                .pairs = pairs == "halves" ? RopePairs::kHalves : RopePairs::kAdjacent});
  return call.read(y, x.shape(0), x.shape(1), x.shape(2));
}

nb::object embed(PythonPack& pack, Bytes table, const std::string& dtype, int dim, In<int32_t, 1> ids) {
  const DType type = dtype_named(dtype);
  quant::checked_plane_layout(type, 0, dim);
  const int vocab = int(table.size() / row_bytes(type, size_t(dim)));
  for (size_t i = 0; i < ids.size(); ++i)
    LB_CHECK(ids.data()[i] >= 0 && ids.data()[i] < vocab, kInvalid, "id ", ids.data()[i], " is outside a table of ",
             vocab, " rows");
  Call call(pack);
  float* y = call.out<float>(ids.size() * dim);
  pack.run(Embed{.table = call.weights(table, type, vocab, dim),
                 .type = type,
                 .ids = call.in(ids),
                 .y = y,
                 .rows = int(ids.size()),
                 .dim = dim,
                 .vocab = vocab});
  return call.read(y, ids.size(), size_t(dim));
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
  m.def("rms_norm", &rms_norm, "pack"_a, "x"_a, "w"_a, "eps"_a);
  m.def("rms_norm_strided", &rms_norm_strided, "pack"_a, "x"_a, "w"_a, "eps"_a,
        "The norm of the first len(w) values of each head of x.");
  m.def("gated_rms_norm", &gated_rms_norm, "pack"_a, "o"_a, "z"_a, "w"_a, "eps"_a);
  m.def("swiglu", &swiglu, "pack"_a, "gate"_a, "up"_a);
  m.def("rope", &rope, "pack"_a, "x"_a, "cos"_a, "sin"_a, "pairs"_a = "halves");
  m.def("embed", &embed, "pack"_a, "table"_a, "dtype"_a, "dim"_a, "ids"_a);
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
  bind_gpu_rounded(m);
}

}  // namespace lb
