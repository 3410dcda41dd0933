// Splits an op into tasks. Splits depend on shapes alone, so results do not depend on the number of threads.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"

namespace lb::cpu {

// Target number of values per task. Below about 16k values, waking a worker costs more than the worker saves.
inline constexpr long kTaskValues = 16384;

// Calls body(begin, end) for ranges of [0, n), each of up to kTaskValues values, or one item if an item has more.
template <class Body>
void for_ranges(ThreadPool& pool, int n, long values_each, Body&& body) {
  const int step = static_cast<int>(std::clamp<long>(kTaskValues / std::max<long>(values_each, 1), 1, std::max(n, 1)));
  pool.parallel_for((n + step - 1) / step, [&](int task, int) { body(task * step, std::min(n, (task + 1) * step)); });
}

// Calls body(task, thread) for every task; runs all on the calling thread if they have fewer than kTaskValues values.
template <class Body>
void for_tasks(ThreadPool& pool, int n_tasks, long values, Body&& body) {
  if (values >= kTaskValues) return pool.parallel_for(n_tasks, body);
  for (int task = 0; task < n_tasks; ++task) body(task, std::max(ThreadPool::thread_of_task(), 0));
}

}  // namespace lb::cpu
