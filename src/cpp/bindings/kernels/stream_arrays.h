// Arrays in the memory of a device's stream, each an allocation of its own: the simulator finds accesses past its end.
#pragma once

#include <memory>
#include <vector>

#include "dispatch/gpu_stream.h"

namespace lb::kernels {

class StreamArrays {
 public:
  explicit StreamArrays(GpuStream& stream) : stream_(stream) {}

  template <class T>
  T* zeros(size_t count) {
    return reinterpret_cast<T*>(memory_.emplace_back(stream_.reserve(count * sizeof(T)))->data());
  }
  template <class T>
  T* copy(const T* values, size_t count) {
    T* to = zeros<T>(count);
    stream_.upload(to, values, count * sizeof(T));
    return to;
  }
  template <class Values>
  auto* copy(const Values& values) {
    return copy(std::data(values), std::size(values));
  }

 private:
  GpuStream& stream_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

}  // namespace lb::kernels
