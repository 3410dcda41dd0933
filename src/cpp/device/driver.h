// One function table per vendor's driver. CUDA's driver API and HIP's module API share almost every signature, so most
// entries are the library's own functions; small adapters cover the differences.
// No vendor header is needed: handles are opaque pointers, and so are device addresses. CUdeviceptr is an integer of
// pointer width, which every supported calling convention passes like a pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lb::gpu {

enum class Vendor { kCuda, kHip, kSim };
std::string_view name(Vendor vendor);  // "cuda", "hip", "sim"
Vendor vendor_from_name(std::string_view text);

using Handle = void*;
using Address = void*;
using Status = int;  // 0, or the driver's error number; CUDA and HIP use the same numbers

template <class... Args>
struct Call {
  const char* name = nullptr;             // the vendor's name, for messages
  Status (*function)(Args...) = nullptr;  // null: this driver lacks the function

  explicit operator bool() const { return function != nullptr; }
  Status operator()(Args... args) const { return function(args...); }
};

// Attribute ids, which differ per vendor; -1: the vendor has no such attribute.
struct DeviceAttributes {
  int n_sms, warp_size, threads_block, shared_block, shared_block_default, shared_sm, registers_sm, l2_bytes;
  int clock_khz, memory_clock_khz, bus_bits, integrated, cooperative, clusters;
};

// Kernel attributes; CUDA and HIP use the same numbers.
enum KernelAttribute : int {
  kMaxThreads = 0,
  kStaticShared = 1,
  kLocal = 3,
  kRegisters = 4,
  kMaxDynamicShared = 8,
  kSharedCarveout = 9  // shared memory's percentage of the SM's unified L1 and shared memory
};

// Layout of CUlaunchAttribute and CUlaunchConfig (CUDA 11.8 to 13).
struct LaunchAttribute {
  enum Id : uint32_t { kCooperative = 2, kCluster = 4, kOverlapPrevious = 6 };
  union Value {
    uint32_t cluster[3];
    int flag;
    uint64_t size[8];
  };
  Id id;
  Value value;
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {
  uint32_t grid[3], block[3], shared_bytes;
  Handle stream;
  const LaunchAttribute* attributes;
  uint32_t n_attributes;
};
static_assert(sizeof(LaunchConfig) == 56);

// A flag of stream_create that only the simulator knows: the stream runs its work in a thread of its own.
inline constexpr unsigned kSimOwnThread = 1u << 16;

struct Driver {
  Vendor vendor = Vendor::kSim;
  std::string library;  // file name of the loaded library
  std::string version;  // "CUDA 13.0", "HIP 7.1"
  std::string
      generation;  // compared with a pack's min_driver: NVIDIA's driver branch "580", HIP's "7.1", empty for sim
  int n_devices = 0;
  DeviceAttributes attributes = {};
  std::string (*error_text)(Status status) = nullptr;  // "CUDA_ERROR_INVALID_VALUE (1)", plus details the driver has
  std::string (*architecture)(const Driver& driver, int device) = nullptr;  // "sm_90", "gfx1151", "sim"

  Call<int*, int> device_get;             // device, index
  Call<char*, int, int> device_name;      // text, its size, device
  Call<char*, int> device_uuid;           // 16 bytes, device; optional
  Call<char*, int, int> device_pci;       // text, its size, device
  Call<size_t*, int> device_memory;       // total bytes, device
  Call<int*, int, int> device_attribute;  // value, attribute, device
  Call<Handle*, int> context_retain;      // context, device
  Call<int> context_release;              // device; optional
  Call<Handle> context_use;               // makes the context current on the calling thread
  Call<size_t*, size_t*> memory_info;     // free, total
  Call<int*, int, int> peer_possible;     // answer, device, peer; optional, as are the next two
  Call<Handle, unsigned> peer_enable;     // context of the peer, 0
  Call<Address, Handle, Address, Handle, size_t, Handle>
      peer_copy;  // to, its context, from, its context, bytes, stream

  Call<Address*, size_t> memory_allocate;
  Call<Address> memory_free;
  Call<void**, size_t, unsigned> host_allocate;
  Call<void*> host_free;
  Call<void*, size_t, unsigned> host_register;  // pages of the process, bytes, flags; optional, as is the next
  Call<void*> host_unregister;
  Call<Address, const void*, size_t, Handle> copy_to_device;  // to, from, bytes, stream
  Call<void*, Address, size_t, Handle> copy_to_host;
  Call<Address, Address, size_t, Handle> copy_on_device;
  Call<Address, unsigned char, size_t, Handle> fill;

  Call<Handle*, unsigned, int> stream_create;  // flags, priority: 0, or less for an earlier start
  Call<Handle> stream_destroy, stream_synchronize, stream_query;
  Call<Handle, Handle, unsigned> stream_wait;  // stream, event, 0
  Call<Handle*, unsigned> event_create;
  Call<Handle> event_destroy, event_synchronize, event_query;
  Call<Handle, Handle> event_record;  // event, stream
  Call<float*, Handle, Handle> event_elapsed;

  Call<Handle*, const void*> module_load;
  Call<Handle> module_unload;
  Call<Handle*, Handle, const char*> module_kernel;
  Call<int*, int, Handle> kernel_attribute;                 // value, KernelAttribute, kernel
  Call<Handle, int, int> kernel_set_attribute;              // optional: HIP needs no opt-in to large shared memory
  Call<Handle, size_t, size_t*, size_t*> kernel_parameter;  // kernel, index, offset, bytes; optional
  Call<int*, Handle, int, size_t> occupancy;                // blocks per SM, kernel, threads, dynamic shared bytes
  Call<Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**> launch;
  Call<Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**> launch_cooperative;
  Call<const LaunchConfig*, Handle, void**, void**> launch_with;  // optional
  Call<Handle, void (*)(void*), void*> launch_host;               // stream, function, its argument; optional

  Call<Handle, int> capture_begin;    // stream, mode; optional, like every graph function
  Call<Handle, Handle*> capture_end;  // stream, graph
  Call<Handle*, Handle, unsigned long long> graph_instantiate;
  Call<Handle, Handle, Handle*, int*> graph_update;  // executable, graph, first node that differs, reason
  Call<Handle, Handle> graph_launch;
  Call<Handle> graph_destroy, graph_executable_destroy;
};

// Loads the vendor's library on first use and keeps it loaded. Throws Error(kDevice) when the library is missing or too
// old; the message tells what to install. n_devices is 0 when the driver sees no device.
const Driver& driver(Vendor vendor);

// One table per file, selected by driver().
const Driver& cuda_driver();
const Driver& hip_driver();
const Driver& sim_driver();

}  // namespace lb::gpu
