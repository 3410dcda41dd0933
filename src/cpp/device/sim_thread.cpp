#include "device/sim_thread.h"

#include <set>
#include <utility>

namespace lb::gpu {
namespace {

struct Threads {
  std::mutex mutex;
  std::set<SimThread*> threads;
};
// Never destroyed: streams may outlive the statics.
Threads& all = *new Threads;

}  // namespace

SimThread::SimThread() : thread_([this] { run(); }) {
  const std::lock_guard lock(all.mutex);
  all.threads.insert(this);
}

SimThread::~SimThread() {
  {
    const std::lock_guard lock(all.mutex);
    all.threads.erase(this);
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SimThread::push(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void SimThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    lock.unlock();
    std::string why;
    const Status status = job(why);
    lock.lock();
    if (status != 0 && failure_ == 0) failure_ = status, why_ = std::move(why);
    jobs_.pop_front();
    if (jobs_.empty()) changed_.notify_all();
  }
}

void SimThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty(); });
}

bool SimThread::is_done() {
  const std::lock_guard lock(mutex_);
  return jobs_.empty();
}

Status SimThread::finish(std::string& why) {
  wait();
  const std::lock_guard lock(mutex_);
  if (failure_ != 0) why = std::exchange(why_, {});
  return std::exchange(failure_, 0);
}

void SimThread::finish_all() {
  const std::lock_guard lock(all.mutex);
  for (SimThread* thread : all.threads) thread->wait();
}

}  // namespace lb::gpu
