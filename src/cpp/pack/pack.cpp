// Loads the modules of a pack and sends launches to queues.
#include "pack/pack.h"

#include "base/error.h"

namespace lb::gpu {
namespace {

// Carve-out in percent: 164 of 256 KB on an H100, where skinny GEMMs are fastest at 50 to 64%
// (docs/kernels/gemm_skinny.md).
constexpr int kSharedWithL1 = 64;

// The newest code that the device's driver loads. Throws when the driver is too old for the oldest of the pack.
const Json& code_for(const Device& device, const Json& manifest) {
  const auto& generations = manifest.at("generations").array();
  LB_CHECK(!generations.empty(), kFormat, "the pack's manifest lists no code; install the pack again");
  require_driver(device.info(), generations.back().at("min_driver").string());
  return *newest_code(manifest, device.info().driver_generation);
}

}  // namespace

Pack::Pack(const Device& device, std::string_view manifest_json, const Files& files) : device_(device) {
  const Json manifest = parse_json(manifest_json, "manifest.json");
  const Json& code = code_for(device, manifest);
  target_ = target_of(manifest, code, device.info().n_sms, size_t(device.info().shared_block_bytes));
  std::map<std::string, Module, std::less<>> modules;
  const std::string& abi = manifest.at("abi").string();
  LB_CHECK(abi == LUCEBOX_KERNEL_ABI, kFormat, "the pack of ", target_.name,
           " and this engine were built from different sources (hashes of the headers they share: ", abi, " and ",
           LUCEBOX_KERNEL_ABI, "); build both from one checkout, or install both from one source");
  for (const Json& entry : code.at("kernels").array()) {
    const std::string& name = entry.at("name").string();
    const std::string& file = entry.at("file").string();
    const auto image = files.find(file);
    LB_CHECK(image != files.end(), kFormat, "the pack of ", target_.name, " has no file ", file,
             ", which its manifest names for ", name, "; install the pack again");
    auto module = modules.find(file);
    if (module == modules.end())
      module = modules.emplace(file, Module(device, image->second, target_.name + " " + file)).first;
    kernels_.emplace(name, module->second.kernel(name));
  }
}

const Kernel& Pack::kernel(std::string_view name) const {
  const auto found = kernels_.find(name);
  LB_CHECK(found != kernels_.end(), kUnsupported, "the pack of ", target_.name, " has no ", name);
  return found->second;
}

void Pack::run(const Launch& launch, const void* params, size_t params_bytes, const Queue& queue) {
  const auto found = kernels_.find(std::string_view(launch.kernel));
  LB_ASSERT(found != kernels_.end());  // checked() has tested it
  Kernel& kernel = found->second;
  if (launch.shared_bytes > kernel.max_dynamic_shared_bytes()) kernel.allow_shared(launch.shared_bytes);
  kernel.set_carveout(launch.keeps_l1 ? kSharedWithL1 : Kernel::kMaxCarveout);
  const DeviceInfo& device = device_.info();
  LB_CHECK(!launch.is_one_wave || launch.grid[0] * launch.grid[1] * launch.grid[2] <= uint32_t(device.n_sms),
           kUnsupported, to_string(launch), ": all blocks must be co-resident, but ", device.name, " has ",
           device.n_sms, " multiprocessors");
  const LaunchShape shape{.grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                          .block = {launch.block[0], launch.block[1], launch.block[2]},
                          .shared_bytes = launch.shared_bytes,
                          .cooperative = launch.cooperative || (launch.is_one_wave && device.vendor == Vendor::kSim),
                          .cluster = launch.cluster,
                          .overlap_previous = launch.overlap_previous && device.has_overlap};
  queue.launch(kernel, shape, params, params_bytes);
}

}  // namespace lb::gpu
