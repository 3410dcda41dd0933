// libcuda.so.1 for tests: the entry points lucebox uses, over the simulated device. Like the real one it hands
// functions out by name and version, and refuses calls on a thread without a context.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "script.h"

namespace standin {
namespace {

thread_local Handle current = nullptr;

template <size_t n>
struct Name {
  char text[n];
  constexpr Name(const char (&from)[n]) {
    for (size_t i = 0; i < n; ++i) text[i] = from[i];
  }
};

// The driver's function of this name, as the simulator's of this slot.
template <Name name, auto slot, bool needs_context = true, class Slot = decltype(slot)>
struct Forward;
template <Name name, auto slot, bool needs_context, class... Args>
struct Forward<name, slot, needs_context, Call<Args...> Driver::*> {
  static Status run(Args... args) {
    constexpr Status kInvalidContext = 201;
    if (needs_context && current == nullptr) return kInvalidContext;
    return pass(name.text, sim().*slot, args...);
  }
};

Status init(unsigned) {
  constexpr Status kNoDevice = 100;
  if (const Status status = scripted("cuInit")) return status;
  return script.n_devices == 0 ? kNoDevice : 0;
}

Status driver_version(int* version) {
  *version = script.version;
  return scripted("cuDriverGetVersion");
}

Status device_count(int* n) {
  *n = script.n_devices;
  return scripted("cuDeviceGetCount");
}

Status error_name(Status status, const char** text) {
  constexpr std::pair<Status, const char*> kNames[] = {{1, "CUDA_ERROR_INVALID_VALUE"},
                                                       {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                       {100, "CUDA_ERROR_NO_DEVICE"},
                                                       {200, "CUDA_ERROR_INVALID_IMAGE"},
                                                       {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                                       {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
                                                       {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
                                                       {500, "CUDA_ERROR_NOT_FOUND"},
                                                       {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                       {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
                                                       {719, "CUDA_ERROR_LAUNCH_FAILED"},
                                                       {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"},
                                                       {802, "CUDA_ERROR_SYSTEM_NOT_READY"},
                                                       {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
                                                       {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"},
                                                       {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
                                                       {999, "CUDA_ERROR_UNKNOWN"}};
  for (const auto& [number, name] : kNames)
    if (number == status) {
      *text = name;
      return 0;
    }
  *text = nullptr;
  return 1;
}

Status device_name(char* text, int size, int) {
  std::snprintf(text, size, "Stand-in GPU");
  return scripted("cuDeviceGetName");
}

Status device_pci(char* text, int size, int device) {
  std::snprintf(text, size, "0000:%02x:00.0", device + 1);
  return scripted("cuDeviceGetPCIBusId");
}

Status device_uuid(char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = char(0xa0 + device + i);
  return scripted("cuDeviceGetUuid");
}

Status device_attribute(int* value, int attribute, int) {
  int major = 0, minor = 0;
  std::sscanf(script.architecture.c_str(), "%d.%d", &major, &minor);
  const std::pair<int, int> attributes[] = {{1, 1024},   {10, 32},        {13, 1755000},   {16, 132},
                                            {18, 0},     {36, 2619000},   {37, 5120},      {38, 50 << 20},
                                            {75, major}, {76, minor},     {81, 228 << 10}, {82, 65536},
                                            {95, 1},     {97, 227 << 10}, {8, 48 << 10},   {120, major >= 9}};
  if (const Status status = scripted("cuDeviceGetAttribute")) return status;
  for (const auto& [id, known] : attributes)
    if (id == attribute) {
      *value = known;
      return 0;
    }
  return 1;
}

Status context_release(int) { return scripted("cuDevicePrimaryCtxRelease"); }

Status context_use(Handle context) {
  current = context;
  return pass("cuCtxSetCurrent", sim().context_use, context);
}

Status peer_enable(Handle peer, unsigned) {
  constexpr Status kAlreadyEnabled = 704;
  static std::set<std::pair<Handle, Handle>> enabled;
  if (const Status status = scripted("cuCtxEnablePeerAccess")) return status;
  return enabled.insert({current, peer}).second ? 0 : kAlreadyEnabled;
}

Status launch_with(const LaunchConfig* config, Handle kernel, void** params, void** extra) {
  std::string how = "cuLaunchKernelEx";
  for (uint32_t i = 0; i < config->n_attributes; ++i) {
    const LaunchAttribute& a = config->attributes[i];
    if (a.id == LaunchAttribute::kCluster) how += " cluster=" + std::to_string(a.value.cluster[0]);
    if (a.id == LaunchAttribute::kOverlapPrevious) how += " overlap=" + std::to_string(a.value.flag);
    if (a.id == LaunchAttribute::kCooperative) how += " cooperative=" + std::to_string(a.value.flag);
  }
  note(how);
  return pass("cuLaunchKernelEx", sim().launch_with, config, kernel, params, extra);
}

struct Entry {
  const char* name;
  int since;  // the CUDA version that introduced this signature
  void* function;
};

template <class... Args>
Entry own(const char* name, int since, Status (*function)(Args...)) {
  return {name, since, reinterpret_cast<void*>(function)};
}

template <Name name, auto slot, bool needs_context = true>
Entry forward(int since) {
  return own(name.text, since, Forward<name, slot, needs_context>::run);
}

const Entry kEntries[] = {
    own("cuInit", 2000, init),
    own("cuDriverGetVersion", 2020, driver_version),
    own("cuDeviceGetCount", 2000, device_count),
    own("cuGetErrorName", 6000, error_name),
    own("cuDeviceGetName", 2000, device_name),
    own("cuDeviceGetUuid", 11040, device_uuid),
    own("cuDeviceGetPCIBusId", 4010, device_pci),
    own("cuDeviceGetAttribute", 2000, device_attribute),
    own("cuDevicePrimaryCtxRelease", 11000, context_release),
    own("cuCtxSetCurrent", 4000, context_use),
    own("cuCtxEnablePeerAccess", 4000, peer_enable),
    own("cuLaunchKernelEx", 11060, launch_with),
    forward<"cuDeviceGet", &Driver::device_get, false>(2000),
    forward<"cuDeviceTotalMem", &Driver::device_memory, false>(3020),
    forward<"cuDevicePrimaryCtxRetain", &Driver::context_retain, false>(7000),
    forward<"cuDeviceCanAccessPeer", &Driver::peer_possible, false>(4000),
    forward<"cuMemGetInfo", &Driver::memory_info>(3020),
    forward<"cuMemcpyPeerAsync", &Driver::peer_copy>(4000),
    forward<"cuMemAlloc", &Driver::memory_allocate>(3020),
    forward<"cuMemFree", &Driver::memory_free>(3020),
    forward<"cuMemHostAlloc", &Driver::host_allocate>(2020),
    forward<"cuMemFreeHost", &Driver::host_free>(2000),
    forward<"cuMemHostRegister", &Driver::host_register>(6050),
    forward<"cuMemHostUnregister", &Driver::host_unregister>(4000),
    forward<"cuMemcpyHtoDAsync", &Driver::copy_to_device>(3020),
    forward<"cuMemcpyDtoHAsync", &Driver::copy_to_host>(3020),
    forward<"cuMemcpyDtoDAsync", &Driver::copy_on_device>(3020),
    forward<"cuMemsetD8Async", &Driver::fill>(3020),
    forward<"cuStreamCreateWithPriority", &Driver::stream_create>(5050),
    forward<"cuStreamDestroy", &Driver::stream_destroy>(4000),
    forward<"cuStreamSynchronize", &Driver::stream_synchronize>(2000),
    forward<"cuStreamQuery", &Driver::stream_query>(2000),
    forward<"cuStreamWaitEvent", &Driver::stream_wait>(3020),
    forward<"cuEventCreate", &Driver::event_create>(2000),
    forward<"cuEventDestroy", &Driver::event_destroy>(4000),
    forward<"cuEventRecord", &Driver::event_record>(2000),
    forward<"cuEventSynchronize", &Driver::event_synchronize>(2000),
    forward<"cuEventQuery", &Driver::event_query>(2000),
    forward<"cuEventElapsedTime", &Driver::event_elapsed>(2000),
    forward<"cuModuleLoadData", &Driver::module_load>(2000),
    forward<"cuModuleUnload", &Driver::module_unload>(2000),
    forward<"cuModuleGetFunction", &Driver::module_kernel>(2000),
    forward<"cuFuncGetAttribute", &Driver::kernel_attribute>(2020),
    forward<"cuFuncSetAttribute", &Driver::kernel_set_attribute>(9000),
    forward<"cuFuncGetParamInfo", &Driver::kernel_parameter>(12040),
    forward<"cuOccupancyMaxActiveBlocksPerMultiprocessor", &Driver::occupancy>(6050),
    forward<"cuLaunchKernel", &Driver::launch>(4000),
    forward<"cuLaunchCooperativeKernel", &Driver::launch_cooperative>(9000),
    forward<"cuStreamBeginCapture", &Driver::capture_begin>(10010),
    forward<"cuStreamEndCapture", &Driver::capture_end>(10000),
    forward<"cuGraphInstantiateWithFlags", &Driver::graph_instantiate>(11040),
    forward<"cuGraphExecUpdate", &Driver::graph_update>(10020),
    forward<"cuGraphLaunch", &Driver::graph_launch>(10000),
    forward<"cuGraphDestroy", &Driver::graph_destroy>(10000),
    forward<"cuGraphExecDestroy", &Driver::graph_executable_destroy>(10000),
};

std::set<std::string> hidden;

}  // namespace
}  // namespace standin

// This driver does not have the function of this name.
STANDIN_EXPORT void standin_hide(const char* name) { standin::hidden.insert(name); }

#ifndef STANDIN_OLD  // a driver before CUDA 12 has no second revision of it
STANDIN_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t, int* found) {
  if (const int status = standin::scripted("cuGetProcAddress_v2")) return status;
  for (const standin::Entry& entry : standin::kEntries) {
    if (std::strcmp(entry.name, name) != 0 || standin::hidden.count(name)) continue;
    if (version < entry.since || standin::script.version < entry.since) continue;
    *function = entry.function;
    *found = 0;
    return 0;
  }
  *function = nullptr;
  *found = 1;
  return 500;
}
#else
STANDIN_EXPORT int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}
#endif
