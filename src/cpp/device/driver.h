// The driver of a vendor as one table of functions. CUDA's driver API and HIP's module API agree in almost every
// signature, so most entries are the library's own functions; an adapter of a few lines stands where they differ.
// No vendor header is needed: handles are opaque pointers, and a device address is a pointer too (CUdeviceptr is an
// integer of the same width, which every calling convention we build for passes alike).
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
using Status = int;  // 0, or the error number of the driver; CUDA and HIP number theirs alike

template <class... Args>
struct Call {
  const char* name = nullptr;             // as the vendor spells it, for messages
  Status (*function)(Args...) = nullptr;  // null: this driver does not have it

  explicit operator bool() const { return function != nullptr; }
  Status operator()(Args... args) const { return function(args...); }
};

// Vendors number the same attributes differently; -1: this vendor has none.
struct DeviceAttributes {
  int n_sms, warp_size, threads_block, shared_block, shared_block_default, shared_sm, registers_sm, l2_bytes;
  int clock_khz, memory_clock_khz, bus_bits, integrated, cooperative, clusters;
};

// Attributes of a kernel; the numbers are CUDA's and HIP's alike.
enum KernelAttribute : int {
  kMaxThreads = 0,
  kStaticShared = 1,
  kLocal = 3,
  kRegisters = 4,
  kMaxDynamicShared = 8,
  kSharedShare = 9  // percent of what L1 and shared memory divide between them
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

struct Driver {
  Vendor vendor = Vendor::kSim;
  std::string library;     // the file it came from
  std::string version;     // "CUDA 13.0", "HIP 7.1"
  std::string generation;  // compared with a pack's min_driver: NVIDIA's driver branch "580", HIP's "7.1", none for sim
  int n_devices = 0;
  DeviceAttributes attributes = {};
  std::string (*describe)(Status status) = nullptr;  // "CUDA_ERROR_INVALID_VALUE (1)", with what the driver adds
  std::string (*architecture)(const Driver& driver, int device) = nullptr;  // "sm_90", "gfx1151", "sim"

  Call<int*, int> device_get;             // device, index
  Call<char*, int, int> device_name;      // text, its size, device
  Call<char*, int> device_uuid;           // 16 bytes, device; optional
  Call<char*, int, int> device_pci;       // text, its size, device
  Call<size_t*, int> device_memory;       // total bytes, device
  Call<int*, int, int> device_attribute;  // value, attribute, device
  Call<Handle*, int> context_retain;      // context, device
  Call<int> context_release;              // device; optional
  Call<Handle> context_use;               // makes it the calling thread's
  Call<size_t*, size_t*> memory_info;     // free, total
  Call<int*, int, int> peer_possible;     // answer, device, peer; optional, as are the next two
  Call<Handle, unsigned> peer_enable;     // context of the peer, 0
  Call<Address, Handle, Address, Handle, size_t, Handle>
      peer_copy;  // to, its context, from, its context, bytes, stream

  Call<Address*, size_t> memory_allocate;
  Call<Address> memory_free;
  Call<void**, size_t, unsigned> host_allocate;
  Call<void*> host_free;
  Call<Address, const void*, size_t, Handle> copy_to_device;  // to, from, bytes, stream
  Call<void*, Address, size_t, Handle> copy_to_host;
  Call<Address, Address, size_t, Handle> copy_on_device;
  Call<Address, unsigned char, size_t, Handle> fill;

  Call<Handle*, unsigned> stream_create;
  Call<Handle> stream_destroy, stream_synchronize, stream_query;
  Call<Handle, Handle, unsigned> stream_wait;  // stream, event, 0
  Call<Handle*, unsigned> event_create;
  Call<Handle> event_destroy, event_synchronize;
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

  Call<Handle, int> capture_begin;    // stream, mode; optional, as all of graphs
  Call<Handle, Handle*> capture_end;  // stream, graph
  Call<Handle*, Handle, unsigned long long> graph_instantiate;
  Call<Handle, Handle, Handle*, int*> graph_update;  // executable, graph, first node that differs, reason
  Call<Handle, Handle> graph_launch;
  Call<Handle> graph_destroy, graph_executable_destroy;
};

// Loads the vendor's library at first use, for the life of the process. Throws Error(kDevice) with what to install when
// it is missing or too old; a machine whose driver sees no device gives n_devices = 0.
const Driver& driver(Vendor vendor);

// The parts of driver(), one per file.
const Driver& cuda_driver();
const Driver& hip_driver();
const Driver& sim_driver();

}  // namespace lb::gpu
