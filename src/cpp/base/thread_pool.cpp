// Fork-join over one atomic task counter. The caller is thread 0 and works too.
#include "base/thread_pool.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lb {
namespace {

// About 50 us of polling: longer than the gap between two ops of a decode step, so workers sleep only between steps.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

thread_local int ThreadPool::thread_of_task_ = -1;

ThreadPool::ThreadPool(int n_threads) {
  LB_CHECK(n_threads >= 1 && n_threads <= 1024, kInvalid, "threads must be between 1 and 1024, got ", n_threads);
  workers_.reserve(n_threads - 1);
  for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int n_tasks, Call call, void* body) {
  if (n_tasks <= 0) return;
  if (n_tasks == 1 || workers_.empty() || thread_of_task_ >= 0) {
    for (int task = 0; task < n_tasks; ++task) call(body, task, std::max(thread_of_task_, 0));
    return;
  }
  call_ = call;
  body_ = body;
  n_tasks_ = n_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);  // a worker between its last check and wait() holds the mutex
    wake_.notify_all();
  }
  drain(0);
  for (int spin = 0; busy_.load(std::memory_order_acquire) > 0; ++spin) {
    relax();
    if (spin > kSpins) std::this_thread::yield();  // with fewer cores than threads, a worker needs this core
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::drain(int thread) {
  thread_of_task_ = thread;
  for (;;) {
    const int task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= n_tasks_) break;
    try {
      call_(body_, task, thread);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  thread_of_task_ = -1;
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    int spin = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (++spin < kSpins) {
        relax();
        continue;
      }
      std::unique_lock lock(mutex_);
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
      sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    drain(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lb
