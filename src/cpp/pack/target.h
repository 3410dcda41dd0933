// Target: the facts about a GPU that the choose(op, target) functions use: the pack's manifest and the device's size.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "format/json.h"
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
  size_t shared_block_bytes = 0;  // limit per block: the lesser of pack and device
  bool has_timeline = false;      // built with LUCEBOX_TIMELINE: the megakernel records time stamps
  Capabilities capabilities;
  std::map<std::string, int, std::less<>> tuning;
  std::map<std::string, int, std::less<>> kernels;  // the pack's kernels: name -> most threads per block

  int tune(std::string_view constant) const;  // throws if the manifest lacks it
  bool has(std::string_view kernel) const { return kernels.contains(kernel); }
};

// The code of a pack for a driver ("580"): the newest of the manifest's generations that the driver loads; null when
// all need a newer one. An empty driver takes the newest of all.
const Json* newest_code(const Json& manifest, std::string_view driver);

// device_shared_block_bytes == 0: only the manifest's limit applies. `code` is one of the manifest's generations.
Target target_of(const Json& manifest, const Json& code, int n_sms, size_t device_shared_block_bytes = 0);
// Reads a manifest's text and takes its newest generation.
Target target_of(std::string_view manifest_json, int n_sms);

// Returns `launch` if the pack has its kernel and the target its resources. Otherwise throws, naming `op` (with type
// and shape) and the target.
const Launch& checked(const Launch& launch, const Target& target, const std::string& op);

}  // namespace lb::gpu
