// NVIDIA: libcuda.so.1. cuGetProcAddress_v2 looks up every function with the CUDA version that introduced the signature
// declared here, so the driver picks the matching revision of the function.
#include <array>

#include "base/error.h"
#include "device/driver.h"
#include "device/driver_error.h"
#include "device/library.h"

namespace lb::gpu {
namespace {

constexpr const char* kRemedy =
    "Install the newest NVIDIA driver for this GPU, or choose another device. lucebox needs driver 525 or newer, and "
    "`lucebox doctor` says which one a GPU needs.";

struct Branch {
  int cuda;
  const char* driver;
};

// The first driver branch of each CUDA version, from the release notes of the toolkit.
constexpr std::array kBranches = {
    Branch{11000, "450"}, Branch{11010, "455"}, Branch{11020, "460"}, Branch{11030, "465"}, Branch{11040, "470"},
    Branch{11050, "495"}, Branch{11060, "510"}, Branch{11070, "515"}, Branch{11080, "520"}, Branch{12000, "525"},
    Branch{12010, "530"}, Branch{12020, "535"}, Branch{12030, "545"}, Branch{12040, "550"}, Branch{12050, "555"},
    Branch{12060, "560"}, Branch{12080, "570"}, Branch{12090, "575"}, Branch{13000, "580"}, Branch{13010, "590"}};

const char* branch_of(int cuda_version) {
  const char* branch = "0";
  for (const Branch& b : kBranches)
    if (b.cuda <= cuda_version) branch = b.driver;
  return branch;
}

// CUdevice_attribute numbers.
constexpr DeviceAttributes kAttributes = {.n_sms = 16,
                                          .warp_size = 10,
                                          .threads_block = 1,
                                          .shared_block = 97,
                                          .shared_block_default = 8,
                                          .shared_sm = 81,
                                          .registers_sm = 82,
                                          .l2_bytes = 38,
                                          .clock_khz = 13,
                                          .memory_clock_khz = 36,
                                          .bus_bits = 37,
                                          .integrated = 18,
                                          .cooperative = 95,
                                          .clusters = 120};

Call<Status, const char**> error_name;

std::string error_text(Status status) {
  const char* text = nullptr;
  if (error_name) error_name(status, &text);
  return cat(text != nullptr ? text : "unknown error", " (", status, ")");
}

std::string architecture(const Driver& cuda, int device) {
  constexpr int kMajor = 75, kMinor = 76;
  int major = 0, minor = 0;
  check_call(cuda, cuda.device_attribute, &major, kMajor, device);
  check_call(cuda, cuda.device_attribute, &minor, kMinor, device);
  return cat("sm_", major, minor);
}

template <class Lookup>
void bind_devices_and_memory(Binder<Lookup>& bind, Driver& d) {
  bind.require(d.device_get, "cuDeviceGet", 2000);
  bind.require(d.device_name, "cuDeviceGetName", 2000);
  bind.optional(d.device_uuid, "cuDeviceGetUuid", 11040);
  bind.require(d.device_pci, "cuDeviceGetPCIBusId", 4010);
  bind.require(d.device_memory, "cuDeviceTotalMem", 3020);
  bind.require(d.device_attribute, "cuDeviceGetAttribute", 2000);
  bind.require(d.context_retain, "cuDevicePrimaryCtxRetain", 7000);
  bind.require(d.context_release, "cuDevicePrimaryCtxRelease", 11000);
  bind.require(d.context_use, "cuCtxSetCurrent", 4000);
  bind.require(d.memory_info, "cuMemGetInfo", 3020);
  bind.optional(d.peer_possible, "cuDeviceCanAccessPeer", 4000);
  bind.optional(d.peer_enable, "cuCtxEnablePeerAccess", 4000);
  bind.optional(d.peer_copy, "cuMemcpyPeerAsync", 4000);
  bind.require(d.memory_allocate, "cuMemAlloc", 3020);
  bind.require(d.memory_free, "cuMemFree", 3020);
  bind.require(d.host_allocate, "cuMemHostAlloc", 2020);
  bind.require(d.host_free, "cuMemFreeHost", 2000);
  bind.optional(d.host_register, "cuMemHostRegister", 6050);
  bind.optional(d.host_unregister, "cuMemHostUnregister", 4000);
  bind.require(d.copy_to_device, "cuMemcpyHtoDAsync", 3020);
  bind.require(d.copy_to_host, "cuMemcpyDtoHAsync", 3020);
  bind.require(d.copy_on_device, "cuMemcpyDtoDAsync", 3020);
  bind.require(d.fill, "cuMemsetD8Async", 3020);
}

template <class Lookup>
void bind_execution(Binder<Lookup>& bind, Driver& d) {
  bind.require(d.stream_create, "cuStreamCreateWithPriority", 5050);
  bind.require(d.stream_destroy, "cuStreamDestroy", 4000);
  bind.require(d.stream_synchronize, "cuStreamSynchronize", 2000);
  bind.require(d.stream_query, "cuStreamQuery", 2000);
  bind.require(d.stream_wait, "cuStreamWaitEvent", 3020);
  bind.require(d.event_create, "cuEventCreate", 2000);
  bind.require(d.event_destroy, "cuEventDestroy", 4000);
  bind.require(d.event_record, "cuEventRecord", 2000);
  bind.require(d.event_synchronize, "cuEventSynchronize", 2000);
  bind.require(d.event_query, "cuEventQuery", 2000);
  bind.require(d.event_elapsed, "cuEventElapsedTime", 2000);
  bind.require(d.module_load, "cuModuleLoadData", 2000);
  bind.require(d.module_unload, "cuModuleUnload", 2000);
  bind.require(d.module_kernel, "cuModuleGetFunction", 2000);
  bind.require(d.kernel_attribute, "cuFuncGetAttribute", 2020);
  bind.require(d.kernel_set_attribute, "cuFuncSetAttribute", 9000);
  bind.optional(d.kernel_parameter, "cuFuncGetParamInfo", 12040);
  bind.require(d.occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050);
  bind.require(d.launch, "cuLaunchKernel", 4000);
  bind.require(d.launch_cooperative, "cuLaunchCooperativeKernel", 9000);
  bind.optional(d.launch_with, "cuLaunchKernelEx", 11060);
  bind.optional(d.launch_host, "cuLaunchHostFunc", 10000);
  bind.optional(d.capture_begin, "cuStreamBeginCapture", 10010);
  bind.optional(d.capture_end, "cuStreamEndCapture", 10000);
  bind.optional(d.graph_instantiate, "cuGraphInstantiateWithFlags", 11040);
  bind.optional(d.graph_update, "cuGraphExecUpdate", 10020);  // the revision of 10.2 has HIP's signature
  bind.optional(d.graph_launch, "cuGraphLaunch", 10000);
  bind.optional(d.graph_destroy, "cuGraphDestroy", 10000);
  bind.optional(d.graph_executable_destroy, "cuGraphExecDestroy", 10000);
}

std::string version_text(int version) { return cat("CUDA ", version / 1000, ".", version % 1000 / 10); }

// Throws for a library without cuGetProcAddress_v2: the message says what was loaded instead.
[[noreturn]] void fail_too_old(const Library& library) {
  const auto driver_version = reinterpret_cast<Status (*)(int*)>(library.find("cuDriverGetVersion"));
  int version = 0;
  const bool is_driver = driver_version != nullptr && driver_version(&version) == 0;
  const std::string found = is_driver
                                ? cat("a driver for ", version_text(version), " (branch ", branch_of(version), ")")
                                : std::string("no NVIDIA driver");
  fail(ErrorCode::kDevice, library.file(), " is ", found,
       ": it has no cuGetProcAddress_v2, which came with CUDA 12.0. ", kRemedy);
}

using GetProcAddress = Status (*)(const char*, void**, int, uint64_t, int*);

// The toolkit's stub has every function, and each only returns this status.
void fail_if_stub(const Library& library, GetProcAddress get_proc_address) {
  constexpr Status kStubLibrary = 34;
  void* function = nullptr;
  int lookup_result = 0;
  LB_CHECK(get_proc_address("cuInit", &function, 2000, 0, &lookup_result) != kStubLibrary, kDevice,
           "[cuda] cuGetProcAddress_v2: CUDA_ERROR_STUB_LIBRARY (34): ", library.file(),
           " is the toolkit's stub for linking, not the driver; remove its folder from the library path");
}

Driver load() {
  const Library library = Library::open({"libcuda.so.1"}, "NVIDIA driver", kRemedy);
  const auto get_proc_address = reinterpret_cast<GetProcAddress>(library.find("cuGetProcAddress_v2"));
  if (get_proc_address == nullptr) fail_too_old(library);
  fail_if_stub(library, get_proc_address);
  Binder bind([&](const char* name, int version) {
    void* function = nullptr;
    int lookup_result = 0;
    return get_proc_address(name, &function, version, 0, &lookup_result) == 0 ? function : nullptr;
  });

  Driver d;
  d.vendor = Vendor::kCuda;
  d.library = library.file();
  d.attributes = kAttributes;
  d.error_text = error_text;
  d.architecture = architecture;

  Call<unsigned> init;
  Call<int*> driver_version, device_count;
  bind.require(init, "cuInit", 2000);
  bind.require(driver_version, "cuDriverGetVersion", 2020);
  bind.require(device_count, "cuDeviceGetCount", 2000);
  bind.require(error_name, "cuGetErrorName", 6000);
  bind_devices_and_memory(bind, d);
  bind_execution(bind, d);
  LB_CHECK(bind.missing().empty(), kDevice, library.file(), " lacks ", bind.missing(),
           ": the driver is too old or damaged. ", kRemedy);

  int version = 0;
  check_call(d, driver_version, &version);
  d.version = version_text(version);
  d.generation = branch_of(version);
  const Status status = init(0);
  if (status == kNoDevice) return d;
  check_status(d, init.name, status);
  check_call(d, device_count, &d.n_devices);
  return d;
}

}  // namespace

const Driver& cuda_driver() {
  static const Driver cuda = load();
  return cuda;
}

}  // namespace lb::gpu
