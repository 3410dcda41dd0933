// Pack: the kernels of a target, loaded on a device from a manifest and code objects.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "device/memory.h"
#include "device/module.h"
#include "device/queue.h"
#include "pack/target.h"

namespace lb::gpu {

class Pack {
 public:
  using Files = std::map<std::string, std::span<const std::byte>, std::less<>>;

  // files: the manifest's code objects by name. Throws if one of the manifest's files or kernels is missing; the
  // message names it.
  Pack(const Device& device, std::string_view manifest_json, const Files& files);
  // Without kernels: streams on it can only copy.
  explicit Pack(const Device& device) : device_(device) {}

  const Device& device() const { return device_; }
  const Target& target() const { return target_; }
  const Kernel& kernel(std::string_view name) const;

  // Sends a launch to a queue. Pointers in `params` are device pointers.
  template <class Params>
  void run(const Launch& launch, const Params& params, const Queue& queue) {
    run(launch, &params, sizeof params, queue);
  }
  void run(const Launch& launch, const void* params, size_t params_bytes, const Queue& queue);

 private:
  Device device_;
  Target target_;
  std::map<std::string, Kernel, std::less<>> kernels_;
};

}  // namespace lb::gpu
