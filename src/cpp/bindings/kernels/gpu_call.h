// Single ops on a device from numpy arrays: what the functions of gpu_ops*.cpp share. Each op gets memory
// of its own; results are filled with NaN before the launch and have guards around them, so that a value forgotten or
// written elsewhere shows.
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
// Runs the GEMVs of a group. x: the group's x rounded, where the weights want it.
inline void run_rounded(PythonPack& pack, const LinearGroup& group, const RoundedRows& x) {
  const gpu::GemvLaunches vecs = gpu::choose(group, x, pack.target());
  for (int i = 0; i < vecs.n; ++i) pack.run(vecs.launches[i].launch, vecs.launches[i].params);
}
// Rounds x once into `rounded` where the weights want it, then runs the GEMVs, as the engine does.
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
    pack_.stream().synchronize();  // the caller's memory may go
    return reinterpret_cast<const T*>(buffer.data());
  }
  template <class Array>
  auto in(const Array& array) {
    return in(array.data(), array.size());
  }
  const void* weights(const Bytes& blocks, DType type, int n_out, int n_in) {
    const quant::PlaneLayout layout = quant::checked_plane_layout(type, n_out, n_in);
    const size_t bytes = row_bytes(type, size_t(n_in)) * n_out;
    LB_CHECK(blocks.size() == bytes, kInvalid, "weights [", n_out, ", ", n_in, "] of ", name(type), " are ", bytes,
             " bytes, got ", blocks.size());
    std::vector<std::byte> planes(layout.bytes);
    quant::to_planes(type, n_out, n_in, blocks.data(), planes.data());
    return in(planes.data(), planes.size());
  }
  // Zeros, as a grid's work space starts.
  void* zeros(size_t bytes) {
    const gpu::Buffer& buffer = allocate(bytes);
    pack_.stream().fill(buffer.data(), 0, bytes);
    return buffer.data();
  }

  // Every byte 0xff: a NaN as fp32, f16 and bf16, and -1.
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
    const size_t shape[] = {size_t(sizes)...};
    size_t count = 1;
    for (size_t n : shape) count *= n;
    check_guards();
    auto values = std::make_unique<T[]>(count);
    pack_.stream().copy_to_host(values.get(), const_cast<T*>(from), count * sizeof(T));
    pack_.stream().synchronize();
    T* data = values.release();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::ndarray<nb::numpy, T>(data, sizeof...(Sizes), shape, owner).cast();
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
  explicit DeviceMemory(PythonPack& pack) : pack_(pack), weights_(pack) {}

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
    return weights_.weights(nb::cast<Bytes>(nb::cast(blocks)), type, n_out, n_in);
  }
  size_t guard_bytes() const override { return 256; }

 private:
  PythonPack& pack_;
  Call weights_;
  std::deque<gpu::Buffer> buffers_;
};

inline int size(const auto& array, int axis) { return static_cast<int>(array.shape(axis)); }

template <class Array>
void check_shape(const char* what, const Array& array, std::initializer_list<size_t> shape) {
  bool same = array.ndim() == shape.size();
  for (size_t i = 0; same && i < shape.size(); ++i) same = array.shape(i) == shape.begin()[i];
  LB_CHECK(same, kInvalid, what, " has the wrong shape");
}

}  // namespace lb::kernels
