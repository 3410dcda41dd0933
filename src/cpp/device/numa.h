// Host memory near a device: on machines with several NUMA nodes, a device reads the memory of its own node faster.
#pragma once

#include <string>

namespace lb::gpu {

// The NUMA node of the device at a PCI address ("0000:C1:00.0"), or -1 if the system names none. folder: of all PCI
// devices.
int numa_node(std::string pci, const std::string& folder = "/sys/bus/pci/devices");

// The kernel's number of the calling thread's memory policy; -1: there is none.
int memory_policy();

// While it exists, new pages of the calling thread are on this node if it has room. Without effect for node -1, on
// systems without NUMA, and in processes whose owner has chosen a policy (numactl).
class NumaPreference {
 public:
  explicit NumaPreference(int node);
  ~NumaPreference();
  NumaPreference(const NumaPreference&) = delete;
  NumaPreference& operator=(const NumaPreference&) = delete;

 private:
  bool is_set_ = false;
};

}  // namespace lb::gpu
