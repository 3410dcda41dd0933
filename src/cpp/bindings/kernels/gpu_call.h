// Shared code of gpu_ops*.cpp: runs single ops on a device from numpy arrays. Each op gets separate memory. Results are
// filled with NaN before the launch and surrounded by guards, so that missing and out-of-bounds writes show.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/kernels/op_fields.h"
#include "bindings/names.h"
#include "bindings/python_pack.h"
#include "device/graph.h"
#include "gpu/attention/choose.h"
#include "gpu/delta_net/choose.h"
#include "gpu/draft/choose.h"
#include "gpu/elementwise/choose.h"
#include "gpu/gemm/choose.h"
#include "gpu/gemv/choose.h"
#include "gpu/sampling/choose.h"
#include "pack/pack.h"
#include "quant/repack.h"

namespace lb::kernels {

namespace nb = nanobind;

template <class T, int kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
using Bytes = In<uint8_t, 1>;
using FloatMatrix = In<float, 2>;

template <class Op>
void run(PythonPack& pack, const Op& op) {
  pack.run(gpu::choose(op, pack.target()), op);
}
// Runs the GEMVs of a group. x: the group's quantised x, if the weights need it.
inline void run_rounded(PythonPack& pack, const LinearGroup& group, const RoundedRows& x) {
  const gpu::GemvLaunches vecs = gpu::choose(group, x, pack.target());
  for (int i = 0; i < vecs.n; ++i) pack.run(vecs.launches[i].launch, vecs.launches[i].params);
}
// Quantises x once into `rounded` if the weights need it, then runs the GEMVs, as the engine does.
inline void run(PythonPack& pack, const LinearGroup& group, std::byte* rounded) {
  const Linear& first = group.products[0];
  RoundedRows x = {};
  if (const int bits = gpu::rounded_bits(group)) {
    x = rounded_rows(rounded, first.rows, first.n_in, bits == 16);
    run(pack, RoundRows{.x = first.x, .y = x, .rows = first.rows, .n_in = first.n_in});
  }
  run_rounded(pack, group, x);
}

// The device memory of one call.
class Call {
 public:
  explicit Call(PythonPack& pack) : pack_(pack) {}

  template <class T>
  const T* in(const T* values, size_t count) {
    const gpu::Buffer& buffer = allocate(count * sizeof(T));
    pack_.stream().copy_to_device(buffer.data(), values, count * sizeof(T));
    pack_.stream().synchronize();  // the caller may free its memory
    return reinterpret_cast<const T*>(buffer.data());
  }
  template <class Array>
  auto in(const Array& array) {
    return in(array.data(), array.size());
  }
  // Zeroed memory, the initial state of a grid's work space.
  void* zeros(size_t bytes) {
    const gpu::Buffer& buffer = allocate(bytes);
    pack_.stream().fill(buffer.data(), 0, bytes);
    return buffer.data();
  }

  // Memory filled with 0xff: NaN as fp32, f16 or bf16, and -1 as an integer.
  template <class T>
  T* out(size_t count) {
    const size_t bytes = count * sizeof(T);
    const gpu::Buffer& buffer = allocate(bytes + 2 * kGuardBytes);
    pack_.stream().fill(buffer.data(), 0xff, buffer.size());
    outputs_.push_back({&buffer, bytes});
    return reinterpret_cast<T*>(buffer.data() + kGuardBytes);
  }
  // For an op that works in place.
  template <class T>
  T* in_out(const T* values, size_t count) {
    T* to = out<T>(count);
    pack_.stream().copy_to_device(to, values, count * sizeof(T));
    pack_.stream().synchronize();
    return to;
  }

  template <class T, class... Sizes>
  auto read(const T* from, Sizes... sizes) {
    const size_t count = (size_t{1} * ... * size_t(sizes));
    check_guards();
    auto values = std::make_unique<T[]>(count);
    pack_.stream().copy_to_host(values.get(), const_cast<T*>(from), count * sizeof(T));
    pack_.stream().synchronize();
    return to_numpy(std::move(values), {size_t(sizes)...});
  }

 private:
  static constexpr size_t kGuardBytes = 256;
  struct Output {
    const gpu::Buffer* buffer;
    size_t bytes;
  };

  const gpu::Buffer& allocate(size_t bytes) {
    return buffers_.emplace_back(pack_.device(), std::max<size_t>(bytes, 16));
  }
  void check_guards() const {
    unsigned char guard[kGuardBytes];
    for (const Output& output : outputs_)
      for (size_t at : {size_t(0), kGuardBytes + output.bytes}) {
        pack_.stream().copy_to_host(guard, output.buffer->data() + at, kGuardBytes);
        pack_.stream().synchronize();
        LB_CHECK(std::all_of(guard, guard + kGuardBytes, [](unsigned char b) { return b == 0xff; }), kInternal,
                 pack_.last(), " wrote ", at ? "behind" : "before", " its output of ", output.bytes, " bytes");
      }
  }

  PythonPack& pack_;
  std::deque<gpu::Buffer> buffers_;
  std::vector<Output> outputs_;
};

// The operands of one op on the pack's device.
class DeviceMemory final : public OpMemory {
 public:
  explicit DeviceMemory(PythonPack& pack) : pack_(pack) {}

  std::byte* reserve(size_t bytes) override {
    const gpu::Buffer& buffer = buffers_.emplace_back(pack_.device(), std::max<size_t>(bytes, 16));
    pack_.stream().fill(buffer.data(), 0xff, buffer.size());
    return buffer.data();
  }
  void upload(std::byte* to, const void* from, size_t bytes) override {
    if (bytes > 0) pack_.stream().copy_to_device(to, from, bytes);
    pack_.stream().synchronize();
  }
  void download(void* to, const std::byte* from, size_t bytes) override {
    if (bytes > 0) pack_.stream().copy_to_host(to, const_cast<std::byte*>(from), bytes);
    pack_.stream().synchronize();
  }
  const void* weights(const AnyArray& blocks, DType type, int n_out, int n_in) override {
    std::vector<std::byte> planes(quant::checked_plane_layout(type, n_out, n_in).bytes);
    quant::to_planes(type, n_out, n_in, blocks.data(), planes.data());
    std::byte* data = reserve(planes.size());
    upload(data, planes.data(), planes.size());
    return data;
  }
  size_t guard_bytes() const override { return 256; }

 private:
  PythonPack& pack_;
  std::deque<gpu::Buffer> buffers_;
};

// An op on the pack's device, from its fields.
template <class Op>
struct DeviceOp {
  // links: inputs that are other ops' outputs.
  DeviceOp(PythonPack& pack, const std::string& name, const nb::handle& given,
           std::initializer_list<std::pair<const char*, const void*>> links = {})
      : memory(pack), fields(memory, name, nb::borrow<nb::kwargs>(given)) {
    for (const auto& [input, at] : links) fields.link(input, at);
    operands(op, fields);
  }
  DeviceOp(const DeviceOp&) = delete;  // `fields` points into `op`

  void place() {
    fields.place();
    check_slots(op, fields);
  }

  DeviceMemory memory;
  OpFields fields;
  Op op{};
};

// GEMVs that share x, each from its fields; the first one's x is used for all.
class ProductGroup {
 public:
  ProductGroup(PythonPack& pack, const std::vector<nb::dict>& given) {
    LB_CHECK(given.size() >= 1 && given.size() <= kMaxProducts, kInvalid, "a group has 1 to ", kMaxProducts,
             " weights, got ", given.size());
    for (const nb::dict& fields : given) {
      DeviceOp<Linear>& product = products_.emplace_back(pack, "linear", fields);
      product.place();
      const Linear& first = products_[0].op;
      LB_CHECK(product.op.rows == first.rows && product.op.n_in == first.n_in, kInvalid,
               "the products of a group have one x");
      product.op.x = first.x;
      group_.products[group_.n++] = product.op;
    }
  }
  const LinearGroup& group() const { return group_; }
  const Linear& first() const { return group_.products[0]; }
  void* scratch(size_t bytes) { return products_[0].fields.scratch(bytes); }
  // Memory for the quantised x of a product with as many rows as `reader`.
  RoundedRows x_buffer(const Linear& reader, int bits) {
    const bool is_16_bit = bits == 16;
    return rounded_rows(static_cast<std::byte*>(scratch(rounded_bytes(reader.rows, reader.n_in, is_16_bit))),
                        reader.rows, reader.n_in, is_16_bit);
  }
  std::vector<nb::dict> results() {
    std::vector<nb::dict> all;
    for (DeviceOp<Linear>& product : products_) all.push_back(product.fields.results());
    return all;
  }

 private:
  std::deque<DeviceOp<Linear>> products_;
  LinearGroup group_{};
};

inline int size(const auto& array, int axis) { return static_cast<int>(array.shape(axis)); }

template <class Array>
void check_shape(const char* what, const Array& array, std::initializer_list<size_t> shape) {
  bool same = array.ndim() == shape.size();
  for (size_t i = 0; same && i < shape.size(); ++i) same = array.shape(i) == shape.begin()[i];
  LB_CHECK(same, kInvalid, what, " has the wrong shape");
}

}  // namespace lb::kernels
