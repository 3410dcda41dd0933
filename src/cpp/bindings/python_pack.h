// gpu.Pack: a kernel pack loaded on a device. It records single ops' launches for lucebox._kernels.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/queue.h"
#include "pack/pack.h"

namespace lb {

class PythonPack {
 public:
  PythonPack(const gpu::Device& device, const std::string& manifest_json,
             const std::map<std::string, nanobind::bytes>& files)
      : pack_(std::make_shared<gpu::Pack>(device, manifest_json, views(files))), stream_(device) {}

  const gpu::Target& target() const { return pack_->target(); }
  // "cuda:0"; the simulator is "sim".
  std::string name() const {
    const gpu::DeviceInfo& info = device().info();
    return info.vendor == gpu::Vendor::kSim ? "sim" : cat(gpu::name(info.vendor), ":", info.index);
  }
  const gpu::Device& device() const { return pack_->device(); }
  const gpu::Queue& stream() const { return stream_; }
  const std::shared_ptr<gpu::Pack>& shared() const { return pack_; }

  template <class Params>
  void run(const gpu::Launch& launch, const Params& params) {
    started_.emplace_back(launch.kernel);
    last_ = gpu::to_string(launch);
    pack_->run(launch, params, stream_);
  }
  std::vector<std::string> take_started() { return std::exchange(started_, {}); }
  const std::string& last() const { return last_; }

 private:
  static gpu::Pack::Files views(const std::map<std::string, nanobind::bytes>& files) {
    gpu::Pack::Files result;
    for (const auto& [name, bytes] : files) result[name] = std::as_bytes(std::span(bytes.c_str(), bytes.size()));
    return result;
  }

  std::shared_ptr<gpu::Pack> pack_;
  gpu::Queue stream_;
  std::vector<std::string> started_;
  std::string last_;
};

}  // namespace lb
