// Mixture of experts: the router's choice, and the weighted sum of the chosen experts' networks. A choice is one expert
// of one row; choices are in order of rank.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"
#include "ops/linear.h"

namespace lb {

inline constexpr int kMaxExperts = 512, kMaxChosen = 16;

// The k experts with the largest logits of each row, in descending order; ties go to the lower index.
//   weights[r,j] = softmax(logits[r,:] + bias)[experts[r,j]], divided by their sum over j if is_normalized
// A NaN logit ranks below all numbers and makes the row's weights NaN.
struct RouteExperts {
  const float* logits;  // [rows, n_experts]
  const float* bias;    // [n_experts] or null
  int32_t* experts;     // [rows, k]
  float* weights;       // [rows, k]
  int rows, n_experts, k;
  int is_normalized;  // 1 or 0
};

// One of the three matrices of every expert.
struct ExpertMatrix {
  const void* w;  // [n_experts, expert_rows, n_in] of type, in the WeightLayout that the stream reads
  DType type;
  int expert_rows, first_row;  // rows of w per expert; the first of the rows that are used
  const float* bias;           // [n_experts, n_out] or null
};

// y[r,:] = add[r,:] + (sum_j weights[r,j] f_e(x[r,:]) + sigmoid(shared_gate[r]) shared[r,:])   e = experts[r,j]
// f_e(x) = down_e act(gate_e x, up_e x), summed over j in this order
//   act(g, u) = silu(g) u                                                   limit == 0
//   act(g, u) = g sigmoid(kClampedAlpha g) (u + 1), g = min(g, limit), u = clamp(u, -limit, limit)    otherwise
// Each matrix adds its bias. Rounds and sums as Linear does; x and act() are rounded once. A row's result does not
// depend on other rows.
inline constexpr float kClampedAlpha = 1.702f;
struct MixExperts {
  ExpertMatrix gate, up;     // n_in: dim; ffn rows
  ExpertMatrix down;         // n_in: ffn; dim rows
  const float* x;            // [rows, dim]
  const int32_t* experts;    // [rows, k]
  const float* weights;      // [rows, k]
  const float* shared;       // [rows, dim] output of the shared expert, or null
  const float* shared_gate;  // [rows] or null
  const float* add;          // [rows, dim] or null; may be y
  float* y;                  // [rows, dim]; must not overlap x
  int rows, k, n_experts, dim, ffn;
  float limit;
  Activations activations;
};

// CPU scratch in bytes of the largest MixExperts, shared by all threads.
size_t expert_shared_scratch(int max_rows, int max_k, int max_dim, int max_ffn);

}  // namespace lb
