// Matrix products and block decoding on numpy arrays, for tests and benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/kernels/bindings.h"
#include "bindings/names.h"
#include "cpu/kernels.h"
#include "ops/linear.h"
#include "quant/rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_whole_blocks(DType type, size_t count) {
  LB_CHECK(count % info(type).block_values == 0, kInvalid, name(type), " rows are multiples of ",
           info(type).block_values, " values, got ", count);
}

nb::object dequantize(const Bytes& data, const std::string& dtype, size_t n) {
  const DType type = dtype_named(dtype);
  check_whole_blocks(type, n);
  LB_CHECK(data.size() == row_bytes(type, n), kInvalid, n, " values of ", dtype, " are ", row_bytes(type, n),
           " bytes, got ", data.size());
  auto y = std::make_unique<float[]>(n);
  quant::dequantize_row(type, data.data(), y.get(), long(n));
  return to_numpy(std::move(y), {n});
}

// Products with fixed weights that can run repeatedly, so that a benchmark times only the products.
class Products {
 public:
  Products(std::vector<Bytes> weights, const std::vector<std::string>& dtypes, const std::vector<int>& n_out, int n_in,
           int max_rows, const std::string& activations, const std::string& isa, int threads)
      : weights_(std::move(weights)), n_in_(n_in), max_rows_(max_rows) {
    LB_CHECK(weights_.size() == dtypes.size() && weights_.size() == n_out.size(), kInvalid,
             "weights, dtypes and n_out must be as many, got ", weights_.size(), ", ", dtypes.size(), ", ",
             n_out.size());
    LB_CHECK(weights_.size() <= kMaxProducts, kInvalid, "a group has at most ", kMaxProducts, " weights, got ",
             weights_.size());
    group_.n = int(weights_.size());
    for (size_t i = 0; i < weights_.size(); ++i) {
      const DType type = dtype_named(dtypes[i]);
      check_whole_blocks(type, n_in);
      const size_t bytes = row_bytes(type, n_in) * n_out[i];
      LB_CHECK(weights_[i].size() == bytes, kInvalid, "weights ", i, " must be ", bytes, " bytes, got ",
               weights_[i].size());
      Linear& op = group_.products[i];
      op.w = weights_[i].data();
      op.type = type;
      op.n_in = n_in;
      op.n_out = n_out[i];
      op.activations = activations_named(activations);
    }
    stream_ =
        std::make_unique<CpuStream>(CpuStreamOptions{.n_threads = threads,
                                                     .isa = isa_named(isa),
                                                     .shared_scratch_bytes = linear_shared_scratch(max_rows, n_in),
                                                     .thread_scratch_bytes = linear_thread_scratch(n_in)});
  }

  // y[i] <- x w[i]^T (+ add[i]), written in place.
  void run(const Matrix& x, const std::vector<Output>& y, const std::optional<std::vector<Matrix>>& add) {
    const int rows = int(x.shape(0));
    LB_CHECK(int(x.shape(1)) == n_in_ && rows <= max_rows_, kInvalid, "x must be [up to ", max_rows_, ", ", n_in_,
             "], got [", rows, ", ", x.shape(1), "]");
    LB_CHECK(y.size() == weights_.size() && (!add || add->size() == weights_.size()), kInvalid,
             "one y and one add for each of the ", weights_.size(), " weights");
    for (size_t i = 0; i < weights_.size(); ++i) {
      Linear& op = group_.products[i];
      const auto check = [&](const char* what, size_t a, size_t b) {
        LB_CHECK(int(a) == rows && int(b) == op.n_out, kInvalid, what, " must be [", rows, ", ", op.n_out, "], got [",
                 a, ", ", b, "]");
      };
      check("y", y[i].shape(0), y[i].shape(1));
      if (add) check("add", (*add)[i].shape(0), (*add)[i].shape(1));
      op.x = x.data();
      op.y = y[i].data();
      op.add = add ? (*add)[i].data() : nullptr;
      op.rows = rows;
    }
    nb::gil_scoped_release release;
    lb::run(group_, *stream_);
  }

 private:
  std::vector<Bytes> weights_;  // keeps the arrays alive
  LinearGroup group_{};
  std::unique_ptr<CpuStream> stream_;
  int n_in_, max_rows_;
};

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

}  // namespace

void bind_ops_linear(nb::module_& m) {
  m.def("dequantize", &dequantize, "data"_a, "dtype"_a, "n"_a, "n values of an element type as fp32.");
  m.def("quantize_q8", &quantize_q8, "x"_a, "isa"_a = "auto", "Rows rounded to 8-bit blocks of 32: (q, scale, sum).");
  nb::class_<Products>(m, "LinearGroup", "Products of one x with several weights, sharing its rounding.")
      .def(nb::init<std::vector<Bytes>, const std::vector<std::string>&, const std::vector<int>&, int, int,
                    const std::string&, const std::string&, int>(),
           "weights"_a, "dtypes"_a, "n_out"_a, "n_in"_a, "max_rows"_a, "activations"_a = "int8", "isa"_a = "auto",
           "threads"_a = 1)
      .def("run", &Products::run, "x"_a, "y"_a, "add"_a = nb::none(), "Writes each product into its y.");
}

}  // namespace lb::kernels
