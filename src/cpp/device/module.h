// Code objects on a device, and the kernels in them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "device/device.h"

namespace lb::gpu {

// How a kernel is launched; src/cpp/launch chooses it.
struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};   // blocks
  uint32_t block[3] = {1, 1, 1};  // threads
  size_t shared_bytes = 0;        // dynamic shared memory of a block
  bool cooperative = false;       // all blocks resident at once: the kernel has a grid barrier
  uint32_t cluster = 0;           // blocks of a cluster along x; 0 and 1: none
  bool overlap_previous = false;  // may start while the kernel before it ends (programmatic dependent launch)
};

class Kernel;

class Module {
 public:
  // `label` names the image in messages: "sm_86 rms_norm.cubin". The bytes may go after this returns.
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

// Keeps its module loaded.
class Kernel {
 public:
  const std::string& name() const { return name_; }
  int max_threads() const { return attribute(KernelAttribute::kMaxThreads); }
  int registers() const { return attribute(KernelAttribute::kRegisters); }
  int static_shared_bytes() const { return attribute(KernelAttribute::kStaticShared); }
  int local_bytes() const { return attribute(KernelAttribute::kLocal); }  // a thread's stack and spills
  size_t max_dynamic_shared_bytes() const { return max_dynamic_shared_; }
  size_t params_bytes() const { return params_bytes_; }  // 0: the driver does not tell

  // Launches may use up to this much dynamic shared memory. Throws when the device has less.
  void allow_shared(size_t bytes);
  // How launches from now on divide what L1 and shared memory have together: percent that are shared memory, or the
  // next more that there is. A multiprocessor divides it anew only while it is empty, so kernels that overlap want the
  // same division. Without overlap it is left to the driver.
  void divide(int shared_share);
  static constexpr int kAllShared = 100;
  // Blocks that fit on one SM at once.
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
  int shared_share_ = -1;
  size_t params_bytes_ = 0;
};

}  // namespace lb::gpu
