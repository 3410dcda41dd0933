// Device memory and pinned host memory. One object owns one allocation.
#pragma once

#include <initializer_list>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "device/device.h"

namespace lb::gpu {

// New memory has undefined contents.
class Buffer {
 public:
  enum class Kind { kDevice, kPinned };  // kPinned: page-locked host memory near the device, which reads it by DMA

  Buffer(const Device& device, size_t bytes, Kind kind = Kind::kDevice);

  std::byte* data() const { return static_cast<std::byte*>(resource_.handle()); }
  size_t size() const { return size_; }

 private:
  Resource resource_;
  size_t size_;
};

// Host memory for devices of different drivers: pages of the process, registered with each driver, so that each reads
// and writes them by DMA. A driver that refuses copies them through memory of its own, which is slower.
class SharedPages {
 public:
  SharedPages(std::initializer_list<const Device*> devices, size_t bytes);

  std::byte* data() const { return pages_.data(); }

 private:
  Arena pages_;
  std::vector<Resource> registrations_;
};

}  // namespace lb::gpu
