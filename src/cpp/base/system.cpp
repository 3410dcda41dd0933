// Reads /proc, /sys/fs/cgroup and the CPU affinity on Linux; asks plain POSIX elsewhere.
#include "base/system.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

namespace lb {
namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// The number after `key` in a file of "key value" lines, or the file's first number when `key` is empty.
// kNoLimit when there is no number; a limit of "max" is none.
size_t read_number(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  size_t value;
  if (key.empty()) return file >> value ? value : kNoLimit;
  while (file >> word)
    if (word == key) return file >> value ? value : kNoLimit;
  return kNoLimit;
}

size_t cgroup_available() {
  const size_t limit = read_number("/sys/fs/cgroup/memory.max", "");
  const size_t used = read_number("/sys/fs/cgroup/memory.current", "");
  if (limit == kNoLimit || used == kNoLimit) return kNoLimit;
  const size_t cache = read_number("/sys/fs/cgroup/memory.stat", "inactive_file");
  const size_t hard = used - (cache == kNoLimit ? 0 : std::min(cache, used));
  return limit - std::min(limit, hard);
}

}  // namespace

size_t available_memory() {
  size_t bytes = read_number("/proc/meminfo", "MemAvailable:");
  if (bytes != kNoLimit) {
    bytes *= 1024;
  } else {
    bytes = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  }
  return std::min(bytes, cgroup_available());
}

size_t private_memory() {
  const size_t kib = read_number("/proc/self/status", "RssAnon:");
  return kib == kNoLimit ? kNoLimit : kib * 1024;
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    std::set<std::pair<size_t, size_t>> cores;  // (package, core): hyper-threads share one
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &mask)) continue;
      const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
      const size_t core = read_number((topology + "core_id").c_str(), "");
      const size_t package = read_number((topology + "physical_package_id").c_str(), "");
      cores.emplace(package, core == kNoLimit ? kNoLimit - cpu : core);
    }
    if (!cores.empty()) return static_cast<int>(cores.size());
  }
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace lb
