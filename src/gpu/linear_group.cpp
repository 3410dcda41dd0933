#include "gpu/linear_group.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"
#include "quant/repack.h"

namespace lb::gpu {

bool is_quantised(DType type) { return quant::plane_format(type).block_values > 1; }

std::string to_string(const LinearGroup& group, std::string_view op) {
  const Linear& first = group.products[0];
  std::string text = cat("[", op, "] ", first.rows, " rows x ");
  for (int i = 0; i < group.n; ++i)
    text += cat(i ? " + " : "", name(group.products[i].type), " [", group.products[i].n_out, ", ", first.n_in, "]");
  switch (first.activations) {
    case Activations::kInt8: return text + " int8";
    case Activations::kF32: return text + " f32";
    case Activations::kFp4: break;
  }
  return text + " fp4";
}

std::string checked_text(const LinearGroup& group, std::string_view op) {
  LB_CHECK(group.n >= 1 && group.n <= kMaxProducts, kInvalid, "[", op, "] a group has 1 to ", kMaxProducts,
           " products, got ", group.n);
  const Linear& first = group.products[0];
  const std::string what = to_string(group, op);
  LB_CHECK(first.rows >= 1 && first.n_in >= 1, kInvalid, what, ": nothing to compute");
  for (const Linear& other : ops_of(group)) {
    LB_CHECK(other.n_out >= 1, kInvalid, what, ": nothing to compute");
    LB_CHECK(other.x == first.x && other.rows == first.rows && other.n_in == first.n_in &&
                 other.activations == first.activations,
             kInvalid, what, ": the products of a group share x, rows, n_in and activations");
    quant::checked_plane_layout(other.type, other.n_out, other.n_in);
  }
  return what;
}

TypeGroups split_types(const LinearGroup& group) {
  TypeGroups types = {};
  for (const Linear& op : ops_of(group)) {
    int i = 0;
    while (i < types.n && types.groups[i].products[0].type != op.type) ++i;
    types.n = std::max(types.n, i + 1);
    types.groups[i].products[types.groups[i].n++] = op;
  }
  return types;
}

}  // namespace lb::gpu
