// Shared by both stand-in drivers: they pass every call on to the simulated device, unless a test has scripted it to
// fail. A test scripts them through the exported standin_* functions, by ctypes, in the process that uses the driver.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "device/driver.h"

namespace standin {

using namespace lb::gpu;

struct Failure {
  Status status;
  int after;  // calls that still succeed
};

struct Script {
  std::mutex mutex;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  Status lost = 0;  // a sticky error: the context is gone
  int n_devices = 2;
  int version = 0;
  std::string architecture;
  std::string last_launch;
};
inline Script script;

inline bool takes_the_context(Status status) { return status == 700 || (status >= 714 && status <= 719); }

// The status that a call is scripted to return now; 0: let it run.
inline Status scripted(const char* call) {
  const std::lock_guard lock(script.mutex);
  ++script.calls[call];
  if (script.lost != 0) return script.lost;
  const auto found = script.failures.find(call);
  if (found == script.failures.end() || found->second.after-- > 0) return 0;
  const Status status = found->second.status;
  script.failures.erase(found);
  if (takes_the_context(status)) script.lost = status;
  return status;
}

// A fault that the simulator reports is one that takes the context on silicon.
inline Status as_silicon(Status status) {
  constexpr Status kSimFault = 1000, kLaunchFailed = 719;
  if (status != kSimFault) return status;
  const std::lock_guard lock(script.mutex);
  return script.lost = kLaunchFailed;
}

template <class... Args>
Status pass(const char* name, const Call<Args...>& call, std::type_identity_t<Args>... args) {
  if (const Status status = scripted(name)) return status;
  return as_silicon(call(args...));
}

inline const Driver& sim() { return sim_driver(); }

// How the last kernel was launched, for tests to look at.
inline void note(std::string how) {
  const std::lock_guard lock(script.mutex);
  script.last_launch = std::move(how);
}

}  // namespace standin

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

// The call of this name fails with this status after `after` more calls; once, unless the status is a sticky one.
STANDIN_EXPORT void standin_fail(const char* call, int status, int after) {
  const std::lock_guard lock(standin::script.mutex);
  standin::script.failures[call] = {status, after};
}

STANDIN_EXPORT void standin_set(int n_devices, int version, const char* architecture) {
  standin::script.n_devices = n_devices;
  standin::script.version = version;
  standin::script.architecture = architecture;
}

STANDIN_EXPORT int standin_calls(const char* call) {
  const std::lock_guard lock(standin::script.mutex);
  return standin::script.calls[call];
}

// The names of the calls so far, with spaces between; good until the next such question.
STANDIN_EXPORT const char* standin_all_calls() {
  static std::string names;
  const std::lock_guard lock(standin::script.mutex);
  names.clear();
  for (const auto& [name, count] : standin::script.calls) names += name + " ";
  return names.c_str();
}

STANDIN_EXPORT const char* standin_last_launch() { return standin::script.last_launch.c_str(); }
