// HostCopies: host memory that a binder allocates for a network: vectors as fp32, matrices of types that no op reads as
// BF16, and matrices whose parts or blocks are in another order in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "weights/row_readers.h"

namespace lb {

// A matrix to expand to BF16.
struct Expansion {
  RowReader read;
  int n_out = 0, n_in = 0;
  uint16_t* to = nullptr;  // [n_out, n_in]
};

struct HostCopies {
  // Matrices of the same size to copy one after another.
  struct Joined {
    size_t bytes = 0;  // of each
    std::vector<const std::byte*> from;
    std::byte* to = nullptr;
  };

  // Rows of blocks to write in another layout.
  struct Repacked {
    std::function<void(int row, std::byte* to)> write;
    int rows = 0;
    size_t row_bytes = 0;
    std::byte* to = nullptr;
  };

  std::vector<std::unique_ptr<float[]>> vectors;
  std::vector<std::unique_ptr<uint16_t[]>> matrices;  // not written until expand()
  std::vector<Expansion> pending;                     // of the matrices
  std::vector<Joined> pending_joins;
  std::vector<Repacked> pending_repacks;
  size_t vector_bytes = 0, matrix_bytes = 0;

  // Allocates the joined matrix, which expand() fills.
  const std::byte* join(Joined matrices);
  const std::byte* repack(Repacked matrix);  // likewise
  // Fills the matrices. `progress` gets bytes done and in total, on the caller's thread, between matrices.
  void expand(int n_threads, const std::function<void(size_t, size_t)>& progress);

 private:
  std::byte* allocate(size_t bytes);
};

}  // namespace lb
