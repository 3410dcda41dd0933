// Mixture of experts: the router's choice, and the weighted sum of the chosen experts' networks. A choice is one expert
// of one row; choices are in order of rank.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"
#include "ops/linear.h"

namespace lb {

inline constexpr int kMaxExperts = 512, kMaxChosen = 16;

struct ExpertFill {
  int32_t expert, slot;
};
// Experts to copy to slots.
struct ExpertFills {
  int32_t n;
  ExpertFill of[kMaxExperts];
};

// What passes did with the experts of a layer that are not all in device memory.
struct ExpertCounts {
  unsigned long long hits, misses;  // experts that passes found in a slot, and experts that were copied to one
  unsigned long long bytes;         // copied
};

inline constexpr uint32_t kPassUses = 4096;  // ExpertCache::uses that the experts of a pass share

// Which experts of a layer are in device memory, and how much each was used: the state of a cache, which only
// find_experts writes. A pass is one MixExperts.
struct ExpertCache {
  uint32_t clock;                // passes so far
  int32_t slots[kMaxExperts];    // slot of each expert; -1: in host memory only
  uint32_t uses[kMaxExperts];    // share of the choices of each pass, halved every kAgingPasses passes
  uint32_t last[kMaxExperts];    // last pass that chose the expert
  uint32_t served[kMaxExperts];  // last pass that computed the expert
  // Slots of the experts to compute now; -1: not now; below: the expert is in host memory, and the products that read
  // it first copy it to slot_to_fill().
  int32_t now[kMaxExperts];
  ExpertFills fills;  // experts to copy now
  ExpertCounts counts;
  unsigned long long chosen[kMaxExperts];  // choices of each expert in all passes
};

// ExpertCache::now of an expert that products copy to a slot, and the slot of such a value.
LB_FN constexpr int32_t copied_by_products(int32_t slot) { return -2 - slot; }
LB_FN constexpr int32_t slot_to_fill(int32_t now) { return -2 - now; }

// The slots of a layer whose experts are not all in device memory: slot s is expert s of its matrices. n == 0: all
// experts are there.
struct ExpertSlots {
  int n;
  const void *gate, *up, *down;  // all experts in host memory, in the layout of w
  class StagedExperts* staged;   // copies of long prompts, and of memory that the device cannot read
  ExpertCache* cache;
  ExpertCounts* counts;  // in host memory that the device writes
  bool is_pinned;        // the device reads gate, up and down itself
};

// The k experts with the largest logits of each row, in descending order; ties go to the lower index.
//   weights[r,j] = softmax(logits[r,:] + bias)[experts[r,j]], divided by their sum over j if is_normalized, times
//   scale[experts[r,j]]
// A NaN logit ranks below all numbers and makes the row's weights NaN.
struct RouteExperts {
  const float* logits;  // [rows, n_experts]
  const float* bias;    // [n_experts] or null
  const float* scale;   // [n_experts] or null
  int32_t* experts;     // [rows, k]
  float* weights;       // [rows, k]
  int rows, n_experts, k;
  int is_normalized;    // 1 or 0
  ExpertSlots slots{};  // of the experts that the rows choose; devices only
};

// One of the three matrices of every expert.
struct ExpertMatrix {
  const void* w;  // [n_experts or slots, expert_rows, n_in] of type, in the WeightLayout that the stream reads
  DType type;
  int expert_rows, first_row;  // rows of w per expert; the first of the rows that are used
  const float* bias;           // [n_experts, n_out] or null
};

// y[r,:] = add[r,:] + (sum_j weights[r,j] f_e(x[r,:]) + sigmoid(shared_gate[r]) shared[r,:])   e = experts[r,j]
// f_e(x) = down_e act(gate_e x, up_e x), summed over j in this order
//   act(g, u) = silu(g) u                                                   limit == 0
//   act(g, u) = gelu(g) u, as GeGlu                                         is_gelu
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
  int is_gelu;  // 1 or 0; then limit is 0
  Activations activations;
  ExpertSlots slots{};  // devices only
};

// CPU scratch in bytes of the largest MixExperts, shared by all threads.
size_t expert_shared_scratch(int max_rows, int max_k, int max_dim, int max_ffn);

}  // namespace lb
