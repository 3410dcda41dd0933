// Cutting an op into tasks. Cuts depend on shapes only, so a result never depends on the number of threads.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"

namespace lb::cpu {

// Below about 16k values waking the workers costs more than they save.
inline constexpr long kTaskValues = 16384;

// body(begin, end) over [0, n) in runs of at least kTaskValues values.
template <class Body>
void for_ranges(ThreadPool& pool, int n, long values_each, Body&& body) {
  const int run = static_cast<int>(std::clamp<long>(kTaskValues / std::max<long>(values_each, 1), 1, std::max(n, 1)));
  pool.parallel_for((n + run - 1) / run, [&](int task, int) { body(task * run, std::min(n, (task + 1) * run)); });
}

// body(task, thread) for every task; on the calling thread alone when all of it together is small.
template <class Body>
void for_tasks(ThreadPool& pool, int n_tasks, long values, Body&& body) {
  if (values >= kTaskValues) return pool.parallel_for(n_tasks, body);
  for (int task = 0; task < n_tasks; ++task) body(task, 0);
}

}  // namespace lb::cpu
