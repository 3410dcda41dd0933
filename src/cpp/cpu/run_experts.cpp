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
  std::array<float, kMaxExperts> logits;
  for (int e = 0; e < op.n_experts; ++e)
    logits[e] = op.logits[long(row) * op.n_experts + e] + (op.bias == nullptr ? 0 : op.bias[e]);
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
  for (int j = 0; j < op.k; ++j) {
    const double scale = op.scale == nullptr ? 1 : op.scale[experts[j]];
    weights[j] = static_cast<float>(std::exp(logits[experts[j]] - largest) / sum * scale);
  }
  if (std::any_of(logits.begin(), logits.begin() + op.n_experts, [](float logit) { return std::isnan(logit); }))
    std::fill_n(weights, op.k, NAN);
}

size_t align(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows that products read: fp32 and rounded to 8 bits, each if some matrix needs it.
struct InputRows {
  float* values;
  cpu::Q8Rows rounded;
  InputRows(std::byte* at, int n, int n_in)
      : values(reinterpret_cast<float*>(at)),
        rounded(cpu::q8_layout(n, n_in).rows_at(at + align(size_t(n) * n_in * sizeof(float)), n, n_in)) {}
  static size_t bytes(int n, int n_in) {
    return align(size_t(n) * n_in * sizeof(float)) + align(cpu::q8_layout(n, n_in).bytes);
  }
};

// Shared scratch. A place is the position of a choice when choices are grouped by expert.
struct ExpertScratch {
  size_t places_at, gate_at, up_at, parts_at, x_at, inputs_at, bytes;
  ExpertScratch(int rows, int k, int dim, int ffn) {
    const int n = rows * k;
    places_at = align(n * sizeof(int));
    gate_at = places_at + align(n * sizeof(int));
    up_at = gate_at + align(size_t(n) * ffn * sizeof(float));
    parts_at = up_at + align(size_t(n) * ffn * sizeof(float));
    x_at = parts_at + align(size_t(n) * dim * sizeof(float));
    inputs_at = x_at + align(cpu::q8_layout(rows, dim).bytes);
    bytes = inputs_at + std::max(InputRows::bytes(n, dim), InputRows::bytes(n, ffn));
  }
};

bool is_rounded(const ExpertMatrix& matrix, Activations activations) { return cpu::rounds_x(matrix.type, activations); }

void copy_row(const cpu::Q8Rows& from, int row, const cpu::Q8Rows& to, int place) {
  const size_t n = size_t(from.n_blocks);
  std::memcpy(to.q + long(place) * to.stride, from.q + long(row) * from.stride, size_t(from.stride));
  std::memcpy(to.scale + place * n, from.scale + row * n, n * sizeof(float));
  std::memcpy(to.sum + place * n, from.sum + row * n, n * sizeof(int32_t));
}

// One MixExperts.
class Mixture {
 public:
  Mixture(const MixExperts& op, const cpu::Kernels& kernels, ThreadPool& pool, std::byte* scratch)
      : op_(op), kernels_(kernels), pool_(pool), n_(op.rows * op.k) {
    const ExpertScratch layout(op.rows, op.k, op.dim, op.ffn);
    choices_ = reinterpret_cast<int*>(scratch);
    places_ = reinterpret_cast<int*>(scratch + layout.places_at);
    gate_ = reinterpret_cast<float*>(scratch + layout.gate_at);
    up_ = reinterpret_cast<float*>(scratch + layout.up_at);
    parts_ = reinterpret_cast<float*>(scratch + layout.parts_at);
    x_ = scratch + layout.x_at;
    inputs_ = scratch + layout.inputs_at;
    for (int i = 0; i < n_; ++i) ++first_[op.experts[i] + 1];
    for (int e = 0; e < op.n_experts; ++e) {
      if (first_[e + 1] > 0) used_[n_used_++] = e;
      first_[e + 1] += first_[e];
    }
    std::array<int, kMaxExperts + 1> next = first_;
    for (int i = 0; i < n_; ++i) {
      places_[i] = next[op.experts[i]]++;
      choices_[places_[i]] = i;
    }
  }

  // act() of every place, in gate_. `scratch`: of a thread.
  template <class Scratch>
  void activate(Scratch&& scratch) {
    const InputRows x = gather();
    for_units(op_.ffn, [&](int e, int begin, int end, int thread) {
      multiply(op_.gate, x, op_.dim, op_.ffn, e, begin, end, gate_, scratch(thread));
      multiply(op_.up, x, op_.dim, op_.ffn, e, begin, end, up_, scratch(thread));
      for (int place = first_[e]; place < first_[e + 1]; ++place) {
        float *gate = gate_ + long(place) * op_.ffn + begin, *up = up_ + long(place) * op_.ffn + begin;
        const int n = end - begin;
        if (op_.is_gelu)
          kernels_.geglu({gate, up, gate, 1, n, n}, 0, 1);
        else if (op_.limit > 0)
          kernels_.clamped_swiglu(gate, up, gate, n, op_.limit);
        else
          kernels_.swiglu({gate, up, gate, 1, n}, 0, 1);
      }
    });
  }

  // down of every place, in parts_.
  template <class Scratch>
  void project(Scratch&& scratch) {
    InputRows hidden(inputs_, n_, op_.ffn);
    hidden.values = gate_;
    if (is_rounded(op_.down, op_.activations))
      for_ranges(pool_, n_, 2L * op_.ffn, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) quantize_row(kernels_, gate_ + long(i) * op_.ffn, hidden.rounded, i);
      });
    for_units(op_.dim, [&](int e, int begin, int end, int thread) {
      multiply(op_.down, hidden, op_.ffn, op_.dim, e, begin, end, parts_, scratch(thread));
    });
  }

  void combine(int r) const {
    const float* weights = op_.weights + long(r) * op_.k;
    const long row = long(r) * op_.dim;
    const float gate = op_.shared_gate == nullptr ? 1 : 1 / (1 + std::exp(-op_.shared_gate[r]));
    std::array<const float*, kMaxChosen> parts;
    for (int j = 0; j < op_.k; ++j) parts[j] = parts_ + long(places_[r * op_.k + j]) * op_.dim;
    for (int i = 0; i < op_.dim; ++i) {
      float sum = weights[0] * parts[0][i];
      for (int j = 1; j < op_.k; ++j) sum += weights[j] * parts[j][i];
      if (op_.shared != nullptr) sum += gate * op_.shared[row + i];
      op_.y[row + i] = op_.add == nullptr ? sum : op_.add[row + i] + sum;
    }
  }

 private:
  // x of every place. Each row is rounded once.
  InputRows gather() {
    const bool rounds_gate = is_rounded(op_.gate, op_.activations), rounds_up = is_rounded(op_.up, op_.activations);
    const cpu::Q8Rows rows = cpu::q8_layout(op_.rows, op_.dim).rows_at(x_, op_.rows, op_.dim);
    const InputRows to(inputs_, n_, op_.dim);
    if (rounds_gate || rounds_up)
      for_ranges(pool_, op_.rows, 2L * op_.dim, [&](int begin, int end) {
        for (int r = begin; r < end; ++r) quantize_row(kernels_, op_.x + long(r) * op_.dim, rows, r);
      });
    for_ranges(pool_, n_, op_.dim, [&](int begin, int end) {
      for (int place = begin; place < end; ++place) {
        const int row = choices_[place] / op_.k;
        if (rounds_gate || rounds_up) copy_row(rows, row, to.rounded, place);
        if (!rounds_gate || !rounds_up)
          std::memcpy(to.values + long(place) * op_.dim, op_.x + long(row) * op_.dim, size_t(op_.dim) * sizeof(float));
      }
    });
    return to;
  }

  // Calls body(expert, begin, end, thread) for ranges of n outputs of every used expert.
  template <class Body>
  void for_units(int n, Body&& body) {
    const int n_units = (n + cpu::kTaskRows - 1) / cpu::kTaskRows;
    pool_.parallel_for(n_used_ * n_units, [&](int task, int thread) {
      const int begin = task % n_units * cpu::kTaskRows;
      body(used_[task / n_units], begin, std::min(begin + cpu::kTaskRows, n), thread);
    });
  }

  // y[place, begin..end) for the places of an expert.
  void multiply(const ExpertMatrix& matrix, const InputRows& x, int n_in, int n_out, int expert, int begin, int end,
                float* y, std::byte* scratch) {
    const int first = first_[expert], rows = first_[expert + 1] - first;
    const size_t row_size = row_bytes(matrix.type, size_t(n_in));
    const Linear product = {.w = static_cast<const std::byte*>(matrix.w) +
                                 (size_t(expert) * matrix.expert_rows + matrix.first_row) * row_size,
                            .type = matrix.type,
                            .x = x.values + long(first) * n_in,
                            .add = nullptr,
                            .y = y + long(first) * n_out,
                            .rows = rows,
                            .n_in = n_in,
                            .n_out = n_out,
                            .activations = op_.activations};
    if (is_rounded(matrix, op_.activations))
      kernels_.linear_q8(product, x.rounded.from(first, rows), begin, end, scratch);
    else
      kernels_.linear_f32(product, begin, end, scratch);
    if (matrix.bias == nullptr) return;
    const float* bias = matrix.bias + long(expert) * n_out;
    for (int r = 0; r < rows; ++r)
      for (int i = begin; i < end; ++i) product.y[long(r) * n_out + i] += bias[i];
  }

  const MixExperts& op_;
  const cpu::Kernels& kernels_;
  ThreadPool& pool_;
  int n_;                                     // choices
  std::array<int, kMaxExperts + 1> first_{};  // an expert's first place
  std::array<int, kMaxExperts> used_{};       // experts with a place
  int n_used_ = 0;
  int *choices_, *places_;      // [n] the choice at each place, and its inverse
  float *gate_, *up_, *parts_;  // [n, ffn], [n, ffn], [n, dim] by place
  std::byte *x_, *inputs_;
};

}  // namespace

size_t expert_shared_scratch(int max_rows, int max_k, int max_dim, int max_ffn) {
  return max_k == 0 ? 0 : ExpertScratch(max_rows, max_k, max_dim, max_ffn).bytes;
}

void CpuStream::run(const RouteExperts& op) {
  LB_ASSERT(op.k >= 1 && op.k <= kMaxChosen && op.k <= op.n_experts && op.n_experts <= kMaxExperts);
  for_ranges(pool(), op.rows, 8L * op.n_experts, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) route(op, r);
  });
}

void CpuStream::run(const MixExperts& op) {
  if (op.rows == 0) return;
  LB_ASSERT(op.k >= 1 && op.k <= kMaxChosen && op.n_experts <= kMaxExperts);
  Mixture mixture(op, kernels(), pool(), shared_scratch(ExpertScratch(op.rows, op.k, op.dim, op.ffn).bytes));
  const size_t thread_bytes = linear_thread_scratch(std::max(op.dim, op.ffn));
  const auto scratch = [&](int thread) { return thread_scratch(thread, thread_bytes); };
  mixture.activate(scratch);
  mixture.project(scratch);
  for_ranges(pool(), op.rows, long(op.k + 1) * op.dim, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) mixture.combine(r);
  });
}

}  // namespace lb
