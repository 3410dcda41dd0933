// Sums the launches of each kernel.
#include "dispatch/kernel_timer.h"

#include <algorithm>
#include <map>

namespace lb::gpu {

std::vector<KernelTime> KernelTimer::times() const {
  queue_.synchronize();
  std::map<std::string, KernelTime> sums;
  for (const Span& span : spans_) {
    KernelTime& sum = sums.try_emplace(span.kernel, KernelTime{span.kernel, 0, 0}).first->second;
    ++sum.launches;
    sum.seconds += double(span.begin.elapsed_ms(span.end)) * 1e-3;
  }
  std::vector<KernelTime> times;
  for (const auto& [name, sum] : sums) times.push_back(sum);
  std::ranges::sort(times, std::ranges::greater{}, &KernelTime::seconds);
  return times;
}

}  // namespace lb::gpu
