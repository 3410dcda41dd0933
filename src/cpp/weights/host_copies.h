// Host memory that a binder makes for a network: vectors as fp32, and matrices of FP8 as BF16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lb {

// A matrix of FP8 (e4m3, with NaN and without infinities) times the scales of its blocks, to be rounded to BF16.
struct Fp8Expansion {
  const uint8_t* codes = nullptr;  // [n_out, n_in] in the mapped file
  std::vector<float> scales;       // [ceil(n_out / block_rows), ceil(n_in / block_columns)]
  int n_out = 0, n_in = 0, block_rows = 0, block_columns = 0;
  uint16_t* to = nullptr;  // [n_out, n_in]
};

struct HostCopies {
  std::vector<std::unique_ptr<float[]>> vectors;
  std::vector<std::unique_ptr<uint16_t[]>> matrices;  // untouched until expand()
  std::vector<Fp8Expansion> pending;                  // of the matrices
  size_t vector_bytes = 0, matrix_bytes = 0;

  // Fills the matrices. `progress` gets bytes done and in total, on the caller's thread, between matrices.
  void expand(int n_threads, const std::function<void(size_t, size_t)>& progress);
};

}  // namespace lb
