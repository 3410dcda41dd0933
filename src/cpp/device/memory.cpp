// Allocates device and pinned memory; an error names the bytes requested and the bytes free.
#include "device/memory.h"

#include <iterator>

#include "device/numa.h"

namespace lb::gpu {
namespace {

Resource allocate(const Device& device, size_t bytes, Buffer::Kind kind) {
  if (bytes == 0) return {};
  const Context& context = *device.context();
  const Driver& d = context.driver();
  void* address = nullptr;
  if (kind == Buffer::Kind::kPinned) {
    const NumaPreference near(numa_node(context.info().pci));
    context.check(d.host_allocate.name, context.status_of(d.host_allocate, &address, bytes, 0),
                  cat(bytes, " bytes of pinned host memory"));
    return Resource(device.context(), address, &Driver::host_free);
  }
  if (const Status status = context.status_of(d.memory_allocate, &address, bytes)) {
    const MemoryInfo memory = device.memory();
    context.check(d.memory_allocate.name, status,
                  cat(bytes, " bytes requested, ", memory.free_bytes, " of ", memory.total_bytes, " free"));
  }
  return Resource(device.context(), address, &Driver::memory_free);
}

}  // namespace

Buffer::Buffer(const Device& device, size_t bytes, Kind kind)
    : resource_(allocate(device, bytes, kind)), size_(bytes) {}

SharedPages::SharedPages(std::initializer_list<const Device*> devices, size_t bytes) : pages_(bytes) {
  // Registering commits the pages, near the last device, which reads them.
  const NumaPreference near(numa_node((*std::prev(devices.end()))->info().pci));
  for (const Device* device : devices) {
    const Context& context = *device->context();
    const Driver& d = context.driver();
    if (d.host_register && d.host_unregister && context.status_of(d.host_register, pages_.data(), bytes, 0) == 0)
      registrations_.emplace_back(device->context(), pages_.data(), &Driver::host_unregister);
  }
}

}  // namespace lb::gpu
