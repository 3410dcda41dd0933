// Splits embedding look-ups and linear products into tasks. One task computes an output completely, in an order that
// depends on the shape alone, so results do not depend on the number of threads.
#include <algorithm>
#include <span>

#include "base/error.h"
#include "cpu/cpu_stream.h"
#include "cpu/kernels.h"
#include "cpu/q8_layout.h"

namespace lb {
namespace {

using cpu::kTaskRows;
using cpu::Q8Rows;
using cpu::round_up;

constexpr long kInlineWork = 48 << 10;  // multiply-adds; with less work, waking the pool costs more than it saves
constexpr int kTasksPerThread = 4;      // balances the load when a worker starts late

Q8Rows quantize(const Linear& op, CpuStream& stream) {
  const cpu::Q8Layout layout = cpu::q8_layout(op.rows, op.n_in);
  const Q8Rows rows = layout.rows_at(stream.shared_scratch(layout.bytes), op.rows, op.n_in);
  const long work = long(op.rows) * op.n_in;
  const int n_tasks = work < kInlineWork ? 1 : std::min(op.rows, kTasksPerThread * stream.pool().size());
  stream.pool().parallel_for(n_tasks, [&](int task, int) {
    for (long r = long(op.rows) * task / n_tasks; r < long(op.rows) * (task + 1) / n_tasks; ++r)
      quantize_row(stream.kernels(), op.x + r * op.n_in, rows, int(r));
  });
  return rows;
}

}  // namespace

void CpuStream::run(const LinearGroup& group) {
  const std::span products(group.products, group.n);
  if (products.empty() || products[0].rows == 0) return;
  const Linear& first = products[0];
  bool needs_q8 = false;
  long work = 0;
  int n_units = 0;  // units in the group; a unit is kTaskRows weight rows
  for (const Linear& op : products) {
    LB_ASSERT(op.x == first.x && op.rows == first.rows && op.n_in == first.n_in && op.activations == first.activations);
    needs_q8 = needs_q8 || cpu::rounds_x(op.type, op.activations);
    work += long(op.rows) * op.n_in * op.n_out;
    n_units += round_up(op.n_out, kTaskRows) / kTaskRows;
  }
  const Q8Rows x = needs_q8 ? quantize(first, *this) : Q8Rows{};
  const size_t scratch_bytes = linear_thread_scratch(first.n_in);

  // Computes units [begin, end) of the group; units count through the products in order.
  const auto run_units = [&](int begin, int end, int thread) {
    std::byte* scratch = thread_scratch(thread, scratch_bytes);
    for (const Linear& op : products) {
      const int units = round_up(op.n_out, kTaskRows) / kTaskRows;
      const int row_begin = std::max(begin, 0) * kTaskRows;
      const int row_end = std::min(std::min(end, units) * kTaskRows, op.n_out);
      if (row_begin < row_end) {
        if (cpu::rounds_x(op.type, op.activations))
          kernels().linear_q8(op, x, row_begin, row_end, scratch);
        else
          kernels().linear_f32(op, row_begin, row_end, scratch);
      }
      begin -= units;
      end -= units;
    }
  };
  const int n_tasks = work < kInlineWork ? 1 : std::min(n_units, kTasksPerThread * pool().size());
  pool().parallel_for(n_tasks, [&](int task, int thread) {
    run_units(int(long(n_units) * task / n_tasks), int(long(n_units) * (task + 1) / n_tasks), thread);
  });
}

size_t linear_shared_scratch(int max_rows, int max_n_in) { return cpu::q8_layout(max_rows, max_n_in).bytes; }

// Sized for the AVX-512 panel: codes of 32 weight rows, a scale and an offset per 16 codes, and a term per 16 values of
// six activation rows.
size_t linear_thread_scratch(int max_n_in) { return size_t(round_up(max_n_in, 256)) * 50; }

void CpuStream::run(const Embed& op) {
  const long work = long(op.rows) * op.dim;
  const int n_tasks = work < kInlineWork ? 1 : std::min(op.rows, kTasksPerThread * pool().size());
  pool().parallel_for(n_tasks, [&](int task, int) {
    kernels().embed(op, int(long(op.rows) * task / n_tasks), int(long(op.rows) * (task + 1) / n_tasks));
  });
}

}  // namespace lb
