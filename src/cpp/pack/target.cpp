// Reads a target from a manifest, and checks launches against its limits.
#include "pack/target.h"

#include <algorithm>

#include "base/error.h"
#include "device/device.h"

namespace lb::gpu {

int Target::tune(std::string_view constant) const {
  const auto found = tuning.find(constant);
  LB_CHECK(found != tuning.end(), kFormat, "the pack of ", name, " has no tuning constant \"", constant,
           "\"; add it to targets/", name, "/target.toml and build the pack again");
  return found->second;
}

const Json* newest_code(const Json& manifest, std::string_view driver) {
  for (const Json& code : manifest.at("generations").array())
    if (driver.empty() || is_at_least(driver, code.at("min_driver").string())) return &code;
  return nullptr;
}

Target target_of(std::string_view manifest_json, int n_sms) {
  const Json manifest = parse_json(manifest_json, "manifest.json");
  const Json* code = newest_code(manifest, "");
  LB_CHECK(code != nullptr, kFormat, "manifest.json: \"generations\" must have one or more, got none");
  return target_of(manifest, *code, n_sms);
}

Target target_of(const Json& manifest, const Json& code, int n_sms, size_t device_shared_block_bytes) {
  Target target;
  target.name = manifest.at("target").string();
  target.vendor = manifest.at("vendor").string();
  target.n_sms = n_sms;
  const Json& capabilities = manifest.at("capabilities");
  target.capabilities = {
      .bf16 = capabilities.at("bf16").boolean(),
      .async_copy = capabilities.at("async_copy").boolean(),
      .fp4 = capabilities.at("fp4").boolean(),
      .tma = capabilities.at("tma").boolean(),
      .clusters = capabilities.at("clusters").boolean(),
      .matrix = capabilities.at("matrix").string(),
      .shared_block_bytes = static_cast<size_t>(capabilities.at("shared_block_bytes").integer()),
  };
  target.shared_block_bytes = target.capabilities.shared_block_bytes;
  if (device_shared_block_bytes)
    target.shared_block_bytes = std::min(target.shared_block_bytes, device_shared_block_bytes);
  for (const Json& flag : code.at("compiler").at("flags").array())
    target.has_timeline |= flag.string() == "-DLUCEBOX_TIMELINE";
  for (const Json::Member& member : manifest.at("tuning").members())
    target.tuning[member.key] = static_cast<int>(member.value.integer());
  for (const Json& kernel : code.at("kernels").array())
    target.kernels[kernel.at("name").string()] = static_cast<int>(kernel.at("max_threads").integer());
  return target;
}

const Launch& checked(const Launch& launch, const Target& target, const std::string& op) {
  const auto kernel = target.kernels.find(std::string_view(launch.kernel));
  LB_CHECK(kernel != target.kernels.end(), kUnsupported, op, ": the pack of ", target.name, " has no ", launch.kernel);
  const int threads = static_cast<int>(launch.block[0] * launch.block[1] * launch.block[2]);
  LB_CHECK(threads <= kernel->second, kInternal, op, " on ", target.name, ": ", launch, " has ", threads,
           " threads a block, the kernel was built for ", kernel->second);
  LB_CHECK(launch.shared_bytes <= target.shared_block_bytes, kUnsupported, op, " on ", target.name, ": ", launch,
           " needs more than the ", target.shared_block_bytes, " bytes of shared memory a block may have");
  return launch;
}

}  // namespace lb::gpu
