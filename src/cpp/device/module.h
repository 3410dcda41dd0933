// Code objects loaded on a device, and their kernels.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "device/device.h"

namespace lb::gpu {

// A kernel's launch parameters other than its arguments; src/cpp/pack fills them in.
struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};   // blocks
  uint32_t block[3] = {1, 1, 1};  // threads
  size_t shared_bytes = 0;        // dynamic shared memory per block
  bool cooperative = false;       // all blocks co-resident, for kernels with a grid barrier
  uint32_t cluster = 0;           // blocks per cluster along x; 0 and 1: no cluster
  bool overlap_previous = false;  // programmatic dependent launch: may start before the previous kernel ends
};

class Kernel;

class Module {
 public:
  // `label` names the image in messages: "sm_86 rms_norm.cubin". The caller may free the image once this returns.
  Module(const Device& device, std::span<const std::byte> image, std::string label);

  Kernel kernel(const std::string& name) const;
  const std::string& label() const { return resource_->label; }

 private:
  friend class Kernel;
  struct Loaded {
    Resource module;
    std::string label;
  };
  std::shared_ptr<const Loaded> resource_;
};

// A kernel keeps its module loaded.
class Kernel {
 public:
  const std::string& name() const { return name_; }
  int max_threads() const { return attribute(KernelAttribute::kMaxThreads); }
  int registers() const { return attribute(KernelAttribute::kRegisters); }
  int static_shared_bytes() const { return attribute(KernelAttribute::kStaticShared); }
  int local_bytes() const { return attribute(KernelAttribute::kLocal); }  // stack and spills per thread
  size_t max_dynamic_shared_bytes() const { return max_dynamic_shared_; }
  size_t params_bytes() const { return params_bytes_; }  // 0: the driver does not report it

  // Raises the limit of dynamic shared memory for later launches. Throws when the device has less.
  void allow_shared(size_t bytes);
  // Sets the shared memory carve-out of later launches: the percentage of the SM's unified memory for L1 and shared
  // memory that becomes shared memory, rounded up to the next size that the device supports. An SM changes its
  // carve-out only while it is idle, so kernels that overlap need equal carve-outs. On devices without overlap the
  // driver chooses.
  void set_carveout(int shared_percent);
  static constexpr int kMaxCarveout = 100;  // percent
  // Maximum number of blocks co-resident on one SM.
  int occupancy(int threads, size_t shared_bytes) const;

  const Context& context() const { return module_->module.context(); }
  Handle handle() const { return handle_; }

 private:
  friend class Module;
  Kernel(std::shared_ptr<const Module::Loaded> module, std::string name);
  int attribute(KernelAttribute which) const;

  std::shared_ptr<const Module::Loaded> module_;
  std::string name_;
  Handle handle_ = nullptr;
  size_t max_dynamic_shared_ = 0;
  int carveout_ = -1;  // percent; -1: not set
  size_t params_bytes_ = 0;
};

}  // namespace lb::gpu
