// A device (one card, such as cuda:0), its properties, and the driver context that all of its objects share.
// Queues, buffers, modules and graphs keep the context alive, so they may be destroyed in any order.
// Threads may call concurrently when they use distinct queues; each call first makes the context current on its thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/driver.h"
#include "device/driver_error.h"

namespace lb::gpu {

struct DeviceInfo {
  Vendor vendor;
  int index;
  std::string name, architecture;  // "NVIDIA H100 80GB HBM3", "sm_90"; "gfx1151"
  std::string driver;              // "CUDA 13.0"
  std::string driver_generation;   // driver version, "580" or "7.1", compared with a pack's min_driver
  std::string pci, uuid;           // "0000:01:00.0"; 32 hex digits; empty when the driver does not report it
  size_t memory_bytes;
  int n_sms, warp_size, max_threads_block, registers_sm;
  int shared_block_bytes, shared_sm_bytes,
      l2_bytes;                               // shared memory per block: the maximum that a kernel may opt in to
  int clock_khz, memory_clock_khz, bus_bits;  // 0 where unknown
  bool is_integrated, has_cooperative, has_clusters, has_overlap, has_graphs;
};

// The devices of a vendor in the driver's order; empty when the driver sees none. Throws like driver().
std::vector<DeviceInfo> devices(Vendor vendor);

// Compares driver generations: "580", "7.1". An empty minimum, as the simulator's packs have it, fits any.
bool is_at_least(std::string_view driver_generation, std::string_view min_driver);
// Throws Error(kDevice) when the device's driver is older than min_driver ("580", "6.0"), a pack's requirement.
void require_driver(const DeviceInfo& info, std::string_view min_driver);

class Context {
 public:
  Context(Vendor vendor, int index);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver& driver() const { return driver_; }
  const DeviceInfo& info() const { return info_; }
  Handle handle() const { return handle_; }
  std::string where() const;  // `device 0 "NVIDIA H100" (sm_90)`

  // Makes this context current and calls the driver. call() throws on failure; status_of() returns the driver's status.
  template <class... Args>
  void call(const Call<Args...>& call, std::type_identity_t<Args>... args) const {
    check(call.name, status_of(call, args...));
  }
  template <class... Args>
  Status status_of(const Call<Args...>& call, std::type_identity_t<Args>... args) const {
    if (!call) missing(call.name);
    check(driver_.context_use.name, driver_.context_use(handle_));
    return call(args...);
  }
  // Ignores failures: an earlier call has reported the cause, and a destructor cannot handle one.
  void release(const Call<Handle>& call, Handle object) const {
    if (driver_.context_use(handle_) == 0) call(object);
  }
  void check(const char* call, Status status, std::string_view detail = {}) const;

 private:
  [[noreturn]] void missing(const char* call) const;

  const Driver& driver_;
  DeviceInfo info_;
  int device_ = 0;
  Handle handle_ = nullptr;
};

// Owns one driver object and releases it once. All release calls have the same signature, so one class serves them all.
class Resource {
 public:
  using Release = Call<Handle> Driver::*;

  Resource() = default;
  Resource(std::shared_ptr<const Context> context, Handle handle, Release release)
      : context_(std::move(context)), handle_(handle), release_(release) {}
  Resource(Resource&& other) noexcept
      : context_(std::move(other.context_)), handle_(std::exchange(other.handle_, nullptr)), release_(other.release_) {}
  Resource& operator=(Resource&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(handle_, other.handle_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~Resource() {
    if (handle_ != nullptr) context_->release(context_->driver().*release_, handle_);
  }

  const Context& context() const { return *context_; }
  const std::shared_ptr<const Context>& shared_context() const { return context_; }
  const Driver& driver() const { return context_->driver(); }
  Handle handle() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  std::shared_ptr<const Context> context_;
  Handle handle_ = nullptr;
  Release release_ = nullptr;
};

struct MemoryInfo {
  size_t free_bytes, total_bytes;
};

class Device {
 public:
  Device(Vendor vendor, int index) : context_(std::make_shared<const Context>(vendor, index)) {}

  const DeviceInfo& info() const { return context_->info(); }
  MemoryInfo memory() const;
  // Lets kernels and copies of this device access a peer's memory. Throws when the devices have different drivers or
  // the driver refuses.
  void enable_peer(const Device& peer) const;

  const std::shared_ptr<const Context>& context() const { return context_; }

 private:
  std::shared_ptr<const Context> context_;
};

}  // namespace lb::gpu
