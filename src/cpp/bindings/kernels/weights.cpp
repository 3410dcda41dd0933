// Element types, the device layout of weights and the rounding of activations on numpy arrays, for tests, benchmarks
// and the self-test.
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
#include "cpu/kernels.h"
#include "quant/repack.h"
#include "quant/rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_bytes(const char* what, const Bytes& data, size_t bytes) {
  LB_CHECK(data.size() == bytes, kInvalid, what, " must be ", bytes, " bytes, got ", data.size());
}

nb::object dequantize(const Bytes& data, const std::string& dtype, size_t n) {
  const DType type = dtype_named(dtype);
  LB_CHECK(n % info(type).block_values == 0, kInvalid, name(type), " rows are multiples of ", info(type).block_values,
           " values, got ", n);
  check_bytes("data", data, row_bytes(type, n));
  auto y = std::make_unique<float[]>(n);
  quant::dequantize_row(type, data.data(), y.get(), long(n));
  return to_numpy(std::move(y), {n});
}

// (q, scale, sum) of rows quantised to 8 bits.
nb::tuple quantize_q8(const Matrix& x, const std::string& isa) {
  const cpu::Kernels* kernels = cpu::kernels_for(isa_named(isa));
  LB_CHECK(kernels != nullptr, kUnsupported, "this processor cannot run the ", isa, " CPU kernels");
  const size_t rows = x.shape(0), n_in = x.shape(1), stride = (n_in + 63) / 64 * 64, n_blocks = stride / 32;
  auto q = std::make_unique<int8_t[]>(rows * stride);
  auto scale = std::make_unique<float[]>(rows * n_blocks);
  auto sum = std::make_unique<int32_t[]>(rows * n_blocks);
  for (size_t r = 0; r < rows; ++r)
    kernels->quantize_q8(x.data() + r * n_in, int(n_in), int(stride), q.get() + r * stride, scale.get() + r * n_blocks,
                         sum.get() + r * n_blocks);
  return nb::make_tuple(to_numpy(std::move(q), {rows, stride}), to_numpy(std::move(scale), {rows, n_blocks}),
                        to_numpy(std::move(sum), {rows, n_blocks}));
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

void bind_weights(nb::module_& m) {
  m.def("dequantize", &dequantize, "data"_a, "dtype"_a, "n"_a, "n values of an element type as fp32.");
  m.def("quantize_q8", &quantize_q8, "x"_a, "isa"_a = "auto", "Rows rounded to 8-bit blocks of 32: (q, scale, sum).");
  m.def("to_planes", &to_planes, "blocks"_a, "dtype"_a, "n_out"_a, "n_in"_a, "task_rows"_a = 0,
        "Weights as a device keeps them; task_rows: that many rows at a time.");
  m.def("from_planes", &from_planes, "planes"_a, "dtype"_a, "n_out"_a, "n_in"_a);
  m.def("plane_layout", &plane_layout, "dtype"_a, "n_out"_a, "n_in"_a,
        "(offset, row bytes) of each plane, and the bytes of all.");
}

}  // namespace lb::kernels
