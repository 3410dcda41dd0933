// Streams and events of a device: what runs in which order, and when it did.
#pragma once

#include "device/device.h"
#include "device/module.h"

namespace lb::gpu {

class Event {
 public:
  explicit Event(const Device& device);

  void synchronize() const;
  float elapsed_ms(const Event& later) const;
  Handle handle() const { return resource_.handle(); }

 private:
  Resource resource_;
};

// The addresses of copies are device addresses or pinned host memory; pageable host memory works too, at the price of a
// copy that waits.
class Queue {
 public:
  explicit Queue(const Device& device);

  void copy_to_device(Address to, const void* from, size_t bytes) const;
  void copy_to_host(void* to, Address from, size_t bytes) const;
  void copy_on_device(Address to, Address from, size_t bytes) const;
  // From memory of `from_device` to memory of `to_device`; direct where enable_peer was called, else by way of the
  // host.
  void copy_peer(Address to, const Device& to_device, Address from, const Device& from_device, size_t bytes) const;
  void fill(Address to, unsigned char value, size_t bytes) const;

  // Runs a kernel that takes one struct by value.
  void launch(const Kernel& kernel, const LaunchShape& shape, const void* params, size_t params_bytes) const;
  template <class Params>
  void launch(const Kernel& kernel, const LaunchShape& shape, const Params& params) const {
    launch(kernel, shape, &params, sizeof params);
  }

  void record(const Event& event) const;
  void wait(const Event& event) const;
  void synchronize() const;

  const Context& context() const { return resource_.context(); }
  const std::shared_ptr<const Context>& shared_context() const { return resource_.shared_context(); }
  Handle handle() const { return resource_.handle(); }

 private:
  Resource resource_;
};

}  // namespace lb::gpu
