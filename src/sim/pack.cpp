// The registry of a sim pack's kernels, and the C interface that lists and launches them (device/sim_abi.h).
#include "pack.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "device/sim_fault.h"
#include "dialect.h"
#include "peers.h"

namespace lb::gpu::sim {
namespace {

constexpr size_t kDynamicLimit = 227 * 1024;  // bytes; the maximum over all targets

struct Table {
  std::vector<Kernel> kernels;
  std::vector<lb_sim_kernel> public_kernels;  // the same kernels, sorted; filled on first use
  std::mutex mutex;
};

// A function-local static, because kernels register before main() in any order.
Table& table() {
  static Table table;
  return table;
}

std::vector<lb_sim_kernel>& sorted(Table& table) {
  if (table.public_kernels.size() != table.kernels.size()) {
    std::sort(table.kernels.begin(), table.kernels.end(),
              [](const Kernel& a, const Kernel& b) { return std::strcmp(a.name, b.name) < 0; });
    for (const Kernel& k : table.kernels) {
      table.public_kernels.push_back({k.name, k.max_threads, k.min_blocks, k.params_bytes, 0});
    }
  }
  return table.public_kernels;
}

const Kernel* find(const char* name) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  sorted(t);
  const auto found =
      std::find_if(t.kernels.begin(), t.kernels.end(), [&](const Kernel& k) { return std::strcmp(k.name, name) == 0; });
  return found == t.kernels.end() ? nullptr : &*found;
}

void record_static_shared(const Kernel& kernel, size_t bytes) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  lb_sim_kernel& shown = t.public_kernels[size_t(&kernel - t.kernels.data())];
  shown.static_shared_bytes = std::max(shown.static_shared_bytes, bytes);
}

struct Call {
  const Kernel* kernel;
  const void* params;
};
void call_kernel(const void* call) {
  const auto [kernel, params] = *static_cast<const Call*>(call);
  kernel->call(kernel->function, params);
}

}  // namespace

void add_kernel(const Kernel& kernel) { table().kernels.push_back(kernel); }

}  // namespace lb::gpu::sim

using namespace lb::gpu::sim;

const lb_sim_kernel* lb_sim_kernels(int* count) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto& kernels = sorted(t);
  *count = int(kernels.size());
  return kernels.data();
}

int lb_sim_run(const lb_sim_launch* launch, char* error, size_t error_size) {
  const auto refuse = [&](auto... message) {
    std::snprintf(error, error_size, message...);
    return 1;
  };
  const Kernel* kernel = find(launch->kernel);
  if (!kernel) return refuse("[%s] no kernel of this name in the pack", launch->kernel);
  if (launch->params_bytes != kernel->params_bytes) {
    return refuse("[%s] params must be %zu bytes, got %zu", kernel->name, kernel->params_bytes, launch->params_bytes);
  }
  const uint32_t *block = launch->block, *grid = launch->grid;
  if (block[0] < 1 || block[0] > uint32_t(kernel->max_threads) || block[1] != 1 || block[2] != 1) {
    return refuse("[%s] block must be 1 to %d threads in x and 1 in y and z, got (%u, %u, %u)", kernel->name,
                  kernel->max_threads, block[0], block[1], block[2]);
  }
  const uint64_t n_blocks = uint64_t(grid[0]) * grid[1] * grid[2];
  if (n_blocks < 1 || grid[1] > 65535 || grid[2] > 65535 || n_blocks > 0x7fffffff) {
    return refuse("[%s] grid must be 1 to 2^31 - 1 blocks, at most 65535 in y and z, got (%u, %u, %u)", kernel->name,
                  grid[0], grid[1], grid[2]);
  }
  if (launch->dynamic_shared_bytes > kDynamicLimit) {
    return refuse("[%s] dynamic shared memory must be at most %zu bytes, got %zu", kernel->name, kDynamicLimit,
                  launch->dynamic_shared_bytes);
  }
  // Exactly as large as the struct, so that address sanitizer detects reads beyond it.
  const std::unique_ptr<std::byte[]> params(new (std::nothrow) std::byte[kernel->params_bytes]);
  if (!params) return refuse("[%s] out of memory", kernel->name);
  std::memcpy(params.get(), launch->params, kernel->params_bytes);
  const Call call{kernel, params.get()};
  try {
    Machine& machine = thread_machine();
    const char* problem = machine.run(*launch, call_kernel, &call);
    record_static_shared(*kernel, machine.static_shared_bytes());
    return *problem ? refuse("%s", problem) : 0;
  } catch (const std::bad_alloc&) {
    return refuse("[%s] out of memory for %llu threads at once and their shared memory", kernel->name,
                  (unsigned long long)(launch->cooperative ? n_blocks * block[0] : block[0]));
  }
}

int lb_sim_run_with_fault(const lb_sim_launch* launch, lb_sim_link_fault* fault, char* error, size_t error_size) {
  link_fault = fault;
  const int result = lb_sim_run(launch, error, error_size);
  link_fault = nullptr;
  return result;
}
