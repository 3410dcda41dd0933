// LentMemory: device memory that an engine lends to another one. The lender's bytes wait in pinned host memory during a
// loan. Between loans, pinned memory keeps the borrower's slices that keep() names; all other slices begin as zero.
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
  // bytes: device memory that the lender only reads.
  LentMemory(const gpu::Device& device, std::span<std::byte> bytes) : device_(device), queue_(device), bytes_(bytes) {}

  size_t size() const { return bytes_.size(); }

  // A loan. Neither lender nor borrower may have work in flight when it begins or ends.
  void borrow();
  void give_back();

  // During a loan: the next slice, zeroed, which stays the borrower's in later loans. The result owns nothing.
  std::unique_ptr<Memory> take(size_t bytes);
  // During a loan: later loans begin with the contents that the slice has now.
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
