// Memory of a device and pinned memory of the host, each one allocation owned by one object.
#pragma once

#include "base/error.h"
#include "device/device.h"

namespace lb::gpu {

// The contents of new memory are undefined.
class Buffer {
 public:
  enum class Kind { kDevice, kPinned };  // pinned: the host's, which copies reach without the driver's help

  Buffer(const Device& device, size_t bytes, Kind kind = Kind::kDevice);

  std::byte* data() const { return static_cast<std::byte*>(resource_.handle()); }
  size_t size() const { return size_; }

 private:
  Resource resource_;
  size_t size_;
};

}  // namespace lb::gpu
