// FairLock: a recursive mutex that serves threads first come, first served. With std::recursive_mutex, a thread that
// unlocks and locks again can starve the waiting threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace lb {

class FairLock {
 public:
  void lock();
  void unlock();
  // Whether another thread waits. Only the owner may call it.
  bool is_wanted() const;

 private:
  struct Waiter {
    std::thread::id thread;
    std::condition_variable called;
  };

  mutable std::mutex mutex_;            // guards waiting_ and changes of owner
  std::atomic<std::thread::id> owner_;  // none: free
  int depth_ = 0;                       // nesting depth of the owner's lock() calls
  std::deque<Waiter*> waiting_;
};

}  // namespace lb
