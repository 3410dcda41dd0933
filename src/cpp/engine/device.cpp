// The registry of the process's devices; turns and promises.
#include "engine/device.h"

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <map>

namespace lb {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Device>, std::less<>> devices;
};

// Never freed: engines may outlive static objects. A forked child starts with a new registry, because its copy of a
// mutex may stay locked forever.
Registry& registry() {
  static Registry* current = [] {
    ::pthread_atfork(nullptr, nullptr, [] { current = new Registry; });
    return new Registry;
  }();
  return *current;
}

}  // namespace

Device& Device::find(const std::string& name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Device>& device = all.devices[name];
  if (device == nullptr) device = std::make_unique<Device>(name);
  return *device;
}

size_t Device::promised_bytes(const std::string& name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.devices.find(name);
  return found == all.devices.end() ? 0 : found->second->promised_bytes();
}

size_t Device::promised_bytes() const {
  const std::lock_guard lock(promised_mutex_);
  return promised_bytes_;
}

void Device::with_loan(LentMemory& lent, const std::function<void()>& work) {
  try {
    lent.borrow();
    work();
  } catch (...) {
    lent.give_back();
    throw;
  }
  lent.give_back();
}

void DeviceTurn::lock() {
  device_.turn_.lock();
  try {
    settle();
    device_.holders_.push_back(this);
  } catch (...) {
    device_.turn_.unlock();
    throw;
  }
}

// Waits for the work of the stream that had the previous turn.
void DeviceTurn::settle() {
  const std::shared_ptr<Stream> before = device_.newest_.lock();
  if (before == stream_) return;
  if (before != nullptr) before->wait();
  device_.newest_ = stream_;
}

void DeviceTurn::unlock() {
  device_.holders_.pop_back();
  try {
    if (!device_.holders_.empty()) device_.holders_.back()->settle();
  } catch (const Error&) {
    // A failed device also fails the next call on its stream, which reports the error.
  }
  device_.turn_.unlock();
}

EngineTurn::EngineTurn(std::vector<DeviceTurn*> turns) : turns_(std::move(turns)) {
  std::ranges::sort(turns_, std::less<>{}, [](const DeviceTurn* turn) { return &turn->device(); });
}

void EngineTurn::lock() {
  size_t n_locked = 0;
  try {
    for (; n_locked < turns_.size(); ++n_locked) turns_[n_locked]->lock();
  } catch (...) {
    while (n_locked > 0) turns_[--n_locked]->unlock();
    throw;
  }
}

void EngineTurn::unlock() {
  for (size_t i = turns_.size(); i-- > 0;) turns_[i]->unlock();
}

Promise::Promise(Device& device, size_t session_bytes, int n_sessions)
    : device_(device), session_bytes_(session_bytes) {
  change(n_sessions, 0);
}

size_t Promise::bytes() const { return session_bytes_ * std::max(n_sessions_ - n_open_, 0); }

void Promise::change(int n_sessions, int n_more_open) {
  const std::lock_guard lock(device_.promised_mutex_);
  device_.promised_bytes_ -= bytes();
  n_sessions_ = n_sessions;
  n_open_ += n_more_open;
  device_.promised_bytes_ += bytes();
}

}  // namespace lb
