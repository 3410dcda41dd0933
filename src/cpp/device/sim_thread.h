// SimThread: the thread of a simulated stream, which runs the stream's work in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "device/driver.h"

namespace lb::gpu {

class SimThread {
 public:
  using Work = std::function<Status()>;
  // why: receives the reason of a failure.
  using Job = std::function<Status(std::string& why)>;

  SimThread();
  ~SimThread();  // after all jobs
  SimThread(const SimThread&) = delete;
  SimThread& operator=(const SimThread&) = delete;

  void push(Job job);
  bool is_done();  // whether all jobs have ended
  // Waits for all jobs. Returns the first failure since the last call; later jobs run all the same.
  Status finish(std::string& why);
  // Waits for the jobs of all such threads, whose failures stay.
  static void finish_all();

 private:
  void run();
  void wait();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first may be running
  bool ends_ = false;
  Status failure_ = 0;
  std::string why_;
  std::thread thread_;
};

// Injects a fault: the next kernel on this simulated device begins `seconds` later.
void delay_sim_device(int device, double seconds);
// Injects a fault: every `every`-th word that kernels of this simulated device send to other devices arrives with these
// bits inverted, until n_wrong words have.
void corrupt_sim_link(int device, uint64_t flipped, uint32_t every, uint32_t n_wrong);

}  // namespace lb::gpu
