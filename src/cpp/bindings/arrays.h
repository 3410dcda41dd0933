// Converts result vectors to numpy arrays.
#pragma once

#include <nanobind/ndarray.h>

#include <initializer_list>
#include <memory>
#include <vector>

namespace lb {

template <class T, int kDims>
using Array = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<kDims>>;

// A numpy array that owns a vector's values.
template <int kDims, class T = float>
Array<T, kDims> to_numpy(std::vector<T>&& values, std::initializer_list<size_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  nanobind::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T, kDims>(owned->data(), shape, owner);
}

template <class T>
nanobind::object to_numpy(std::unique_ptr<T[]> values, std::initializer_list<size_t> shape) {
  T* data = values.release();
  nanobind::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nanobind::ndarray<nanobind::numpy, T>(data, shape, owner).cast();
}

}  // namespace lb
