#include "base/fair_lock.h"

namespace lb {

void FairLock::lock() {
  const std::thread::id self = std::this_thread::get_id();
  if (owner_.load(std::memory_order_relaxed) == self) {  // no other thread stores this id
    ++depth_;
    return;
  }
  std::unique_lock guard(mutex_);
  if (owner_.load(std::memory_order_relaxed) == std::thread::id()) {
    owner_.store(self, std::memory_order_relaxed);
    depth_ = 1;
    return;
  }
  Waiter waiter{self, {}};
  waiting_.push_back(&waiter);
  waiter.called.wait(guard, [&] { return owner_.load(std::memory_order_relaxed) == self; });
}

void FairLock::unlock() {
  if (--depth_ > 0) return;
  const std::lock_guard guard(mutex_);
  if (waiting_.empty()) {
    owner_.store({}, std::memory_order_relaxed);
    return;
  }
  Waiter& next = *waiting_.front();
  waiting_.pop_front();
  depth_ = 1;
  owner_.store(next.thread, std::memory_order_relaxed);
  next.called.notify_one();  // under the mutex: the waiter lives on the stack of its thread
}

bool FairLock::is_wanted() const {
  const std::lock_guard guard(mutex_);
  return !waiting_.empty();
}

}  // namespace lb
