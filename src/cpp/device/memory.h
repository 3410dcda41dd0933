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

// Hands out consecutive pieces of a reservation, aligned for every vector load and tensor copy. Without one it only
// counts: the code that first measures a plan later places it (as Carver does on the host).
class DeviceCarver {
 public:
  DeviceCarver() = default;
  explicit DeviceCarver(const Buffer& reservation) : base_(reservation.data()), capacity_(reservation.size()) {}

  template <class T>
  T* take(size_t count) {
    constexpr size_t kAlignment = 256;
    const size_t start = used_;
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (base_ == nullptr) return nullptr;
    LB_ASSERT(used_ <= capacity_);
    return reinterpret_cast<T*>(base_ + start);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace lb::gpu
