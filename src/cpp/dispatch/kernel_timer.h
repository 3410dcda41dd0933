// KernelTimer: measures device time per kernel, with an event before and after every launch.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "device/queue.h"

namespace lb::gpu {

struct KernelTime {
  std::string kernel;
  int launches;
  double seconds;  // sum over the launches
};

class KernelTimer {
 public:
  KernelTimer(const Device& device, const Queue& queue) : device_(device), queue_(queue) {}

  void begin(const char* kernel) { queue_.record(spans_.emplace_back(kernel, device_).begin); }
  void end() { queue_.record(spans_.back().end); }
  // Waits for all launches. Sorted by time, longest first.
  std::vector<KernelTime> times() const;

 private:
  struct Span {
    Span(const char* name, const Device& device) : kernel(name), begin(device), end(device) {}
    const char* kernel;
    Event begin, end;
  };

  const Device& device_;
  const Queue& queue_;
  std::deque<Span> spans_;
};

}  // namespace lb::gpu
