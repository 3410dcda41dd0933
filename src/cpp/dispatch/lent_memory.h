// LentMemory: device memory that an engine lends to another one. During a loan, pinned host memory holds the lender's
// bytes. Between loans, pinned memory holds the borrower's slices named by keep(); all other slices start as zero.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "device/memory.h"
#include "device/queue.h"

namespace lb {

class LentMemory {
 public:
  // bytes: device memory that the lender only ever reads.
  LentMemory(const gpu::Device& device, std::span<std::byte> bytes) : device_(device), queue_(device), bytes_(bytes) {}

  size_t size() const { return bytes_.size(); }

  // A loan. Neither lender nor borrower may have work in flight when it begins or ends.
  void borrow();
  void give_back();

  // During a loan: allocates the next slice, zeroed; the borrower gets the same slice in later loans. The result does
  // not own the memory.
  std::unique_ptr<Memory> take(size_t bytes);
  // During a loan: saves the slice's present contents, with which later loans begin.
  void keep(const Memory& slice);

 private:
  struct Slice {
    std::byte* data;
    gpu::Buffer lenders;              // pinned
    std::optional<gpu::Buffer> kept;  // pinned; none: the slice begins as zero
  };

  gpu::Device device_;
  gpu::Queue queue_;
  std::span<std::byte> bytes_;
  size_t used_ = 0;
  std::vector<Slice> slices_;
};

}  // namespace lb
