// Maps driver error numbers to an error code and a remedy. CUDA and HIP share all of these numbers.
#include "device/driver_error.h"

#include "base/error.h"

namespace lb::gpu {
namespace {

struct Meaning {
  Status status;
  ErrorCode code;
  const char* remedy;
};

constexpr const char* kLost =
    "a kernel failed and left the device's context unusable: every later call on this device fails until the process "
    "is restarted";
constexpr const char* kDriverMismatch =
    "the driver's kernel module and its library have different versions: reboot after a driver update";
constexpr const char* kCapture =
    "an operation that cannot be part of a graph ran while the stream was capturing; capture again without it";

constexpr Meaning kMeanings[] = {
    {1, ErrorCode::kDevice, "the driver refused an argument"},
    {2, ErrorCode::kMemory, "the device has too little free memory; close other programs or choose a smaller context"},
    {34, ErrorCode::kDevice,
     "this library is the toolkit's stub for linking, not the driver; remove it from the library path"},
    {35, ErrorCode::kDevice, "the kernel driver is older than this library needs; update it"},
    {36, ErrorCode::kDevice, "the driver is too old for this call; update it"},
    {46, ErrorCode::kDevice, "another process uses the device exclusively, or the device is in a bad state"},
    {98, ErrorCode::kDevice, "the kernel is not valid for this device"},
    {100, ErrorCode::kDevice, "the driver sees no device"},
    {101, ErrorCode::kDevice, "there is no device with this index"},
    {200, ErrorCode::kFormat, "the code object is damaged; install its pack again"},
    {209, ErrorCode::kUnsupported,
     "the code object was compiled for another architecture; install the pack of this device"},
    {218, ErrorCode::kUnsupported, "the code object is not for this device or needs a newer driver"},
    {222, ErrorCode::kUnsupported, "the code object needs a newer driver"},
    {500, ErrorCode::kUnsupported, "the module has no symbol with this name"},
    {701, ErrorCode::kDevice, "the launch requests more threads, registers or shared memory than a block may have"},
    {720, ErrorCode::kInvalid, "all blocks of a cooperative launch must be co-resident; use fewer blocks"},
    {801, ErrorCode::kUnsupported, "the driver or the device does not support this call"},
    {802, ErrorCode::kDevice, "the machine's fabric manager is not running or not ready"},
    {803, ErrorCode::kDevice, kDriverMismatch},
    {804, ErrorCode::kDevice, "the compatibility library does not support this device; use the driver's own"},
    {900, ErrorCode::kInvalid, kCapture},
    {901, ErrorCode::kInvalid, kCapture},
    {906, ErrorCode::kInvalid, kCapture},
    {912, ErrorCode::kInvalid, "the device cannot launch clusters of this size"},
    {214, ErrorCode::kDevice, kLost},  // uncorrectable memory error
    {700, ErrorCode::kDevice, kLost},  // illegal address
    {702, ErrorCode::kDevice, kLost},  // launch timeout
    {710, ErrorCode::kDevice, kLost},  // assertion in a kernel
    {714, ErrorCode::kDevice, kLost},  // hardware stack error
    {715, ErrorCode::kDevice, kLost},  // illegal instruction
    {716, ErrorCode::kDevice, kLost},  // misaligned address
    {717, ErrorCode::kDevice, kLost},  // invalid address space
    {718, ErrorCode::kDevice, kLost},  // invalid program counter
    {719, ErrorCode::kDevice, kLost},  // launch failure
    {kSimFault, ErrorCode::kDevice, "the simulator stopped the kernel"},
};

}  // namespace

void fail_call(const Driver& driver, const char* call, Status status, std::string_view where) {
  const Meaning* meaning = nullptr;
  for (const Meaning& m : kMeanings)
    if (m.status == status) meaning = &m;
  fail(meaning ? meaning->code : ErrorCode::kDevice, "[", name(driver.vendor), "] ", call, ": ",
       driver.error_text(status), where.empty() ? "" : ", ", where, meaning ? ": " : "", meaning ? meaning->remedy : "",
       " (", driver.library, ", ", driver.version, ")");
}

}  // namespace lb::gpu
