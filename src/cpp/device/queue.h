// Queues run a device's work in order (the vendors call them streams); events mark points in a queue and time them.
#pragma once

#include "device/device.h"
#include "device/module.h"

namespace lb::gpu {

class Event {
 public:
  explicit Event(const Device& device);

  void synchronize() const;
  bool is_done() const;  // whether the work before the event has ended
  float elapsed_ms(const Event& later) const;
  Handle handle() const { return resource_.handle(); }

 private:
  Resource resource_;
};

// All methods but synchronize() and is_done() are asynchronous. Host memory of a copy should be pinned; with pageable
// memory the copy blocks the calling thread.
class Queue {
 public:
  // Where the simulator runs the queue's work: in the caller's thread, when it is sent, or in a thread of the queue, as
  // a GPU would. Queues that wait for each other need the second.
  enum class Runner { kCaller, kOwnThread };

  // When kernels of several queues wait for a multiprocessor, the kernels of an urgent queue start first.
  enum class Priority { kNormal, kUrgent };

  explicit Queue(const Device& device, Runner runner = Runner::kCaller, Priority priority = Priority::kNormal);

  void copy_to_device(Address to, const void* from, size_t bytes) const;
  void copy_to_host(void* to, Address from, size_t bytes) const;
  void copy_on_device(Address to, Address from, size_t bytes) const;
  // Copies from memory of `from_device` to memory of `to_device`: directly after enable_peer, else through the host.
  void copy_peer(Address to, const Device& to_device, Address from, const Device& from_device, size_t bytes) const;
  void fill(Address to, unsigned char value, size_t bytes) const;

  // Launches a kernel whose only parameter is one struct by value.
  void launch(const Kernel& kernel, const LaunchShape& shape, const void* params, size_t params_bytes) const;
  template <class Params>
  void launch(const Kernel& kernel, const LaunchShape& shape, const Params& params) const {
    launch(kernel, shape, &params, sizeof params);
  }

  // Calls function(argument) on a thread of the driver, which may not call the driver itself.
  void run_on_host(void (*function)(void*), void* argument) const;

  void record(const Event& event) const;
  void wait(const Event& event) const;
  void synchronize() const;
  bool is_done() const;  // whether all work sent so far has ended; throws as synchronize() does

  const Context& context() const { return resource_.context(); }
  const std::shared_ptr<const Context>& shared_context() const { return resource_.shared_context(); }
  Handle handle() const { return resource_.handle(); }

 private:
  Resource resource_;
};

}  // namespace lb::gpu
