// Mixture of experts: the router's choice, products with the weights of the chosen experts, and their weighted sum. A
// choice is one expert of one row; choices are in order of rank.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"
#include "ops/linear.h"

namespace lb {

inline constexpr int kMaxExperts = 512, kMaxChosen = 16;

// The k experts with the largest logits of each row, in descending order; ties go to the lower index.
//   weights[r,j] = softmax(logits[r,:])[experts[r,j]], divided by their sum over j if is_normalized
// A NaN logit ranks below all numbers and makes the row's weights NaN.
struct RouteExperts {
  const float* logits;  // [rows, n_experts]
  int32_t* experts;     // [rows, k]
  float* weights;       // [rows, k]
  int rows, n_experts, k;
  int is_normalized;  // 1 or 0
};

// y[r,j,o] = sum_i w[experts[r,j], first_row + o, i] x[r,i]         x_per_row: the choices of a row share x
// y[r,j,o] = sum_i w[experts[r,j], first_row + o, i] x[r,j,i]       otherwise
// Rounds and sums as Linear does. A row's result does not depend on other rows.
struct ExpertLinear {
  const void* w;  // [n_experts, expert_rows, n_in] of type, in the WeightLayout that the stream reads
  DType type;
  const float* x;          // [rows, n_in] or [rows, k, n_in]
  const int32_t* experts;  // [rows, k]
  float* y;                // [rows, k, n_out]; must not overlap x
  int rows, k, n_experts;
  int n_in, n_out;
  int expert_rows, first_row;  // rows of w per expert; the first of the n_out rows that are read
  int x_per_row;               // 1 or 0
  Activations activations;
};

// CPU scratch in bytes of the largest ExpertLinear, shared by all threads.
size_t expert_shared_scratch(int max_choices, int max_n_in, int max_n_out);

// y[r,:] = add[r,:] + (sum_j weights[r,j] x[r,j,:] + sigmoid(shared_gate[r]) shared[r,:]), summed in this order
struct CombineExperts {
  const float* x;            // [rows, k, dim]
  const float* weights;      // [rows, k]
  const float* shared;       // [rows, dim] the shared expert, or null
  const float* shared_gate;  // [rows] or null
  const float* add;          // [rows, dim] or null; may be y
  float* y;                  // [rows, dim]
  int rows, k, dim;
};

}  // namespace lb
