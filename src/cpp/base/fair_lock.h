// FairLock: a recursive mutex that serves threads in the order in which they asked. std::recursive_mutex lets a thread
// that unlocks and locks again overtake the waiting ones for as long as it likes.
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
  // Whether another thread waits. Only the owner may ask.
  bool is_wanted() const;

 private:
  struct Waiter {
    std::thread::id thread;
    std::condition_variable called;
  };

  mutable std::mutex mutex_;            // guards waiting_ and changes of owner
  std::atomic<std::thread::id> owner_;  // none: free
  int depth_ = 0;                       // of the owner's calls of lock()
  std::deque<Waiter*> waiting_;
};

}  // namespace lb
