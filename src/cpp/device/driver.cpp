// Vendor names, and the driver table of each vendor.
#include "device/driver.h"

#include "base/error.h"

namespace lb::gpu {

std::string_view name(Vendor vendor) {
  switch (vendor) {
    case Vendor::kCuda: return "cuda";
    case Vendor::kHip: return "hip";
    case Vendor::kSim: return "sim";
  }
  return "unknown";
}

Vendor vendor_from_name(std::string_view text) {
  for (Vendor vendor : {Vendor::kCuda, Vendor::kHip, Vendor::kSim})
    if (name(vendor) == text) return vendor;
  fail(ErrorCode::kInvalid, "a device vendor is cuda, hip or sim, got '", text, "'");
}

const Driver& driver(Vendor vendor) {
  switch (vendor) {
    case Vendor::kCuda: return cuda_driver();
    case Vendor::kHip: return hip_driver();
    case Vendor::kSim: return sim_driver();
  }
  assertion_failed("a vendor has a driver");
}

}  // namespace lb::gpu
