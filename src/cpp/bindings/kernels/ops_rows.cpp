// Element types and the device layout of weights on numpy arrays, for tests and the self-test.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/kernels/bindings.h"
#include "bindings/names.h"
#include "quant/half.h"
#include "quant/repack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Value i of F32, F16 or BF16 values.
float value_at(const void* values, DType type, size_t i) {
  if (type == DType::kF32) return static_cast<const float*>(values)[i];
  const uint16_t half = static_cast<const uint16_t*>(values)[i];
  return type == DType::kF16 ? quant::f16_to_f32(half) : quant::bf16_to_f32(half);
}
void put(void* values, DType type, size_t i, float value) {
  if (type == DType::kF32)
    static_cast<float*>(values)[i] = value;
  else
    static_cast<uint16_t*>(values)[i] = type == DType::kF16 ? quant::f32_to_f16(value) : quant::f32_to_bf16(value);
}

nb::object convert(Bytes x, const std::string& from, const std::string& to) {
  const DType from_type = dtype_named(from), to_type = dtype_named(to);
  for (DType type : {from_type, to_type})
    LB_CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kBF16, kUnsupported, "[convert] from ",
             name(from_type), " to ", name(to_type), ": only F32, F16 and BF16 are converted");
  const size_t count = x.size() / info(from_type).block_bytes, bytes = count * info(to_type).block_bytes;
  auto y = std::make_unique<uint8_t[]>(bytes);
  for (size_t i = 0; i < count; ++i) put(y.get(), to_type, i, value_at(x.data(), from_type, i));
  return to_numpy(std::move(y), {bytes});
}

void check_bytes(const char* what, const Bytes& data, size_t bytes) {
  LB_CHECK(data.size() == bytes, kInvalid, what, " must be ", bytes, " bytes, got ", data.size());
}

nb::object to_planes(Bytes blocks, const std::string& dtype, int n_out, int n_in, int task_rows) {
  const DType type = dtype_named(dtype);
  const size_t bytes = quant::checked_plane_layout(type, n_out, n_in).bytes;
  check_bytes("blocks", blocks, row_bytes(type, size_t(n_in)) * n_out);
  auto planes = std::make_unique<uint8_t[]>(bytes);
  auto* to = reinterpret_cast<std::byte*>(planes.get());
  if (task_rows == 0) quant::to_planes(type, n_out, n_in, blocks.data(), to);
  for (int first = 0; task_rows > 0 && first < n_out; first += task_rows)
    quant::to_planes(type, n_out, n_in, blocks.data(), to, first, std::min(task_rows, n_out - first));
  return to_numpy(std::move(planes), {bytes});
}

nb::object from_planes(Bytes planes, const std::string& dtype, int n_out, int n_in) {
  const DType type = dtype_named(dtype);
  check_bytes("planes", planes, quant::checked_plane_layout(type, n_out, n_in).bytes);
  const size_t bytes = row_bytes(type, size_t(n_in)) * n_out;
  auto blocks = std::make_unique<uint8_t[]>(bytes);
  quant::from_planes(type, n_out, n_in, reinterpret_cast<const std::byte*>(planes.data()), blocks.get());
  return to_numpy(std::move(blocks), {bytes});
}

// (offset, bytes of a row) of each plane, and the bytes of all.
nb::tuple plane_layout(const std::string& dtype, int n_out, int n_in) {
  const quant::PlaneLayout layout = quant::checked_plane_layout(dtype_named(dtype), n_out, n_in);
  nb::list planes;
  for (int i = 0; i < layout.n_planes; ++i) planes.append(nb::make_tuple(layout.offset[i], layout.row_bytes[i]));
  return nb::make_tuple(planes, layout.bytes);
}

}  // namespace

void bind_ops_rows(nb::module_& m) {
  m.def("convert", &convert, "x"_a, "from_"_a, "to"_a, "Bytes of one element type as another's, to nearest even.");
  m.def("to_planes", &to_planes, "blocks"_a, "dtype"_a, "n_out"_a, "n_in"_a, "task_rows"_a = 0,
        "Weights as a device keeps them; task_rows: that many rows at a time.");
  m.def("from_planes", &from_planes, "planes"_a, "dtype"_a, "n_out"_a, "n_in"_a);
  m.def("plane_layout", &plane_layout, "dtype"_a, "n_out"_a, "n_in"_a,
        "(offset, row bytes) of each plane, and the bytes of all.");
}

}  // namespace lb::kernels
