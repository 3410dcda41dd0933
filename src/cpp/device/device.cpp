// Reads a device's attributes through the driver table and owns its context.
#include "device/device.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace lb::gpu {
namespace {

// Returns 0 when the vendor has no such attribute or the driver does not know it.
int attribute(const Driver& driver, int device, int id) {
  int value = 0;
  return id >= 0 && driver.device_attribute(&value, id, device) == 0 ? value : 0;
}

std::string hex(const char (&bytes)[16]) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char b : bytes) {
    text += kDigits[static_cast<unsigned char>(b) >> 4];
    text += kDigits[b & 15];
  }
  return text;
}

bool has_graphs(const Driver& d) {
  return d.capture_begin && d.capture_end && d.graph_instantiate && d.graph_update && d.graph_launch &&
         d.graph_destroy && d.graph_executable_destroy;
}

// Programmatic dependent launch needs sm_90; no driver attribute reports it. Graphs have an edge type for it from CUDA
// 12.3 on (CUgraphEdgeData), which is driver 545; no older driver was tried. The simulator accepts the launch attribute
// and runs kernels in order.
bool has_overlap(const Driver& d, const DeviceInfo& info) {
  if (!d.launch_with) return false;
  if (d.vendor != Vendor::kCuda) return true;
  int number = 0;
  std::from_chars(info.architecture.data() + 3, info.architecture.data() + info.architecture.size(), number);
  return number >= 90 && is_at_least(d.generation, "545");
}

DeviceInfo query_info(const Driver& d, int index, int device) {
  std::array<char, 256> name = {}, pci = {};
  char uuid[16] = {};
  DeviceInfo info = {};
  info.vendor = d.vendor;
  info.index = index;
  check_call(d, d.device_name, name.data(), int(name.size()), device);
  check_call(d, d.device_pci, pci.data(), int(pci.size()), device);
  check_call(d, d.device_memory, &info.memory_bytes, device);
  info.name = name.data();
  info.pci = pci.data();
  if (d.device_uuid && d.device_uuid(uuid, device) == 0) info.uuid = hex(uuid);
  info.driver = d.version;
  info.driver_generation = d.generation;
  info.architecture = d.architecture(d, device);
  const auto get = [&](int id) { return attribute(d, device, id); };
  info.n_sms = get(d.attributes.n_sms);
  info.warp_size = get(d.attributes.warp_size);
  info.max_threads_block = get(d.attributes.threads_block);
  info.registers_sm = get(d.attributes.registers_sm);
  info.shared_block_bytes = std::max(get(d.attributes.shared_block), get(d.attributes.shared_block_default));
  info.shared_sm_bytes = get(d.attributes.shared_sm);
  info.l2_bytes = get(d.attributes.l2_bytes);
  info.clock_khz = get(d.attributes.clock_khz);
  info.memory_clock_khz = get(d.attributes.memory_clock_khz);
  info.bus_bits = get(d.attributes.bus_bits);
  info.is_integrated = get(d.attributes.integrated) != 0;
  info.has_cooperative = get(d.attributes.cooperative) != 0;
  info.has_clusters = d.launch_with && get(d.attributes.clusters) != 0;
  info.has_overlap = has_overlap(d, info);
  info.has_graphs = has_graphs(d);
  return info;
}

int device_of(const Driver& d, int index) {
  LB_CHECK(index >= 0 && index < d.n_devices, kDevice, "there is no device ", name(d.vendor), ":", index, "; ",
           d.library, " (", d.version, ") sees ", d.n_devices);
  int device = 0;
  check_call(d, d.device_get, &device, index);
  return device;
}

// Parses "580" to (580, 0) and "7.1" to (7, 1); missing parts are 0.
std::pair<int, int> parse_version(std::string_view text) {
  int major = 0, minor = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), major).ptr;
  if (end != text.data() + text.size()) std::from_chars(end + 1, text.data() + text.size(), minor);
  return {major, minor};
}

}  // namespace

std::vector<DeviceInfo> devices(Vendor vendor) {
  const Driver& d = driver(vendor);
  std::vector<DeviceInfo> all;
  for (int index = 0; index < d.n_devices; ++index) all.push_back(query_info(d, index, device_of(d, index)));
  return all;
}

bool is_at_least(std::string_view driver_generation, std::string_view min_driver) {
  return parse_version(driver_generation) >= parse_version(min_driver);
}

void require_driver(const DeviceInfo& info, std::string_view min_driver) {
  if (is_at_least(info.driver_generation, min_driver)) return;
  const std::string product = info.vendor == Vendor::kCuda ? "the NVIDIA driver" : "ROCm";
  fail(ErrorCode::kDevice, "device ", info.index, " \"", info.name, "\" (", info.architecture, ") has a driver for ",
       info.driver, "; this pack needs driver ", min_driver, " or newer. Update ", product, ".");
}

Context::Context(Vendor vendor, int index) : driver_(gpu::driver(vendor)), device_(device_of(driver_, index)) {
  info_ = query_info(driver_, index, device_);
  check(driver_.context_retain.name, driver_.context_retain(&handle_, device_));
}

Context::~Context() {
  if (driver_.context_release) driver_.context_release(device_);
}

std::string Context::where() const {
  return cat("device ", info_.index, " \"", info_.name, "\" (", info_.architecture, ")");
}

void Context::check(const char* call, Status status, std::string_view detail) const {
  if (status == 0) return;
  fail_call(driver_, call, status, detail.empty() ? where() : cat(where(), ", ", detail));
}

void Context::missing(const char* call) const {
  fail(ErrorCode::kUnsupported, "[", gpu::name(driver_.vendor), "] ", call, " is not in ", driver_.library, " (",
       driver_.version, "), ", where(), ": update the driver");
}

MemoryInfo Device::memory() const {
  MemoryInfo memory = {};
  context_->call(context_->driver().memory_info, &memory.free_bytes, &memory.total_bytes);
  return memory;
}

void Device::enable_peer(const Device& peer) const {
  const Driver& d = context_->driver();
  LB_CHECK(&d == &peer.context_->driver(), kUnsupported, context_->where(), " cannot reach ", peer.context_->where(),
           ": they belong to different drivers");
  const Status status = context_->status_of(d.peer_enable, peer.context_->handle(), 0);
  if (status != kPeerAlreadyEnabled) context_->check(d.peer_enable.name, status, cat("peer ", peer.context_->where()));
}

}  // namespace lb::gpu
