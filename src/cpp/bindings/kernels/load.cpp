// Tests of weight loading: the bytes that arrive on the device, and the load time of a whole model.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/stream_arrays.h"
#include "bindings/names.h"
#include "bindings/python_pack.h"
#include "engine/gpu_load.h"
#include "quant/repack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

LoadProgress reporter(const nb::object& progress) {
  if (progress.is_none()) return {};
  return [&progress](size_t done, size_t total) {
    nb::gil_scoped_acquire gil;
    progress(done, total);
  };
}

// The planes of each matrix as they are in device memory; the memory was zeroed, so alignment gaps are zero.
nb::list load_planes(PythonPack& pack, const std::vector<Bytes>& weights, const std::vector<std::string>& dtypes,
                     const std::vector<int>& n_out, const std::vector<int>& n_in, int threads, size_t slot_bytes,
                     size_t progress_bytes, const nb::object& progress) {
  LB_CHECK(dtypes.size() == weights.size() && n_out.size() == weights.size() && n_in.size() == weights.size(), kInvalid,
           weights.size(), " matrices need as many types, heights and widths");
  GpuStream stream(pack.shared(), 0, 0);
  StreamArrays arrays(stream);
  std::vector<WeightCopy> copies;
  std::vector<size_t> sizes;
  for (size_t i = 0; i < weights.size(); ++i) {
    const DType type = dtype_named(dtypes[i]);
    const Matrix from{weights[i].data(), type, n_out[i], n_in[i]};
    sizes.push_back(quant::checked_plane_layout(type, n_out[i], n_in[i]).bytes);
    LB_CHECK(weights[i].size() == from.bytes(), kInvalid, "weights [", n_out[i], ", ", n_in[i], "] of ", name(type),
             " are ", from.bytes(), " bytes, got ", weights[i].size());
    copies.push_back({arrays.zeros<std::byte>(sizes.back()), from});
  }
  stream.wait();
  {
    const nb::gil_scoped_release unlocked;
    load_weights(pack.device(), copies,
                 {.n_threads = threads, .slot_bytes = slot_bytes, .progress_bytes = progress_bytes},
                 reporter(progress));
  }
  nb::list planes;
  for (size_t i = 0; i < copies.size(); ++i) {
    auto bytes = std::make_unique<uint8_t[]>(sizes[i]);
    stream.download(bytes.get(), copies[i].to, sizes[i]);
    planes.append(to_numpy(std::move(bytes), {sizes[i]}));
  }
  return planes;
}

nb::dict time_load(PythonPack& pack, const std::string& path, int threads, size_t slot_bytes,
                   const nb::object& progress) {
  const ModelFile file = open_model_file(path);
  const std::unique_ptr<Model> model = make_model(file);
  model->use_device_types();
  GpuStream stream(pack.shared(), 0, 0);
  const auto began = std::chrono::steady_clock::now();
  WeightStore store;
  {
    const nb::gil_scoped_release unlocked;
    store =
        load_weights(*model, {}, stream, {.n_threads = threads, .slot_bytes = slot_bytes}, nullptr, reporter(progress));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  nb::dict d;
  d["seconds"] = took.count();
  d["bytes"] = store.memory->size();
  return d;
}

// Addresses by slot in a loaded model: the host's table, then the device's.
std::pair<std::vector<uint64_t>, std::vector<uint64_t>> weight_table(PythonPack& pack, const std::string& path) {
  const ModelFile file = open_model_file(path);
  const std::unique_ptr<Model> model = make_model(file);
  model->use_device_types();
  GpuStream stream(pack.shared(), 0, 0);
  const WeightStore store = load_weights(*model, {}, stream, {}, nullptr, {});
  std::vector<uint64_t> host(store.addresses.size()), device(host.size());
  for (size_t i = 0; i < host.size(); ++i) host[i] = reinterpret_cast<uint64_t>(store.addresses[i]);
  stream.download(device.data(), store.table, device.size() * sizeof(uint64_t));
  return {std::move(host), std::move(device)};
}

}  // namespace

void bind_gpu_load(nb::module_& m) {
  const LoadOptions defaults;
  m.def("load_planes", &load_planes, "pack"_a, "weights"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "threads"_a = 1,
        "slot_bytes"_a = defaults.slot_bytes, "progress_bytes"_a = defaults.progress_bytes, "progress"_a = nb::none(),
        "The planes of matrices, brought to the device as a model's are and read back.");
  m.def("time_load", &time_load, "pack"_a, "path"_a, "threads"_a, "slot_bytes"_a = defaults.slot_bytes,
        "progress"_a = nb::none(), "Brings a model's weights to the device and drops them: seconds, and bytes there.");
  m.def("weight_table", &weight_table, "pack"_a, "path"_a,
        "Addresses of a loaded model's matrices by slot: of the host's table, and of the device's.");
}

}  // namespace lb::kernels
