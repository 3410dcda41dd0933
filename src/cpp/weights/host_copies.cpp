// Expansion of FP8 by a table of its 256 values.
#include "weights/host_copies.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "quant/half.h"

namespace lb {
namespace {

constexpr int kTaskRows = 64;

std::array<float, 256> e4m3_values() {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                          : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    const bool is_nan = (code & 0x7f) == 0x7f;
    values[code] = is_nan ? std::numeric_limits<float>::quiet_NaN() : code < 128 ? magnitude : -magnitude;
  }
  return values;
}

void expand_rows(const Fp8Expansion& m, int first, int end) {
  static const std::array<float, 256> values = e4m3_values();
  const int columns = (m.n_in + m.block_columns - 1) / m.block_columns;
  for (int o = first; o < end; ++o) {
    const float* scales = m.scales.data() + static_cast<size_t>(o / m.block_rows) * columns;
    const uint8_t* codes = m.codes + static_cast<size_t>(o) * m.n_in;
    uint16_t* to = m.to + static_cast<size_t>(o) * m.n_in;
    for (int i = 0; i < m.n_in; ++i) to[i] = quant::f32_to_bf16(values[codes[i]] * scales[i / m.block_columns]);
  }
}

}  // namespace

void HostCopies::expand(int n_threads, const std::function<void(size_t, size_t)>& progress) {
  if (pending.empty()) return;
  ThreadPool pool(n_threads);
  size_t done = 0, total = 0;
  for (const Fp8Expansion& m : pending) total += static_cast<size_t>(m.n_out) * m.n_in;
  for (const Fp8Expansion& m : pending) {
    pool.parallel_for((m.n_out + kTaskRows - 1) / kTaskRows, [&](int task, int) {
      expand_rows(m, task * kTaskRows, std::min(m.n_out, (task + 1) * kTaskRows));
    });
    done += static_cast<size_t>(m.n_out) * m.n_in;
    if (progress) progress(done, total);
  }
  pending.clear();
}

}  // namespace lb
