// LinearGroup, up to four matrices that multiply one x (ops/linear.h): what the kernel choices of GEMV, skinny GEMM and
// GEMM have in common. Host only.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/dtype_id.h"
#include "ops/linear.h"

namespace lb::gpu {

inline std::span<const Linear> ops_of(const LinearGroup& group) { return {group.products, size_t(group.n)}; }

bool is_quantised(DType type);

// For errors: "[gemm] 22 rows x Q4_K [5120, 17408] + Q6_K [1024, 17408] int8".
std::string to_string(const LinearGroup& group, std::string_view op);

// Returns to_string(group, op), for the errors of what follows. Throws where the group is empty or too large, where its
// ops do not share x, rows, n_in and activations, where there is nothing to compute, or where a row is not a whole
// number of blocks of its type.
std::string checked_text(const LinearGroup& group, std::string_view op);

// The ops of each weight type, in the order of their first op.
struct TypeGroups {
  LinearGroup groups[kMaxProducts];
  int n;
};
TypeGroups split_types(const LinearGroup& group);

}  // namespace lb::gpu
