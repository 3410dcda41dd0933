// libamdhip64.so.7 for tests: the entry points lucebox uses, over the simulated device. Contexts are device numbers,
// and calls act on the calling thread's current device, as in HIP.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "script.h"

using namespace standin;

namespace {

Handle context(int device) {
  Handle handle = nullptr;
  sim().context_retain(&handle, device);
  return handle;
}

}  // namespace

STANDIN_EXPORT int hipInit(unsigned) { return scripted("hipInit"); }

STANDIN_EXPORT int hipRuntimeGetVersion(int* version) {
  *version = script.version;
  return scripted("hipRuntimeGetVersion");
}

STANDIN_EXPORT int hipGetDeviceCount(int* n) {
  constexpr Status kNoDevice = 100;
  *n = script.n_devices;
  const Status status = scripted("hipGetDeviceCount");
  return status == 0 && *n == 0 ? kNoDevice : status;
}

STANDIN_EXPORT const char* hipGetErrorName(int status) {
  switch (status) {
    case 1: return "hipErrorInvalidValue";
    case 2: return "hipErrorOutOfMemory";
    case 209: return "hipErrorNoBinaryForGpu";
    case 500: return "hipErrorNotFound";
    case 700: return "hipErrorIllegalAddress";
    case 719: return "hipErrorLaunchFailure";
    case 720: return "hipErrorCooperativeLaunchTooLarge";
    default: return "hipErrorUnknown";
  }
}

STANDIN_EXPORT int hipSetDevice(int device) { return pass("hipSetDevice", sim().context_use, context(device)); }

#ifndef STANDIN_OLD  // ROCm 5 had the properties under another name, laid out otherwise
STANDIN_EXPORT int hipGetDevicePropertiesR0600(void* properties, int) {
  auto* bytes = static_cast<char*>(properties);
  const int warp_size = 32, compute_units = script.architecture == "shifted" ? 41 : 40;
  std::memcpy(bytes + 308, &warp_size, sizeof warp_size);
  std::memcpy(bytes + 388, &compute_units, sizeof compute_units);
  std::strcpy(bytes + 1160, script.architecture.c_str());
  return scripted("hipGetDevicePropertiesR0600");
}
#endif

STANDIN_EXPORT int hipDeviceGet(int* device, int index) {
  return pass("hipDeviceGet", sim().device_get, device, index);
}

STANDIN_EXPORT int hipDeviceGetName(char* text, int size, int) {
  std::snprintf(text, size, "Stand-in Radeon");
  return scripted("hipDeviceGetName");
}

STANDIN_EXPORT int hipDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, size, "0000:%02x:00.0", device + 0x41);
  return scripted("hipDeviceGetPCIBusId");
}

STANDIN_EXPORT int hipDeviceTotalMem(size_t* bytes, int device) {
  return pass("hipDeviceTotalMem", sim().device_memory, bytes, device);
}

STANDIN_EXPORT int hipDeviceGetAttribute(int* value, int attribute, int) {
  if (const Status status = scripted("hipDeviceGetAttribute")) return status;
  switch (attribute) {
    case 5: *value = 2900000; return 0;
    case 10: *value = 1; return 0;
    case 16: *value = 1; return 0;
    case 19: *value = 2 << 20; return 0;
    case 56: *value = 1024; return 0;
    case 59: *value = 256; return 0;
    case 60: *value = 8000000; return 0;
    case 63: *value = 40; return 0;
    case 72: *value = 196608; return 0;
    case 74: *value = 64 << 10; return 0;
    case 87: *value = 32; return 0;
    case 10002: *value = 64 << 10; return 0;
    default: return 1;
  }
}

STANDIN_EXPORT int hipMemGetInfo(size_t* free, size_t* total) {
  return pass("hipMemGetInfo", sim().memory_info, free, total);
}
STANDIN_EXPORT int hipDeviceCanAccessPeer(int* answer, int device, int peer) {
  return pass("hipDeviceCanAccessPeer", sim().peer_possible, answer, device, peer);
}
STANDIN_EXPORT int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  return pass("hipDeviceEnablePeerAccess", sim().peer_enable, context(peer), flags);
}
STANDIN_EXPORT int hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                      void* stream) {
  return pass("hipMemcpyPeerAsync", sim().peer_copy, to, context(to_device), const_cast<void*>(from),
              context(from_device), bytes, stream);
}

STANDIN_EXPORT int hipMalloc(void** p, size_t n) { return pass("hipMalloc", sim().memory_allocate, p, n); }
STANDIN_EXPORT int hipFree(void* p) { return pass("hipFree", sim().memory_free, p); }
STANDIN_EXPORT int hipHostMalloc(void** p, size_t n, unsigned flags) {
  return pass("hipHostMalloc", sim().host_allocate, p, n, flags);
}
STANDIN_EXPORT int hipHostFree(void* p) { return pass("hipHostFree", sim().host_free, p); }
STANDIN_EXPORT int hipHostRegister(void* p, size_t n, unsigned flags) {
  return pass("hipHostRegister", sim().host_register, p, n, flags);
}
STANDIN_EXPORT int hipHostUnregister(void* p) { return pass("hipHostUnregister", sim().host_unregister, p); }
STANDIN_EXPORT int hipMemcpyHtoDAsync(void* to, const void* from, size_t bytes, void* stream) {
  return pass("hipMemcpyHtoDAsync", sim().copy_to_device, to, from, bytes, stream);
}
STANDIN_EXPORT int hipMemcpyDtoHAsync(void* to, void* from, size_t bytes, void* stream) {
  return pass("hipMemcpyDtoHAsync", sim().copy_to_host, to, from, bytes, stream);
}
STANDIN_EXPORT int hipMemcpyDtoDAsync(void* to, void* from, size_t bytes, void* stream) {
  return pass("hipMemcpyDtoDAsync", sim().copy_on_device, to, from, bytes, stream);
}
STANDIN_EXPORT int hipMemsetD8Async(void* to, unsigned char value, size_t bytes, void* stream) {
  return pass("hipMemsetD8Async", sim().fill, to, value, bytes, stream);
}

STANDIN_EXPORT int hipStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return pass("hipStreamCreateWithPriority", sim().stream_create, stream, flags, priority);
}
STANDIN_EXPORT int hipStreamDestroy(void* stream) { return pass("hipStreamDestroy", sim().stream_destroy, stream); }
STANDIN_EXPORT int hipStreamSynchronize(void* stream) {
  return pass("hipStreamSynchronize", sim().stream_synchronize, stream);
}
STANDIN_EXPORT int hipStreamQuery(void* stream) { return pass("hipStreamQuery", sim().stream_query, stream); }
STANDIN_EXPORT int hipStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return pass("hipStreamWaitEvent", sim().stream_wait, stream, event, flags);
}
STANDIN_EXPORT int hipEventCreateWithFlags(void** event, unsigned flags) {
  return pass("hipEventCreateWithFlags", sim().event_create, event, flags);
}
STANDIN_EXPORT int hipEventDestroy(void* event) { return pass("hipEventDestroy", sim().event_destroy, event); }
STANDIN_EXPORT int hipEventRecord(void* event, void* stream) {
  return pass("hipEventRecord", sim().event_record, event, stream);
}
STANDIN_EXPORT int hipEventQuery(void* event) { return pass("hipEventQuery", sim().event_query, event); }
STANDIN_EXPORT int hipEventSynchronize(void* event) {
  return pass("hipEventSynchronize", sim().event_synchronize, event);
}
STANDIN_EXPORT int hipEventElapsedTime(float* ms, void* from, void* to) {
  return pass("hipEventElapsedTime", sim().event_elapsed, ms, from, to);
}

STANDIN_EXPORT int hipModuleLoadData(void** module, const void* image) {
  return pass("hipModuleLoadData", sim().module_load, module, image);
}
STANDIN_EXPORT int hipModuleUnload(void* module) { return pass("hipModuleUnload", sim().module_unload, module); }
STANDIN_EXPORT int hipModuleGetFunction(void** kernel, void* module, const char* name) {
  return pass("hipModuleGetFunction", sim().module_kernel, kernel, module, name);
}
STANDIN_EXPORT int hipFuncGetAttribute(int* value, int attribute, void* kernel) {
  return pass("hipFuncGetAttribute", sim().kernel_attribute, value, attribute, kernel);
}
STANDIN_EXPORT int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* kernel, int threads,
                                                                      size_t shared) {
  return pass("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", sim().occupancy, blocks, kernel, threads, shared);
}
STANDIN_EXPORT int hipModuleLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                         unsigned bz, unsigned shared, void* stream, void** params, void** extra) {
  constexpr unsigned kShared = 64 << 10;  // of a block; HIP needs no opt-in to use it
  if (shared <= kShared) sim().kernel_set_attribute(kernel, kMaxDynamicShared, int(shared));
  return pass("hipModuleLaunchKernel", sim().launch, kernel, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
STANDIN_EXPORT int hipModuleLaunchCooperativeKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                                    unsigned by, unsigned bz, unsigned shared, void* stream,
                                                    void** params) {
  return pass("hipModuleLaunchCooperativeKernel", sim().launch_cooperative, kernel, gx, gy, gz, bx, by, bz, shared,
              stream, params);
}

STANDIN_EXPORT int hipStreamBeginCapture(void* stream, int mode) {
  return pass("hipStreamBeginCapture", sim().capture_begin, stream, mode);
}
STANDIN_EXPORT int hipStreamEndCapture(void* stream, void** graph) {
  return pass("hipStreamEndCapture", sim().capture_end, stream, graph);
}
#ifndef STANDIN_OLD
STANDIN_EXPORT int hipGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return pass("hipGraphInstantiateWithFlags", sim().graph_instantiate, executable, graph, flags);
}
#endif
STANDIN_EXPORT int hipGraphExecUpdate(void* executable, void* graph, void** node, int* reason) {
  return pass("hipGraphExecUpdate", sim().graph_update, executable, graph, node, reason);
}
STANDIN_EXPORT int hipGraphLaunch(void* executable, void* stream) {
  return pass("hipGraphLaunch", sim().graph_launch, executable, stream);
}
STANDIN_EXPORT int hipGraphDestroy(void* graph) { return pass("hipGraphDestroy", sim().graph_destroy, graph); }
STANDIN_EXPORT int hipGraphExecDestroy(void* executable) {
  return pass("hipGraphExecDestroy", sim().graph_executable_destroy, executable);
}
