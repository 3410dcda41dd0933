// y[r,:] = table[ids[r],:] as fp32, from the planes of quant/planes.h, bit for bit what quant/decode.h gives.
// One block a row, a thread a value: rows are short and few, codes come by whole sectors all the same.
// Bound: latency; the bytes of a row and 4 bytes a value.
#include "dialect.h"

#include "ops/embed.h"
#include "quant/decode.h"
#include "quant/planes.h"

namespace lb::gpu {

// The row of one output in each plane.
struct PlaneRows {
  const uint8_t* plane[quant::kMaxPlanes];
};

LB_DEVICE float half_at(const uint8_t* halves, int i) { return to_f32(reinterpret_cast<const f16*>(halves)[i]); }

// Value i of runs of 32 nibbles.
LB_DEVICE int nibble_at(const uint8_t* q, int i) {
  const int byte = q[i / 32 * 16 + i % 16];
  return i % 32 < 16 ? byte & 15 : byte >> 4;
}

template <DType kType>
LB_DEVICE float value_at(const PlaneRows& w, int i) {
  const uint8_t* q = w.plane[0];
  if constexpr (kType == DType::kF32) {
    return reinterpret_cast<const float*>(q)[i];
  } else if constexpr (kType == DType::kF16) {
    return half_at(q, i);
  } else if constexpr (kType == DType::kBF16) {
    return to_f32(reinterpret_cast<const bf16*>(q)[i]);
  } else if constexpr (kType == DType::kQ8_0) {
    return half_at(w.plane[1], i / 32) * float(int8_t(q[i]));
  } else if constexpr (kType == DType::kQ4_0) {
    return half_at(w.plane[1], i / 32) * float(nibble_at(q, i) - 8);
  } else if constexpr (kType == DType::kQ4_K) {
    const auto* scales = reinterpret_cast<const uint32_t*>(w.plane[1]) + i / 256 * 4;
    const uint32_t fields = quant::k4_fields(scales, i / 32 % 8);
    const quant::Run run = {to_f32(f16{uint16_t(scales[0])}) * float(fields & 63),
                            -(to_f32(f16{uint16_t(scales[0] >> 16)}) * float(fields >> 6))};
    return run.scale * float(nibble_at(q, i)) + run.offset;
  } else {
    static_assert(kType == DType::kQ6_K);
    const int high = w.plane[1][i / 32 * 8 + i % 32 / 16 * 4 + i % 4] >> i % 16 / 4 * 2 & 3;
    const int scale = int8_t(w.plane[2][i / 16]);
    return half_at(w.plane[3], i / 256) * float(scale) * float((nibble_at(q, i) | high << 4) - 32);
  }
}

template <DType kType>
LB_DEVICE void embed(const Embed& p) {
  const quant::PlaneLayout layout = quant::plane_layout(kType, p.vocab, p.dim);
  const size_t id = size_t(p.ids[block_id()]);
  PlaneRows w = {};
  LB_UNROLL
  for (int i = 0; i < quant::plane_format(kType).n_planes; ++i)
    w.plane[i] = static_cast<const uint8_t*>(p.table) + layout.offset[i] + id * layout.row_bytes[i];
  float* y = p.y + long(block_id()) * p.dim;
  for (int i = thread_id(); i < p.dim; i += n_threads()) y[i] = value_at<kType>(w, i);
}

LB_KERNEL(embed_kernel, Embed, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  switch (p.type) {
    case DType::kF32: return embed<DType::kF32>(p);
    case DType::kF16: return embed<DType::kF16>(p);
    case DType::kBF16: return embed<DType::kBF16>(p);
    case DType::kQ8_0: return embed<DType::kQ8_0>(p);
    case DType::kQ4_0: return embed<DType::kQ4_0>(p);
    case DType::kQ4_K: return embed<DType::kQ4_K>(p);
    case DType::kQ6_K: return embed<DType::kQ6_K>(p);
    default: return;  // choose() refuses it
  }
}

}  // namespace lb::gpu
