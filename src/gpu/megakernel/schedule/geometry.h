// Private header of the schedule's files: limits, and how a block's threads share the rows of a product.
#pragma once

#include <algorithm>

#include "base/error.h"
#include "gpu/megakernel/shape.h"
#include "ops/linear.h"

namespace lb::gpu {

inline int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }
// Number of parts of `each` values, at least one.
inline int parts_of(long values, int each) { return static_cast<int>(std::max<long>(1, (values + each - 1) / each)); }

inline void require(bool is_possible, const char* what) { LB_CHECK(is_possible, kUnsupported, "[megakernel] ", what); }

// A phase that moves fewer bytes is bound by latency, however its rows are distributed.
inline constexpr double kLatencyBytes = 10e6;

// The product of a task that computes rows of one; null: the task is no product.
inline ProductTask* product_of(Task& task) {
  switch (task.kind) {
    case TaskKind::kProduct: return &task.product;
    case TaskKind::kExpertActs:
    case TaskKind::kExpertSums: return &task.experts.product;
    default: return nullptr;
  }
}
inline const ProductTask* product_of(const Task& task) { return product_of(const_cast<Task&>(task)); }

bool is_plain(DType type);  // F32, F16, BF16: no codes
// Values of a thread's piece of a weight row, which is 16 bytes of codes.
int piece_values(DType type);

// A team is the threads that share a weight row.
struct Teams {
  int row_threads;  // threads per team
  int n;            // teams per block
};
// The teams with the shortest expected time for a block with `rows` rows.
Teams teams_of(const Linear& op, int rows);

// Sets the batches, passes and planes of a product from its teams. A block computes rows_each rows.
void plan_batches(ProductTask& p, int rows_each);

// Whether the writers of the rows quantise them, once for all readers. Each block then computes whole scale blocks of
// 32 rows.
bool rounds_own_rows(const ProductTask& p, int n_blocks);

}  // namespace lb::gpu
