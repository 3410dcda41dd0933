#include "bindings/kernels/op_memory.h"

#include <algorithm>
#include <cstring>

#include "quant/repack.h"

namespace lb::kernels {

std::byte* HostMemory::reserve(size_t bytes) {
  std::byte* data = memory_.emplace_back(new std::byte[bytes]).get();
  std::memset(data, 0xff, bytes);
  return data;
}

void HostMemory::upload(std::byte* to, const void* from, size_t bytes) {
  std::copy_n(static_cast<const std::byte*>(from), bytes, to);
}

void HostMemory::download(void* to, const std::byte* from, size_t bytes) {
  std::copy_n(from, bytes, static_cast<std::byte*>(to));
}

std::byte* DeviceMemory::reserve(size_t bytes) {
  const gpu::Buffer& buffer = buffers_.emplace_back(pack_.device(), std::max<size_t>(bytes, 16));
  pack_.queue().fill(buffer.data(), 0xff, buffer.size());
  pack_.queue().synchronize();  // ops run on another queue
  return buffer.data();
}

void DeviceMemory::upload(std::byte* to, const void* from, size_t bytes) {
  if (bytes > 0) pack_.queue().copy_to_device(to, from, bytes);
  pack_.queue().synchronize();
}

void DeviceMemory::download(void* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) pack_.queue().copy_to_host(to, const_cast<std::byte*>(from), bytes);
  pack_.queue().synchronize();
}

const void* DeviceMemory::weights(const AnyArray& blocks, DType& type, int n_out, int n_in) {
  std::vector<std::byte> planes(quant::checked_plane_layout(type, n_out, n_in).bytes);
  quant::to_planes(type, n_out, n_in, blocks.data(), planes.data());
  type = quant::device_type(type);
  std::byte* data = reserve(planes.size());
  upload(data, planes.data(), planes.size());
  return data;
}

}  // namespace lb::kernels
