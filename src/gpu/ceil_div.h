// Integer division rounded up, for launch geometry.
#pragma once

#include <type_traits>

namespace lb::gpu {

template <class T>
constexpr T ceil_div(T n, std::type_identity_t<T> unit) {
  return (n + unit - 1) / unit;
}

// The next multiple of unit.
template <class T>
constexpr T round_up(T n, std::type_identity_t<T> unit) {
  return ceil_div(n, unit) * unit;
}

}  // namespace lb::gpu
