// Converts token ids from Python.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

namespace lb {

using Ids = nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline std::span<const int32_t> span(const Ids& ids) { return {ids.data(), ids.size()}; }

}  // namespace lb
