// HostCopies: host memory that a binder allocates for a network: vectors as fp32, and the matrices that no op reads as
// the file has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "weights/row_sources.h"

namespace lb {

struct HostCopies {
  // A matrix whose rows are written.
  struct Written {
    RowSource source;
    int n_out = 0;
    size_t row_bytes = 0;
    std::byte* to = nullptr;  // [n_out, row_bytes]
  };
  // Matrices of the same size to copy one after another.
  struct Joined {
    size_t bytes = 0;  // of each
    std::vector<const std::byte*> from;
    std::byte* to = nullptr;
  };

  std::vector<std::unique_ptr<float[]>> vectors;
  std::vector<std::unique_ptr<std::byte[]>> matrices;  // empty until fill()
  std::vector<Written> pending;                        // of the matrices
  std::vector<Joined> pending_joins;
  size_t vector_bytes = 0, matrix_bytes = 0;

  // Allocate a matrix, which fill() fills.
  const std::byte* write(RowSource source, int n_out, int n_in);
  const std::byte* join(Joined matrices);
  // Fills the matrices. `progress` gets bytes done and in total, on the caller's thread, between matrices.
  void fill(int n_threads, const std::function<void(size_t, size_t)>& progress);

 private:
  std::byte* allocate(size_t bytes);
};

}  // namespace lb
