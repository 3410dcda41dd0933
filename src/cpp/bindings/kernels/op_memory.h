// The memory of single ops: of the host, or of a pack's device.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "bindings/kernels/op_fields.h"
#include "bindings/python_pack.h"
#include "device/memory.h"

namespace lb::kernels {

class HostMemory final : public OpMemory {
 public:
  std::byte* reserve(size_t bytes) override;
  void upload(std::byte* to, const void* from, size_t bytes) override;
  void download(void* to, const std::byte* from, size_t bytes) override;
  const void* weights(const AnyArray& blocks, DType&, int, int) override { return blocks.data(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

class DeviceMemory final : public OpMemory {
 public:
  explicit DeviceMemory(PythonPack& pack) : pack_(pack) {}

  std::byte* reserve(size_t bytes) override;
  void upload(std::byte* to, const void* from, size_t bytes) override;
  void download(void* to, const std::byte* from, size_t bytes) override;
  const void* weights(const AnyArray& blocks, DType& type, int n_out, int n_in) override;

 private:
  PythonPack& pack_;
  std::deque<gpu::Buffer> buffers_;
};

}  // namespace lb::kernels
