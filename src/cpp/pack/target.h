// What the functions choose(op, target) may know of a chip: its pack's manifest and the size of the device.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "pack/launch.h"

namespace lb::gpu {

struct Capabilities {
  bool bf16 = false, async_copy = false, fp4 = false, tma = false, clusters = false;
  std::string matrix;  // the matrix instruction, as target.toml names it
  size_t shared_block_bytes = 0;
};

struct Target {
  std::string name;    // "sm_90"
  std::string vendor;  // "nvidia", "amd", "sim"
  int n_sms = 0;
  size_t shared_block_bytes = 0;  // the most one block may ask for, of pack and device the lesser
  bool has_timeline = false;      // the megakernel stamps its steps: LUCEBOX_TIMELINE
  Capabilities capabilities;
  std::map<std::string, int, std::less<>> tuning;
  std::map<std::string, int, std::less<>> kernels;  // of the pack, with the most threads a block of each may have

  int tune(std::string_view constant) const;  // throws where the manifest lacks it
  bool has(std::string_view kernel) const { return kernels.contains(kernel); }
};

// `device_shared_block_bytes` 0: the manifest's.
Target target_of(std::string_view manifest_json, int n_sms, size_t device_shared_block_bytes = 0);

// `launch` itself, when the pack has its kernel and the target its resources; otherwise an error that names the op
// (type and shape included) and the target.
const Launch& checked(const Launch& launch, const Target& target, const std::string& op);

}  // namespace lb::gpu
