// Turns a driver's status into an lb::Error that names the call, its status, the device and module, and the remedy.
#pragma once

#include <string_view>
#include <type_traits>

#include "device/driver.h"

namespace lb::gpu {

constexpr Status kNoDevice = 100;
constexpr Status kPeerAlreadyEnabled = 704;
constexpr Status kGraphUpdateFailed = 910;
constexpr Status kNotReady = 600;   // of stream_query: some work has not ended
constexpr Status kSimFault = 1000;  // the simulator stopped a kernel; unlike a GPU's, its context stays usable

[[noreturn]] void fail_call(const Driver& driver, const char* call, Status status, std::string_view where = {});

inline void check_status(const Driver& driver, const char* call, Status status, std::string_view where = {}) {
  if (status != 0) fail_call(driver, call, status, where);
}

template <class... Args>
void check_call(const Driver& driver, const Call<Args...>& call, std::type_identity_t<Args>... args) {
  check_status(driver, call.name, call(args...));
}

}  // namespace lb::gpu
