// LinearGroup, up to four matrices that multiply one x (ops/linear.h): host helpers shared by the kernel choices of
// GEMV, skinny GEMM and GEMM.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/dtype_id.h"
#include "ops/linear.h"

namespace lb::gpu {

inline std::span<const Linear> ops_of(const LinearGroup& group) { return {group.products, size_t(group.n)}; }

bool is_quantised(DType type);

// Text for error messages: "[gemm] 22 rows x Q4_K [5120, 17408] + Q6_K [1024, 17408] int8".
std::string to_string(const LinearGroup& group, std::string_view op);

// Validates the group and returns to_string(group, op) for later error messages. Throws if the group is empty or too
// large, if its ops differ in x, rows, n_in or activations, if there is nothing to compute, or if a row is not a whole
// number of blocks of its type.
std::string checked_text(const LinearGroup& group, std::string_view op);

// The group split by weight type, in the order of each type's first op.
struct TypeGroups {
  LinearGroup groups[kMaxProducts];
  int n;
};
TypeGroups split_types(const LinearGroup& group);

}  // namespace lb::gpu
