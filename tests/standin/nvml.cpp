// A stand-in for libnvidia-ml.so.1 with one GPU. Its power limit, in milliwatts, is in the file `limit` of the folder
// that STANDIN_NVML names, so all processes see one limit. A file `limit.denied` beside it denies changes. The
// GPU draws nine tenths of its limit.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

constexpr int kSuccess = 0, kInvalid = 2, kNoPermission = 4;
constexpr unsigned kLeast = 100'000, kMost = 400'000;

std::string file() { return std::string(std::getenv("STANDIN_NVML")) + "/limit"; }

unsigned limit() {
  unsigned milliwatts = 0;
  std::ifstream(file()) >> milliwatts;
  return milliwatts;
}

}  // namespace

#define NVML extern "C" __attribute__((visibility("default"))) int

NVML nvmlInit_v2() { return kSuccess; }
NVML nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static int gpu;
  *device = &gpu;
  return kSuccess;
}
NVML nvmlDeviceGetPowerManagementLimit(void*, unsigned* milliwatts) {
  *milliwatts = limit();
  return kSuccess;
}
NVML nvmlDeviceGetPowerManagementLimitConstraints(void*, unsigned* least, unsigned* most) {
  *least = kLeast;
  *most = kMost;
  return kSuccess;
}
NVML nvmlDeviceSetPowerManagementLimit(void*, unsigned milliwatts) {
  if (milliwatts < kLeast || milliwatts > kMost) return kInvalid;
  if (access((file() + ".denied").c_str(), F_OK) == 0) return kNoPermission;
  std::ofstream(file()) << milliwatts << '\n';
  return kSuccess;
}
NVML nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = limit() / 10 * 9;
  return kSuccess;
}
// Energy between two calls at the limit of the later one.
NVML nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
  using Clock = std::chrono::steady_clock;
  static Clock::time_point last = Clock::now();
  static double sum = 0;
  const Clock::time_point now = Clock::now();
  sum += std::chrono::duration<double>(now - last).count() * limit() * 0.9;
  last = now;
  *millijoules = static_cast<unsigned long long>(sum);
  return kSuccess;
}
