// Mixture of experts on the CPU. Rows that chose the same expert multiply its weights together; a row's bits do not
// depend on the others.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/q8_layout.h"
#include "cpu/tasks.h"
#include "ops/experts.h"

namespace lb {
namespace {

using cpu::for_ranges;

// Whether a ranks above b. NaN ranks below all numbers.
bool is_above(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

void route(const RouteExperts& op, int row) {
  const float* logits = op.logits + long(row) * op.n_experts;
  int32_t* experts = op.experts + long(row) * op.k;
  float* weights = op.weights + long(row) * op.k;
  int n = 0;
  for (int e = 0; e < op.n_experts; ++e) {
    int at = n;
    while (at > 0 && is_above(logits[e], logits[experts[at - 1]])) --at;
    if (at == op.k) continue;
    n = std::min(n + 1, op.k);
    std::copy_backward(experts + at, experts + n - 1, experts + n);
    experts[at] = e;
  }
  const float largest = logits[experts[0]];
  double sum = 0;  // fp32 would lose a ulp per expert
  if (op.is_normalized)
    for (int j = 0; j < op.k; ++j) sum += std::exp(logits[experts[j]] - largest);
  else
    for (int e = 0; e < op.n_experts; ++e) sum += std::exp(logits[e] - largest);
  for (int j = 0; j < op.k; ++j) weights[j] = static_cast<float>(std::exp(logits[experts[j]] - largest) / sum);
  if (std::any_of(logits, logits + op.n_experts, [](float logit) { return std::isnan(logit); }))
    std::fill_n(weights, op.k, NAN);
}

// The choices of an ExpertLinear grouped by expert, in shared scratch.
struct Groups {
  std::array<int, kMaxExperts + 1> first;  // an expert's first place
  int* choices;                            // [n] the choice at each place

  Groups(const ExpertLinear& op, int* choices) : first(), choices(choices) {
    const int n = op.rows * op.k;
    for (int i = 0; i < n; ++i) ++first[op.experts[i] + 1];
    for (int e = 0; e < op.n_experts; ++e) first[e + 1] += first[e];
    std::array<int, kMaxExperts + 1> next = first;
    for (int i = 0; i < n; ++i) choices[next[op.experts[i]]++] = i;
  }
};

// Shared scratch: [choices | y, grouped | x, grouped and rounded, or grouped fp32].
struct ExpertScratch {
  size_t y_at, x_at, bytes;
  ExpertScratch(int n, int n_in, int n_out) {
    const auto align = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    y_at = align(n * sizeof(int));
    x_at = y_at + align(size_t(n) * n_out * sizeof(float));
    bytes = x_at + std::max(cpu::q8_layout(n, n_in).bytes, size_t(n) * n_in * sizeof(float));
  }
};

}  // namespace

size_t expert_shared_scratch(int max_choices, int max_n_in, int max_n_out) {
  return max_choices == 0 ? 0 : ExpertScratch(max_choices, max_n_in, max_n_out).bytes;
}

void CpuStream::run(const RouteExperts& op) {
  LB_ASSERT(op.k >= 1 && op.k <= kMaxChosen && op.k <= op.n_experts && op.n_experts <= kMaxExperts);
  for_ranges(pool(), op.rows, 8L * op.n_experts, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) route(op, r);
  });
}

void CpuStream::run(const ExpertLinear& op) {
  const int n = op.rows * op.k;
  if (n == 0) return;
  const ExpertScratch layout(n, op.n_in, op.n_out);
  std::byte* base = shared_scratch(layout.bytes);
  const Groups groups(op, reinterpret_cast<int*>(base));
  float* y = reinterpret_cast<float*>(base + layout.y_at);
  float* gathered = reinterpret_cast<float*>(base + layout.x_at);
  const bool is_rounded = cpu::rounds_x(op.type, op.activations);
  const cpu::Q8Layout rounded = cpu::q8_layout(n, op.n_in);
  const cpu::Q8Rows all = rounded.rows_at(base + layout.x_at, n, op.n_in);
  for_ranges(pool(), n, 2L * op.n_in, [&](int begin, int end) {
    for (int place = begin; place < end; ++place) {
      const int choice = groups.choices[place];
      const float* x = op.x + long(op.x_per_row ? choice / op.k : choice) * op.n_in;
      if (is_rounded)
        quantize_row(kernels(), x, all, place);
      else
        std::memcpy(gathered + long(place) * op.n_in, x, size_t(op.n_in) * sizeof(float));
    }
  });

  // A task is some weight rows of one expert, for all rows that chose it.
  std::array<int, kMaxExperts> used{};
  int n_used = 0;
  for (int e = 0; e < op.n_experts; ++e)
    if (groups.first[e + 1] > groups.first[e]) used[n_used++] = e;
  const int n_units = (op.n_out + cpu::kTaskRows - 1) / cpu::kTaskRows;
  const size_t row_size = row_bytes(op.type, size_t(op.n_in));
  pool().parallel_for(n_used * n_units, [&](int task, int thread) {
    const int e = used[task / n_units], first = groups.first[e], rows = groups.first[e + 1] - first;
    const int begin = task % n_units * cpu::kTaskRows, end = std::min(begin + cpu::kTaskRows, op.n_out);
    const Linear product = {
        .w = static_cast<const std::byte*>(op.w) + (size_t(e) * op.expert_rows + op.first_row) * row_size,
        .type = op.type,
        .x = gathered + long(first) * op.n_in,
        .add = nullptr,
        .y = y + long(first) * op.n_out,
        .rows = rows,
        .n_in = op.n_in,
        .n_out = op.n_out,
        .activations = op.activations};
    std::byte* scratch = thread_scratch(thread, linear_thread_scratch(op.n_in));
    if (is_rounded)
      kernels().linear_q8(product, all.from(first, rows), begin, end, scratch);
    else
      kernels().linear_f32(product, begin, end, scratch);
  });
  for_ranges(pool(), n, op.n_out, [&](int begin, int end) {
    for (int place = begin; place < end; ++place)
      std::memcpy(op.y + long(groups.choices[place]) * op.n_out, y + long(place) * op.n_out,
                  size_t(op.n_out) * sizeof(float));
  });
}

void CpuStream::run(const CombineExperts& op) {
  for_ranges(pool(), op.rows, long(op.k + 1) * op.dim, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      const float* x = op.x + long(r) * op.k * op.dim;
      const float* weights = op.weights + long(r) * op.k;
      const long row = long(r) * op.dim;
      const float gate = op.shared_gate == nullptr ? 1 : 1 / (1 + std::exp(-op.shared_gate[r]));
      for (int i = 0; i < op.dim; ++i) {
        float sum = weights[0] * x[i];
        for (int j = 1; j < op.k; ++j) sum += weights[j] * x[long(j) * op.dim + i];
        if (op.shared != nullptr) sum += gate * op.shared[row + i];
        op.y[row + i] = op.add == nullptr ? sum : op.add[row + i] + sum;
      }
    }
  });
}

}  // namespace lb
