// Device memory and pinned host memory. One object owns one allocation.
#pragma once

#include "base/error.h"
#include "device/device.h"

namespace lb::gpu {

// New memory has undefined contents.
class Buffer {
 public:
  enum class Kind { kDevice, kPinned };  // kPinned: page-locked host memory, which the device reads and writes by DMA

  Buffer(const Device& device, size_t bytes, Kind kind = Kind::kDevice);

  std::byte* data() const { return static_cast<std::byte*>(resource_.handle()); }
  size_t size() const { return size_; }

 private:
  Resource resource_;
  size_t size_;
};

}  // namespace lb::gpu
