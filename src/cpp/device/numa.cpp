// Reads sysfs, and calls the kernel directly: the C library has no wrappers for memory policies.
#include "device/numa.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lb::gpu {
namespace {

constexpr int kMaxNodes = 1024;

constexpr int kDefault = 0, kPreferred = 1;  // MPOL_*

#if defined(__linux__)
bool prefer(int node) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNodes / kBits> mask{};
  mask[node / kBits] |= 1ul << node % kBits;
  return ::syscall(SYS_set_mempolicy, kPreferred, mask.data(), static_cast<unsigned long>(kMaxNodes)) == 0;
}

void prefer_none() { ::syscall(SYS_set_mempolicy, kDefault, nullptr, 0ul); }
#else
bool prefer(int) { return false; }
void prefer_none() {}
#endif

}  // namespace

int numa_node(std::string pci, const std::string& folder) {
  if (pci.empty()) return -1;
  std::ranges::transform(pci, pci.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file(folder + "/" + pci + "/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0 || node >= kMaxNodes) return -1;
  return node;
}

int memory_policy() {
  int mode = -1;
#if defined(__linux__)
  ::syscall(SYS_get_mempolicy, &mode, nullptr, 0ul, nullptr, 0ul);
#endif
  return mode;
}

NumaPreference::NumaPreference(int node) : is_set_(node >= 0 && memory_policy() == kDefault && prefer(node)) {}

NumaPreference::~NumaPreference() {
  if (is_set_) prefer_none();
}

}  // namespace lb::gpu
