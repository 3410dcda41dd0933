// Numpy byte arrays, for pages and states.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/memory.h"
#include "bindings/arrays.h"

namespace lb {

using ByteArray = Array<uint8_t, 1>;
using ConstBytes = nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline std::span<const std::byte> span(const ConstBytes& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

// Returns a numpy array that shares the memory.
inline ByteArray shared(std::shared_ptr<Memory> memory) {
  auto* const kept = new std::shared_ptr<Memory>(std::move(memory));
  nanobind::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<Memory>*>(p); });
  return ByteArray((*kept)->data(), {(*kept)->size()}, owner);
}

// Returns a numpy array that `fill` writes without the GIL.
template <class Fill>
ByteArray filled(size_t size, Fill&& fill) {
  auto bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
  {
    nanobind::gil_scoped_release release;
    fill(std::as_writable_bytes(std::span(bytes.get(), size)));
  }
  nanobind::capsule owner(bytes.get(), [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  return ByteArray(bytes.release(), {size}, owner);
}

}  // namespace lb
