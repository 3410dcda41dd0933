// The lender's bytes never change, so the copy made when a slice is taken serves all loans.
#include "dispatch/lent_memory.h"

#include <algorithm>

#include "base/error.h"

namespace lb {

void LentMemory::borrow() {
  for (const Slice& slice : slices_)
    if (slice.kept) {
      queue_.copy_to_device(slice.data, slice.kept->data(), slice.kept->size());
    } else {
      queue_.fill(slice.data, 0, slice.lenders.size());
    }
  queue_.synchronize();
}

void LentMemory::give_back() {
  for (const Slice& slice : slices_) queue_.copy_to_device(slice.data, slice.lenders.data(), slice.lenders.size());
  queue_.synchronize();
}

std::unique_ptr<Memory> LentMemory::take(size_t bytes) {
  Carver counter;
  counter.take<std::byte>(std::max<size_t>(bytes, 1));
  const size_t padded = counter.used();
  LB_CHECK(padded <= bytes_.size() - used_, kMemory, bytes, " bytes more than ", used_, " of the ", bytes_.size(),
           " lent bytes are needed");
  std::byte* data = bytes_.data() + used_;
  gpu::Buffer lenders(device_, padded, gpu::Buffer::Kind::kPinned);
  queue_.copy_to_host(lenders.data(), data, padded);
  queue_.synchronize();
  slices_.push_back({data, std::move(lenders), std::nullopt});
  used_ += padded;
  queue_.fill(data, 0, padded);
  queue_.synchronize();
  return std::make_unique<Memory>(data, bytes);
}

void LentMemory::keep(const Memory& memory) {
  const auto slice = std::ranges::find(slices_, memory.data(), &Slice::data);
  LB_ASSERT(slice != slices_.end());
  slice->kept.emplace(device_, memory.size(), gpu::Buffer::Kind::kPinned);
  queue_.copy_to_host(slice->kept->data(), memory.data(), memory.size());
  queue_.synchronize();
}

}  // namespace lb
