// Expands weights of the types that no GEMM reads to 16-bit numbers, for the F16 or BF16 kernels. Grid: x walks a row,
// y the rows; a thread expands four values. Bound: bandwidth, the bytes of a weight plus 2.
#include "dialect.h"

#include "gpu/elementwise/embed_row.h"
#include "gpu/gemm/shape.h"

namespace lb::gpu {

template <DType kType>
LB_DEVICE void expand(const ExpandWeights& p) {
  const int first = 4 * (block_id() * n_threads() + thread_id());
  if (first >= p.n_in) return;
  const quant::PlaneLayout from = quant::plane_layout(kType, p.n_out, p.n_in);
  LB_UNROLL_BY(1)
  for (int row = block_id_y(); row < p.n_out; row += n_blocks_y()) {
    const TableRow w = row_of<kType>(p.w, from, row);
    Vec<uint16_t, 4> out;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float value = value_at<kType>(w, first + i);
      out[i] = p.to == DType::kBF16 ? to_bf16(value).bits : to_f16(value).bits;
    }
    store(static_cast<uint16_t*>(p.y) + long(row) * p.n_in + first, out);
  }
}

LB_KERNEL(expand_weights_kernel, ExpandWeights, 256, 3) {
  dependents_may_launch();
  wait_for_previous();
  switch (p.from) {
    case DType::kQ4_1: return expand<DType::kQ4_1>(p);
    case DType::kQ5_0: return expand<DType::kQ5_0>(p);
    case DType::kQ5_1: return expand<DType::kQ5_1>(p);
    case DType::kQ2_K: return expand<DType::kQ2_K>(p);
    case DType::kQ3_K: return expand<DType::kQ3_K>(p);
    case DType::kQ5_K: return expand<DType::kQ5_K>(p);
    case DType::kIQ4_NL: return expand<DType::kIQ4_NL>(p);
    case DType::kIQ4_XS: return expand<DType::kIQ4_XS>(p);
    case DType::kMXFP4: return expand<DType::kMXFP4>(p);
    case DType::kNVFP4: return expand<DType::kNVFP4>(p);
    case DType::kF8_E4M3: return expand<DType::kF8_E4M3>(p);
    default: return;
  }
}

}  // namespace lb::gpu
