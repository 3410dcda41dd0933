// The driver of the simulated device, in this process. Device memory is host memory, filled with NaN on allocation so
// that reads of uninitialised memory show. A module is the shared library of a sim pack. Streams run work immediately
// on the calling thread, or in order on a thread of their own (kSimOwnThread); a capturing stream records the work
// instead.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/driver.h"
#include "device/driver_error.h"
#include "device/elf.h"
#include "device/sim_image.h"
#include "device/sim_thread.h"

namespace lb::gpu {
namespace {

constexpr int kDevices = 8;  // so that tests cover code for several devices
constexpr int kSms = 4, kMaxThreads = 1024, kWarp = 32;
constexpr uint32_t kMaxCluster = 8;                                                        // blocks
constexpr int kSharedDefault = 48 << 10, kSharedBlock = 227 << 10, kSharedSm = 228 << 10;  // as sm_90
constexpr size_t kCorruptedBytes = 4096;  // least length of a peer copy that arrives wrong on the last device
// The last device but one pins no more than this, as a container or WSL2 may.
constexpr size_t kFewPinned = size_t(18) << 20;
constexpr size_t kMemory = size_t(4) << 30;
constexpr size_t kAlignment = 256;  // the alignment that the vendors' allocators guarantee

enum Code : Status {
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidImage = 200,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNoPeer = 217,
  kTooManyResources = 701,
  kTooManyBlocks = 720,
  kIllegalState = 401,
  kCaptureUnsupported = 900,
  kNotSupported = 801,
};

// The reason of the last failure on this thread: a message of the simulator or of dlopen.
thread_local std::string detail;

std::string error_text(Status status) {
  const std::string why = std::exchange(detail, {});
  return why.empty() ? cat("error ", status) : cat("error ", status, " (", why, ")");
}

Status failed(Status status, std::string why) {
  detail = std::move(why);
  return status;
}

// Devices and their memory. A context is its device.

struct Device {
  std::mutex mutex;
  std::map<void*, size_t> blocks;
  size_t used = 0, pinned = 0;      // bytes; pinned: guarded by the mutex of all pinned memory
  std::atomic<double> delay_s = 0;  // of the next kernel
  std::atomic<bool> has_fault = false;
  lb_sim_link_fault fault{};  // guarded by the mutex
};
Device devices[kDevices];
thread_local Device* current = &devices[0];
// Open captures of this thread. As in CUDA's thread-local mode, it may then neither allocate nor instantiate graphs.
thread_local int n_captures = 0;

Status device_get(int* device, int index) {
  if (index < 0 || index >= kDevices) return failed(101, cat("device ", index, " of ", kDevices));
  *device = index;
  return 0;
}

Status device_name(char* text, int size, int) {
  std::snprintf(text, size, "lucebox simulator");
  return 0;
}

Status device_pci(char* text, int size, int) {
  if (size > 0) *text = 0;
  return 0;
}

Status device_memory(size_t* bytes, int) {
  *bytes = kMemory;
  return 0;
}

// The id of an attribute is its index in this table.
constexpr std::pair<int DeviceAttributes::*, int> kAttributes[] = {
    {&DeviceAttributes::n_sms, kSms},
    {&DeviceAttributes::warp_size, kWarp},
    {&DeviceAttributes::threads_block, kMaxThreads},
    {&DeviceAttributes::shared_block, kSharedBlock},
    {&DeviceAttributes::shared_block_default, kSharedDefault},
    {&DeviceAttributes::shared_sm, kSharedSm},
    {&DeviceAttributes::registers_sm, 65536},
    {&DeviceAttributes::l2_bytes, 4 << 20},
    {&DeviceAttributes::integrated, 1},
    {&DeviceAttributes::cooperative, 1},
    {&DeviceAttributes::clusters, 1},
};

Status device_attribute(int* value, int attribute, int) {
  *value = kAttributes[attribute].second;
  return 0;
}

Status context_retain(Handle* context, int device) {
  *context = &devices[device];
  return 0;
}

Status context_use(Handle context) {
  current = static_cast<Device*>(context);
  return 0;
}

Status memory_info(size_t* free, size_t* total) {
  const std::lock_guard lock(current->mutex);
  *free = kMemory - current->used;
  *total = kMemory;
  return 0;
}

Status memory_allocate(Address* address, size_t bytes) {
  if (n_captures > 0) return kCaptureUnsupported;
  const std::lock_guard lock(current->mutex);
  if (bytes == 0) return kInvalidValue;
  if (bytes > kMemory - current->used) return kOutOfMemory;
  if (::posix_memalign(address, kAlignment, bytes) != 0) return kOutOfMemory;
  std::memset(*address, 0xff, bytes);  // NaN in every floating-point type
  current->blocks[*address] = bytes;
  current->used += bytes;
  return 0;
}

// As drivers do, waits for the work that may use the memory.
Status memory_free(Address address) {
  SimThread::finish_all();
  for (Device& device : devices) {
    const std::lock_guard lock(device.mutex);
    const auto found = device.blocks.find(address);
    if (found == device.blocks.end()) continue;
    device.used -= found->second;
    device.blocks.erase(found);
    std::free(address);
    return 0;
  }
  return failed(kInvalidValue, "freed memory that no device owns");
}

// Pinned host memory, by address.
struct PinnedBlock {
  size_t bytes;
  Device* owner;
};
struct {
  std::mutex mutex;
  std::map<const void*, PinnedBlock> blocks;
} pinned;

bool is_pinned(const void* address) {
  const std::lock_guard lock(pinned.mutex);
  const auto after = pinned.blocks.upper_bound(address);
  if (after == pinned.blocks.begin()) return false;
  const auto& [start, block] = *std::prev(after);
  return static_cast<const std::byte*>(address) < static_cast<const std::byte*>(start) + block.bytes;
}

Status host_allocate(void** address, size_t bytes, unsigned) {
  if (n_captures > 0) return kCaptureUnsupported;
  const std::lock_guard lock(pinned.mutex);
  if (current == &devices[kDevices - 2] && bytes > kFewPinned - current->pinned) return kOutOfMemory;
  if (::posix_memalign(address, kAlignment, bytes) != 0) return kOutOfMemory;
  pinned.blocks[*address] = {bytes, current};
  current->pinned += bytes;
  return 0;
}

// Forgets a block once no kernel uses it; false: there is none.
bool unpin(void* address) {
  SimThread::finish_all();
  const std::lock_guard lock(pinned.mutex);
  const auto found = pinned.blocks.find(address);
  if (found == pinned.blocks.end()) return false;
  found->second.owner->pinned -= found->second.bytes;
  pinned.blocks.erase(found);
  return true;
}

Status host_free(void* address) {
  if (!unpin(address)) return failed(kInvalidValue, "freed pinned memory that no device owns");
  std::free(address);
  return 0;
}

Status host_register(void* address, size_t bytes, unsigned) {
  const std::lock_guard lock(pinned.mutex);
  if (bytes == 0 || !pinned.blocks.emplace(address, PinnedBlock{bytes, current}).second)
    return failed(kInvalidValue, "registered no bytes, or pages that are pinned already");
  current->pinned += bytes;
  return 0;
}

Status host_unregister(void* address) {
  return unpin(address) ? 0 : failed(kInvalidValue, "unregistered pages that are not pinned");
}

// Devices of one half have access to each other's memory.
bool are_peers(int device, int peer) { return device != peer && device / (kDevices / 2) == peer / (kDevices / 2); }

Status peer_possible(int* answer, int device, int peer) {
  *answer = are_peers(device, peer);
  return 0;
}

Status peer_enable(Handle peer, unsigned) {
  return are_peers(int(current - devices), int(static_cast<Device*>(peer) - devices)) ? 0 : kNoPeer;
}

// Streams, events and graphs.

using Work = SimThread::Work;

struct Graph {
  std::vector<Work> work;
};

struct Stream {
  ~Stream() { n_captures -= capture != nullptr; }

  Device* device = current;
  std::unique_ptr<Graph> capture;
  std::unique_ptr<SimThread> thread;  // null: the calling thread runs the work
};

struct Event {
  std::chrono::steady_clock::time_point time;
  std::atomic<uint32_t> n_recorded = 0, n_reached = 0;  // recordings: sent; reached by the stream
};

Status submit(Handle stream, Work work) {
  auto& to = *static_cast<Stream*>(stream);
  if (to.capture) {
    to.capture->work.push_back(std::move(work));
    return 0;
  }
  if (!to.thread) return work();
  to.thread->push([work = std::move(work)](std::string& why) {
    const Status status = work();
    if (status != 0) why = std::exchange(detail, {});
    return status;
  });
  return 0;
}

// The first failure of the stream's thread since the last call.
Status finish(Handle stream) {
  SimThread* thread = static_cast<Stream*>(stream)->thread.get();
  return thread == nullptr ? 0 : thread->finish(detail);
}

Status stream_query(Handle stream) {
  SimThread* thread = static_cast<Stream*>(stream)->thread.get();
  return thread != nullptr && !thread->is_done() ? kNotReady : finish(stream);
}

Status stream_create(Handle* handle, unsigned flags, int) {
  auto stream = std::make_unique<Stream>();
  if (flags & kSimOwnThread) stream->thread = std::make_unique<SimThread>();
  *handle = stream.release();
  return 0;
}

template <class T>
Status destroy(Handle handle) {
  delete static_cast<T*>(handle);
  return 0;
}

template <class T>
Status create(Handle* handle, unsigned) {
  *handle = new T;
  return 0;
}

Status event_destroy(Handle event) {
  SimThread::finish_all();
  return destroy<Event>(event);
}

Status copy(void* to, const void* from, size_t bytes, Handle stream) {
  return submit(stream, [=] {
    std::memmove(to, from, bytes);
    return 0;
  });
}

// A copy from or to pageable host memory is complete on return.
Status copy_to_device(Address to, const void* from, size_t bytes, Handle stream) {
  const Status status = copy(to, from, bytes, stream);
  return status != 0 || is_pinned(from) ? status : finish(stream);
}

Status copy_to_host(void* to, Address from, size_t bytes, Handle stream) {
  const Status status = copy(to, from, bytes, stream);
  return status != 0 || is_pinned(to) ? status : finish(stream);
}

// The last device receives wrong data, as with drivers that allow peer copies on hardware that cannot do them.
Status peer_copy(Address to, Handle receiver, Address from, Handle, size_t bytes, Handle stream) {
  if (receiver != &devices[kDevices - 1] || bytes < kCorruptedBytes) return copy(to, from, bytes, stream);
  return submit(stream, [=] {
    std::memmove(to, from, bytes);
    static_cast<unsigned char*>(to)[bytes / 2] ^= 1;
    return 0;
  });
}

Status fill(Address to, unsigned char value, size_t bytes, Handle stream) {
  return submit(stream, [=] {
    std::memset(to, value, bytes);
    return 0;
  });
}

Status launch_host(Handle stream, void (*function)(void*), void* argument) {
  return submit(stream, [=] {
    function(argument);
    return 0;
  });
}

Status wait_for(Event& event, uint32_t n) {
  for (uint32_t reached = event.n_reached; int32_t(reached - n) < 0; reached = event.n_reached)
    event.n_reached.wait(reached);
  return 0;
}

Status event_synchronize(Handle event) {
  auto& e = *static_cast<Event*>(event);
  return wait_for(e, e.n_recorded);
}

Status event_query(Handle event) {
  const auto& e = *static_cast<Event*>(event);
  return int32_t(e.n_reached - e.n_recorded) < 0 ? kNotReady : 0;
}

// Waits for the newest recording, not for those that follow.
Status stream_wait(Handle stream, Handle event, unsigned) {
  auto* e = static_cast<Event*>(event);
  return submit(stream, [e, n = e->n_recorded.load()] { return wait_for(*e, n); });
}

Status event_record(Handle event, Handle stream) {
  if (static_cast<Stream*>(stream)->capture) return failed(kIllegalState, "a graph has no events here");
  auto* e = static_cast<Event*>(event);
  ++e->n_recorded;
  return submit(stream, [e] {
    e->time = std::chrono::steady_clock::now();
    ++e->n_reached;
    e->n_reached.notify_all();
    return 0;
  });
}

Status event_elapsed(float* ms, Handle from, Handle to) {
  const Event &a = *static_cast<Event*>(from), &b = *static_cast<Event*>(to);
  if (a.n_reached == 0 || b.n_reached == 0) return failed(kInvalidHandle, "an event was never recorded");
  *ms = std::chrono::duration<float, std::milli>(b.time - a.time).count();
  return 0;
}

Status capture_begin(Handle stream, int) {
  auto& capture = static_cast<Stream*>(stream)->capture;
  if (capture) return failed(kIllegalState, "the stream is already capturing");
  capture = std::make_unique<Graph>();
  ++n_captures;
  return 0;
}

Status capture_end(Handle stream, Handle* graph) {
  *graph = static_cast<Stream*>(stream)->capture.release();
  if (*graph == nullptr) return failed(kIllegalState, "the stream is not capturing");
  --n_captures;
  return 0;
}

Status graph_instantiate(Handle* executable, Handle graph, unsigned long long) {
  if (n_captures > 0) return kCaptureUnsupported;
  *executable = new Graph(*static_cast<Graph*>(graph));
  return 0;
}

Status graph_update(Handle executable, Handle graph, Handle*, int*) {
  Graph &to = *static_cast<Graph*>(executable), &from = *static_cast<Graph*>(graph);
  if (to.work.size() != from.work.size()) return kGraphUpdateFailed;
  to = from;
  return 0;
}

Status graph_launch(Handle executable, Handle stream) {
  for (const Work& work : static_cast<Graph*>(executable)->work)
    if (const Status status = submit(stream, work)) return status;
  return 0;
}

// Modules and kernels.

struct Kernel {
  const SimImage* image;
  const lb_sim_kernel* info;
  int max_dynamic_shared;
};

struct Module {
  std::vector<Kernel> kernels;
};

Status module_load(Handle* handle, const void* image) {
  const auto* bytes = static_cast<const char*>(image);
  const size_t n = elf_bytes(static_cast<const std::byte*>(image), SIZE_MAX);  // drivers get no length argument
  if (n == 0) return failed(kInvalidImage, "not a shared library");
  std::string why;
  const SimImage* loaded = load_sim_image(std::string(bytes, n), why);
  if (loaded == nullptr) return failed(kInvalidImage, why);
  auto module = std::make_unique<Module>();
  for (const lb_sim_kernel& info : loaded->kernels) module->kernels.push_back({loaded, &info, kSharedDefault});
  *handle = module.release();
  return 0;
}

Status module_kernel(Handle* kernel, Handle module, const char* name) {
  for (Kernel& k : static_cast<Module*>(module)->kernels)
    if (std::strcmp(k.info->name, name) == 0) {
      *kernel = &k;
      return 0;
    }
  return kNotFound;
}

Status kernel_attribute(int* value, int attribute, Handle kernel) {
  const Kernel& k = *static_cast<Kernel*>(kernel);
  switch (attribute) {
    case KernelAttribute::kMaxThreads: *value = k.info->max_threads; return 0;
    case KernelAttribute::kStaticShared: *value = int(k.info->static_shared_bytes); return 0;
    case KernelAttribute::kMaxDynamicShared: *value = k.max_dynamic_shared; return 0;
    default: *value = 0; return 0;
  }
}

Status kernel_set_attribute(Handle kernel, int attribute, int value) {
  Kernel& k = *static_cast<Kernel*>(kernel);
  if (attribute == KernelAttribute::kSharedCarveout) return value >= -1 && value <= 100 ? 0 : kInvalidValue;
  if (attribute != KernelAttribute::kMaxDynamicShared) return kInvalidValue;
  if (value < 0 || value + int(k.info->static_shared_bytes) > kSharedBlock) return kInvalidValue;
  k.max_dynamic_shared = value;
  return 0;
}

Status kernel_parameter(Handle kernel, size_t index, size_t* offset, size_t* bytes) {
  if (index > 0) return kInvalidValue;
  *offset = 0;
  *bytes = static_cast<Kernel*>(kernel)->info->params_bytes;
  return 0;
}

Status occupancy(int* blocks, Handle kernel, int threads, size_t dynamic_shared) {
  const Kernel& k = *static_cast<Kernel*>(kernel);
  if (threads < 1 || threads > k.info->max_threads) return kInvalidValue;
  constexpr size_t kReserved = 1 << 10;  // bytes of shared memory that the driver reserves per block
  const size_t shared = k.info->static_shared_bytes + dynamic_shared + kReserved;
  *blocks = std::min<int>(2048 / threads, int(kSharedSm / shared));
  return 0;
}

int run_kernel(const Kernel& kernel, Device& device, const lb_sim_launch& job, std::span<char> why) {
  if (!device.has_fault || kernel.image->run_with_fault == nullptr)
    return kernel.image->run(&job, why.data(), why.size());
  lb_sim_link_fault fault;
  {
    const std::lock_guard lock(device.mutex);
    fault = device.fault;
  }
  const int result = kernel.image->run_with_fault(&job, &fault, why.data(), why.size());
  const std::lock_guard lock(device.mutex);
  device.fault = fault;
  device.has_fault = fault.n_wrong > 0;
  return result;
}

Status submit_launch(Handle kernel, const lb_sim_launch& launch, Handle stream, void** params) {
  const Kernel& k = *static_cast<Kernel*>(kernel);
  const auto count = [](const uint32_t n[3]) { return uint64_t(n[0]) * n[1] * n[2]; };
  if (count(launch.grid) == 0 || count(launch.block) == 0) return kInvalidValue;
  if (count(launch.block) > uint64_t(k.info->max_threads))
    return failed(kTooManyResources,
                  cat(count(launch.block), " threads per block, the kernel has at most ", k.info->max_threads));
  if (launch.dynamic_shared_bytes > size_t(k.max_dynamic_shared)) return kInvalidValue;
  if (launch.cooperative) {
    int blocks = 0;
    if (occupancy(&blocks, kernel, int(count(launch.block)), launch.dynamic_shared_bytes)) return kInvalidValue;
    if (count(launch.grid) > uint64_t(blocks) * kSms)
      return failed(kTooManyBlocks, cat(count(launch.grid), " blocks, ", blocks * kSms, " fit"));
  }
  const auto* bytes = static_cast<const std::byte*>(params[0]);
  Device& device = *static_cast<Stream*>(stream)->device;
  return submit(stream, [&k, &device, job = launch, p = std::vector(bytes, bytes + k.info->params_bytes)]() mutable {
    if (const double seconds = device.delay_s.exchange(0); seconds > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    char why[1024] = "";
    job.params = p.data();
    return run_kernel(k, device, job, why) == 0 ? 0 : failed(kSimFault, why);
  });
}

lb_sim_launch make_launch(Handle kernel, const uint32_t (&grid)[3], const uint32_t (&block)[3], unsigned shared,
                          bool cooperative) {
  lb_sim_launch launch = {};
  const lb_sim_kernel& info = *static_cast<Kernel*>(kernel)->info;
  launch.kernel = info.name;
  launch.params_bytes = info.params_bytes;
  std::copy_n(grid, 3, launch.grid);
  std::copy_n(block, 3, launch.block);
  launch.dynamic_shared_bytes = shared;
  launch.cooperative = cooperative;
  return launch;
}

Status launch(Handle kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
              unsigned shared, Handle stream, void** params, void**) {
  return submit_launch(kernel, make_launch(kernel, {gx, gy, gz}, {bx, by, bz}, shared, false), stream, params);
}

Status launch_cooperative(Handle kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, Handle stream, void** params) {
  return submit_launch(kernel, make_launch(kernel, {gx, gy, gz}, {bx, by, bz}, shared, true), stream, params);
}

// The simulator runs kernels one after the other, so it ignores the attribute kOverlapPrevious.
Status launch_with(const LaunchConfig* config, Handle kernel, void** params, void**) {
  bool cooperative = false;
  uint32_t cluster = 1;
  for (uint32_t i = 0; i < config->n_attributes; ++i) {
    const LaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == LaunchAttribute::kCluster) cluster = attribute.value.cluster[0];
    if (attribute.id == LaunchAttribute::kCooperative) cooperative = attribute.value.flag != 0;
  }
  if (cluster > kMaxCluster || config->grid[0] % cluster != 0)
    return failed(kInvalidValue, cat("clusters of ", cluster, " blocks, grid ", config->grid[0]));
  lb_sim_launch launch = make_launch(kernel, config->grid, config->block, config->shared_bytes, cooperative);
  launch.cluster = cluster;
  return submit_launch(kernel, launch, config->stream, params);
}

void bind_devices_and_memory(Driver& d) {
  d.device_get = {"device_get", device_get};
  d.device_name = {"device_name", device_name};
  d.device_pci = {"device_pci", device_pci};
  d.device_memory = {"device_memory", device_memory};
  d.device_attribute = {"device_attribute", device_attribute};
  d.context_retain = {"context_retain", context_retain};
  d.context_use = {"context_use", context_use};
  d.memory_info = {"memory_info", memory_info};
  d.peer_possible = {"peer_possible", peer_possible};
  d.peer_enable = {"peer_enable", peer_enable};
  d.peer_copy = {"peer_copy", peer_copy};
  d.memory_allocate = {"memory_allocate", memory_allocate};
  d.memory_free = {"memory_free", memory_free};
  d.host_allocate = {"host_allocate", host_allocate};
  d.host_free = {"host_free", host_free};
  d.host_register = {"host_register", host_register};
  d.host_unregister = {"host_unregister", host_unregister};
  d.copy_to_device = {"copy_to_device", copy_to_device};
  d.copy_to_host = {"copy_to_host", copy_to_host};
  d.copy_on_device = {"copy_on_device", [](Address to, Address from, size_t bytes, Handle stream) {
                        return copy(to, from, bytes, stream);
                      }};
  d.fill = {"fill", fill};
}

void bind_streams_and_graphs(Driver& d) {
  d.stream_create = {"stream_create", stream_create};
  d.stream_destroy = {"stream_destroy", destroy<Stream>};
  d.stream_synchronize = {"stream_synchronize", finish};
  d.stream_query = {"stream_query", stream_query};
  d.stream_wait = {"stream_wait", stream_wait};
  d.event_query = {"event_query", event_query};
  d.event_create = {"event_create", create<Event>};
  d.event_destroy = {"event_destroy", event_destroy};
  d.event_synchronize = {"event_synchronize", event_synchronize};
  d.event_record = {"event_record", event_record};
  d.event_elapsed = {"event_elapsed", event_elapsed};
  d.capture_begin = {"capture_begin", capture_begin};
  d.capture_end = {"capture_end", capture_end};
  d.graph_instantiate = {"graph_instantiate", graph_instantiate};
  d.graph_update = {"graph_update", graph_update};
  d.graph_launch = {"graph_launch", graph_launch};
  d.graph_destroy = {"graph_destroy", destroy<Graph>};
  d.graph_executable_destroy = {"graph_executable_destroy", destroy<Graph>};
}

void bind_kernels(Driver& d) {
  d.module_load = {"module_load", module_load};
  d.module_unload = {"module_unload", destroy<Module>};
  d.module_kernel = {"module_kernel", module_kernel};
  d.kernel_attribute = {"kernel_attribute", kernel_attribute};
  d.kernel_set_attribute = {"kernel_set_attribute", kernel_set_attribute};
  d.kernel_parameter = {"kernel_parameter", kernel_parameter};
  d.occupancy = {"occupancy", occupancy};
  d.launch = {"launch", launch};
  d.launch_cooperative = {"launch_cooperative", launch_cooperative};
  d.launch_with = {"launch_with", launch_with};
  d.launch_host = {"launch_host", launch_host};
}

Driver make() {
  Driver d;
  d.vendor = Vendor::kSim;
  d.library = "built in";
  d.version = "simulator";
  d.n_devices = kDevices;
  d.attributes = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  for (size_t i = 0; i < std::size(kAttributes); ++i) d.attributes.*kAttributes[i].first = int(i);
  d.error_text = error_text;
  d.architecture = [](const Driver&, int) { return std::string("sim"); };
  bind_devices_and_memory(d);
  bind_streams_and_graphs(d);
  bind_kernels(d);
  return d;
}

}  // namespace

void delay_sim_device(int device, double seconds) { devices[device].delay_s = seconds; }

void corrupt_sim_link(int device, uint64_t flipped, uint32_t every, uint32_t n_wrong) {
  const std::lock_guard lock(devices[device].mutex);
  devices[device].fault = {flipped, every, n_wrong, 0};
  devices[device].has_fault = n_wrong > 0;
}

const Driver& sim_driver() {
  static const Driver sim = make();
  return sim;
}

}  // namespace lb::gpu
