// gpu.Pack: a kernel pack loaded on a device. lucebox._kernels runs single ops on it and records their launches.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/queue.h"
#include "pack/launch.h"
#include "pack/pack.h"

namespace lb {

class PythonPack {
 public:
  PythonPack(const gpu::Device& device, const std::string& manifest_json,
             const std::map<std::string, nanobind::bytes>& files)
      : pack_(std::make_shared<gpu::Pack>(device, manifest_json, views(files))), queue_(device) {}

  const gpu::Target& target() const { return pack_->target(); }
  // "cuda:0"
  std::string name() const { return cat(gpu::name(device().info().vendor), ":", device().info().index); }
  const gpu::Device& device() const { return pack_->device(); }
  const gpu::Queue& queue() const { return queue_; }
  const std::shared_ptr<gpu::Pack>& shared() const { return pack_; }

  std::vector<gpu::Launch>& launches() { return launches_; }

 private:
  static gpu::Pack::Files views(const std::map<std::string, nanobind::bytes>& files) {
    gpu::Pack::Files result;
    for (const auto& [name, bytes] : files) result[name] = std::as_bytes(std::span(bytes.c_str(), bytes.size()));
    return result;
  }

  std::shared_ptr<gpu::Pack> pack_;
  gpu::Queue queue_;
  std::vector<gpu::Launch> launches_;
};

}  // namespace lb
