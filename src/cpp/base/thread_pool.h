// A persistent pool of worker threads for data-parallel loops over op bodies.
// Workers spin briefly between loops (a decode step issues hundreds), then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace lb {

class ThreadPool {
 public:
  // n_threads counts the calling thread; at least 1.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // The thread whose task calls this; -1 outside of tasks.
  static int thread_of_task() { return thread_of_task_; }

  // Calls body(task, thread) for every task in [0, n_tasks); thread is in [0, size()). Threads take tasks one by one,
  // so tasks may be uneven. Rethrows the first exception of a task. A nested loop runs on the task's thread.
  template <class Body>
  void parallel_for(int n_tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(n_tasks, [](void* self, int task, int thread) { (*static_cast<Plain*>(self))(task, thread); }, &body);
  }

 private:
  using Call = void (*)(void*, int, int);
  void run(int n_tasks, Call call, void* body);
  void work(int thread);
  void drain(int thread);

  static thread_local int thread_of_task_;
  std::vector<std::thread> workers_;
  // The pool runs one loop at a time. These four fields describe it; incrementing generation_ publishes them.
  Call call_ = nullptr;
  void* body_ = nullptr;
  int n_tasks_ = 0;
  alignas(64) std::atomic<int> next_task_{0};
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::exception_ptr error_;
};

}  // namespace lb
