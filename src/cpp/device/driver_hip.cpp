// AMD: libamdhip64 of ROCm 7 or 6. HIP has no contexts: the device number stands for the context, and calls act on the
// calling thread's current device.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/driver.h"
#include "device/driver_error.h"
#include "device/library.h"

namespace lb::gpu {
namespace {

constexpr const char* kRemedy = "Install ROCm 6 or newer (libamdhip64), or choose another device.";

// Only hipGetDevicePropertiesR0600 reports the architecture; ROCm 6 and 7 share this revision of the properties.
// Size of its struct, and byte offsets of the fields read here (x86-64 and aarch64).
constexpr size_t kPropertiesBytes = 1472;
constexpr size_t kWarpSizeAt = 308, kComputeUnitsAt = 388, kArchitectureAt = 1160, kArchitectureBytes = 256;

// hipDeviceAttribute_t numbers.
constexpr DeviceAttributes kAttributes = {.n_sms = 63,
                                          .warp_size = 87,
                                          .threads_block = 56,
                                          .shared_block = 75,
                                          .shared_block_default = 74,
                                          .shared_sm = 10002,
                                          .registers_sm = 72,
                                          .l2_bytes = 19,
                                          .clock_khz = 5,
                                          .memory_clock_khz = 60,
                                          .bus_bits = 59,
                                          .integrated = 16,
                                          .cooperative = 10,
                                          .clusters = -1};

// Functions that adapters call. load() sets them before any adapter can be called.
struct Functions {
  Call<int> use_device;
  Call<int, unsigned> enable_peer;
  Call<Address, int, Address, int, size_t, Handle> copy_peer;
  Call<void*, int> properties;
  const char* (*error_name)(Status) = nullptr;
} hip;

std::string error_text(Status status) { return cat(hip.error_name(status), " (", status, ")"); }

Handle context_of(int device) { return reinterpret_cast<Handle>(intptr_t(device) + 1); }  // never null
int device_of(Handle context) { return int(reinterpret_cast<intptr_t>(context) - 1); }

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::string architecture(const Driver& d, int device) {
  std::byte properties[2 * kPropertiesBytes] = {};  // room for a later, larger revision
  check_call(d, hip.properties, properties, device);
  const char* text = reinterpret_cast<const char*>(properties) + kArchitectureAt;
  std::string name(text, std::find(text, text + kArchitectureBytes, '\0'));
  name.resize(std::min(name.size(), name.find(':')));  // "gfx90a:sramecc+:xnack-"

  // Detects another struct layout by two fields that are also attributes.
  int warp_size = 0, compute_units = 0;
  check_call(d, d.device_attribute, &warp_size, d.attributes.warp_size, device);
  check_call(d, d.device_attribute, &compute_units, d.attributes.n_sms, device);
  LB_CHECK(name.starts_with("gfx") && read<int>(properties + kWarpSizeAt) == warp_size &&
               read<int>(properties + kComputeUnitsAt) == compute_units,
           kDevice, d.library, " (", d.version,
           ") lays out hipDeviceProp_t in a way this version of lucebox does not know: architecture '", name, "', ",
           read<int>(properties + kComputeUnitsAt), " compute units where the attribute says ", compute_units,
           ". Update lucebox.");
  return name;
}

template <class Lookup>
void bind_devices_and_memory(Binder<Lookup>& bind, Driver& d) {
  bind.require(hip.use_device, "hipSetDevice");
  bind.require(hip.properties, "hipGetDevicePropertiesR0600");
  bind.require(d.device_get, "hipDeviceGet");
  bind.require(d.device_name, "hipDeviceGetName");
  bind.optional(d.device_uuid, "hipDeviceGetUuid");
  bind.require(d.device_pci, "hipDeviceGetPCIBusId");
  bind.require(d.device_memory, "hipDeviceTotalMem");
  bind.require(d.device_attribute, "hipDeviceGetAttribute");
  bind.require(d.memory_info, "hipMemGetInfo");
  bind.optional(d.peer_possible, "hipDeviceCanAccessPeer");
  bind.optional(hip.enable_peer, "hipDeviceEnablePeerAccess");
  bind.optional(hip.copy_peer, "hipMemcpyPeerAsync");
  bind.require(d.memory_allocate, "hipMalloc");
  bind.require(d.memory_free, "hipFree");
  bind.require(d.host_allocate, "hipHostMalloc");
  bind.require(d.host_free, "hipHostFree");
  bind.optional(d.host_register, "hipHostRegister");
  bind.optional(d.host_unregister, "hipHostUnregister");
  bind.require(d.copy_to_device, "hipMemcpyHtoDAsync");
  bind.require(d.copy_to_host, "hipMemcpyDtoHAsync");
  bind.require(d.copy_on_device, "hipMemcpyDtoDAsync");
  bind.require(d.fill, "hipMemsetD8Async");
}

template <class Lookup>
void bind_execution(Binder<Lookup>& bind, Driver& d) {
  bind.require(d.stream_create, "hipStreamCreateWithPriority");
  bind.require(d.stream_destroy, "hipStreamDestroy");
  bind.require(d.stream_synchronize, "hipStreamSynchronize");
  bind.require(d.stream_query, "hipStreamQuery");
  bind.require(d.stream_wait, "hipStreamWaitEvent");
  bind.require(d.event_create, "hipEventCreateWithFlags");
  bind.require(d.event_destroy, "hipEventDestroy");
  bind.require(d.event_record, "hipEventRecord");
  bind.require(d.event_synchronize, "hipEventSynchronize");
  bind.require(d.event_query, "hipEventQuery");
  bind.require(d.event_elapsed, "hipEventElapsedTime");
  bind.require(d.module_load, "hipModuleLoadData");
  bind.require(d.module_unload, "hipModuleUnload");
  bind.require(d.module_kernel, "hipModuleGetFunction");
  bind.require(d.kernel_attribute, "hipFuncGetAttribute");
  bind.require(d.occupancy, "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor");
  bind.require(d.launch, "hipModuleLaunchKernel");
  bind.require(d.launch_cooperative, "hipModuleLaunchCooperativeKernel");
  bind.optional(d.capture_begin, "hipStreamBeginCapture");
  bind.optional(d.capture_end, "hipStreamEndCapture");
  bind.optional(d.graph_instantiate, "hipGraphInstantiateWithFlags");
  bind.optional(d.graph_update, "hipGraphExecUpdate");
  bind.optional(d.graph_launch, "hipGraphLaunch");
  bind.optional(d.graph_destroy, "hipGraphDestroy");
  bind.optional(d.graph_executable_destroy, "hipGraphExecDestroy");
}

// Functions whose CUDA signature takes a context where HIP's takes a device number.
void bind_adapters(Driver& d) {
  d.context_retain = {"hipSetDevice", [](Handle* context, int device) {
                        *context = context_of(device);
                        return hip.use_device(device);
                      }};
  d.context_use = {"hipSetDevice", [](Handle context) { return hip.use_device(device_of(context)); }};
  d.peer_enable = {"hipDeviceEnablePeerAccess", nullptr};
  if (hip.enable_peer)
    d.peer_enable.function = [](Handle peer, unsigned flags) { return hip.enable_peer(device_of(peer), flags); };
  d.peer_copy = {"hipMemcpyPeerAsync", nullptr};
  if (hip.copy_peer)
    d.peer_copy.function = [](Address to, Handle to_context, Address from, Handle from_context, size_t bytes,
                              Handle stream) {
      return hip.copy_peer(to, device_of(to_context), from, device_of(from_context), bytes, stream);
    };
}

Driver load() {
  const Library library = Library::open({"libamdhip64.so.7", "libamdhip64.so.6"}, "AMD HIP runtime", kRemedy);
  Binder bind([&](const char* name) { return library.find(name); });

  Driver d;
  d.vendor = Vendor::kHip;
  d.library = library.file();
  d.attributes = kAttributes;
  d.error_text = error_text;
  d.architecture = architecture;

  Call<unsigned> init;
  Call<int*> runtime_version, device_count;
  bind.require(init, "hipInit");
  bind.require(runtime_version, "hipRuntimeGetVersion");
  bind.require(device_count, "hipGetDeviceCount");
  bind_devices_and_memory(bind, d);
  bind_execution(bind, d);
  hip.error_name = reinterpret_cast<const char* (*)(Status)>(library.find("hipGetErrorName"));
  LB_CHECK(bind.missing().empty() && hip.error_name != nullptr, kDevice, library.file(), " lacks ",
           bind.missing().empty() ? "hipGetErrorName" : bind.missing(), ": the runtime is too old or damaged. ",
           kRemedy);

  bind_adapters(d);

  int version = 0;
  check_call(d, runtime_version, &version);
  d.generation = cat(version / 10'000'000, ".", version / 100'000 % 100);
  d.version = cat("HIP ", d.generation);
  const Status status = init(0);
  if (status == kNoDevice) return d;
  check_status(d, init.name, status);
  const Status counted = device_count(&d.n_devices);
  if (counted != kNoDevice) check_status(d, device_count.name, counted);
  return d;
}

}  // namespace

const Driver& hip_driver() {
  static const Driver hip_table = load();
  return hip_table;
}

}  // namespace lb::gpu
