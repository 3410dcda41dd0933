// The body of Embed, for its kernel and for the megakernel: table[ids[r],:] as fp32 from the planes of quant/planes.h,
// bit-exact with quant/dequantize.h.
#pragma once

#include "gpu/plane_scales.h"
#include "ops/embed.h"

namespace lb::gpu {

// One row of the table: its address in each plane.
struct TableRow {
  const uint8_t* plane[quant::kMaxPlanes];
};

LB_DEVICE float half_at(const uint8_t* halves, int i) { return to_f32(reinterpret_cast<const f16*>(halves)[i]); }

// Value i of a plane of 16-, 4-, 2- or 1-bit values.
LB_DEVICE int nibble_at(const uint8_t* q, int i) {
  const int byte = q[i / 32 * 16 + i % 16];
  return i % 32 < 16 ? byte & 15 : byte >> 4;
}
LB_DEVICE int two_bits_at(const uint8_t* q, int i) { return q[i / 16 * 4 + i % 4] >> i % 16 / 4 * 2 & 3; }
LB_DEVICE int one_bit_at(const uint8_t* q, int i) { return q[i / 32 * 4 + i % 4] >> i % 32 / 4 & 1; }

// The signed code of value i, for types with one scale per 32 values.
template <DType kType>
LB_DEVICE int code_at(const TableRow& w, int i) {
  const uint8_t* q = w.plane[0];
  if constexpr (kType == DType::kQ8_0) {
    return int8_t(q[i]);
  } else if constexpr (kType == DType::kIQ4_NL || kType == DType::kIQ4_XS) {
    return quant::kIq4Values[nibble_at(q, i)];
  } else if constexpr (kType == DType::kMXFP4) {
    return quant::kMxfp4Values[nibble_at(q, i)];
  } else if constexpr (kType == DType::kQ5_0 || kType == DType::kQ5_1 || kType == DType::kQ5_K) {
    return (nibble_at(q, i) | one_bit_at(w.plane[1], i) << 4) - (kType == DType::kQ5_0 ? 16 : 0);
  } else {
    return nibble_at(q, i) - (kType == DType::kQ4_0 ? 8 : 0);
  }
}

template <DType kType>
LB_DEVICE float value_at(const TableRow& w, int i) {
  const uint8_t* q = w.plane[0];
  if constexpr (kType == DType::kF32) {
    return reinterpret_cast<const float*>(q)[i];
  } else if constexpr (kType == DType::kF16) {
    return half_at(q, i);
  } else if constexpr (kType == DType::kBF16) {
    return to_f32(reinterpret_cast<const bf16*>(q)[i]);
  } else if constexpr (kType == DType::kF8_E4M3) {
    return from_e4m3(q[i]) * reinterpret_cast<const float*>(w.plane[1])[i / 128];
  } else if constexpr (kType == DType::kNVFP4) {
    const auto by = *reinterpret_cast<const quant::ScaledHeader*>(w.plane[2]);
    const float half = 0.5f * from_e4m3(w.plane[1][i / 16]);  // the table's values are doubled
    return quant::scaled(half, by) * float(quant::kMxfp4Values[nibble_at(q, i)]);
  } else if constexpr (kType == DType::kQ6_K) {
    const int code = (nibble_at(q, i) | two_bits_at(w.plane[1], i) << 4) - 32;
    return half_at(w.plane[3], i / 256) * float(int8_t(w.plane[2][i / 16])) * float(code);
  } else if constexpr (kType == DType::kQ3_K) {
    const u32x2 scales = reinterpret_cast<const u32x2*>(w.plane[2])[i / 128];
    return block_scale(scales, i / 16 % 8).scale * float((two_bits_at(q, i) | one_bit_at(w.plane[1], i) << 2) - 4);
  } else if constexpr (kType == DType::kQ2_K) {
    const int scales = w.plane[1][i / 16];
    const f16x2 d = reinterpret_cast<const f16x2*>(w.plane[2])[i / 256];
    return to_f32(d.lo) * float(scales & 15) * float(two_bits_at(q, i)) - to_f32(d.hi) * float(scales >> 4);
  } else {
    constexpr quant::PlaneFormat kFormat = quant::plane_format(kType);
    constexpr int kScales = kFormat.n_planes - 1, kRuns = kFormat.block_values / 32;
    const auto* scales = reinterpret_cast<const ScaleEntry<kType>*>(w.plane[kScales]);
    const quant::ScaleOffset run = block_scale(scales[i / kFormat.block_values], i / 32 % kRuns);
    const float value = run.scale * float(code_at<kType>(w, i));
    return kHasOffsets<kType> ? value + run.offset : value;
  }
}

template <DType kType>
LB_DEVICE TableRow row_of(const void* table, const quant::PlaneLayout& layout, size_t row) {
  TableRow w = {};
  LB_UNROLL
  for (int i = 0; i < quant::plane_format(kType).n_planes; ++i)
    w.plane[i] = static_cast<const uint8_t*>(table) + layout.offset[i] + row * layout.row_bytes[i];
  return w;
}

// Calls put(i, value) for values first, first + step, ... of row ids[row].
template <DType kType, class Put>
LB_DEVICE void embed(const Embed& p, int row, int first, int step, Put&& put) {
  const TableRow w = row_of<kType>(p.table, quant::plane_layout(kType, p.vocab, p.dim), size_t(p.ids[row]));
  for (int i = first; i < p.dim; i += step) put(i, p.scale * value_at<kType>(w, i));
}

template <class Put>
LB_DEVICE void embed_row(const Embed& p, int row, int first, int step, Put&& put) {
  switch (p.type) {
    case DType::kF32: return embed<DType::kF32>(p, row, first, step, put);
    case DType::kF16: return embed<DType::kF16>(p, row, first, step, put);
    case DType::kBF16: return embed<DType::kBF16>(p, row, first, step, put);
    case DType::kQ4_0: return embed<DType::kQ4_0>(p, row, first, step, put);
    case DType::kQ4_1: return embed<DType::kQ4_1>(p, row, first, step, put);
    case DType::kQ5_0: return embed<DType::kQ5_0>(p, row, first, step, put);
    case DType::kQ5_1: return embed<DType::kQ5_1>(p, row, first, step, put);
    case DType::kQ8_0: return embed<DType::kQ8_0>(p, row, first, step, put);
    case DType::kQ2_K: return embed<DType::kQ2_K>(p, row, first, step, put);
    case DType::kQ3_K: return embed<DType::kQ3_K>(p, row, first, step, put);
    case DType::kQ4_K: return embed<DType::kQ4_K>(p, row, first, step, put);
    case DType::kQ5_K: return embed<DType::kQ5_K>(p, row, first, step, put);
    case DType::kQ6_K: return embed<DType::kQ6_K>(p, row, first, step, put);
    case DType::kIQ4_NL: return embed<DType::kIQ4_NL>(p, row, first, step, put);
    case DType::kIQ4_XS: return embed<DType::kIQ4_XS>(p, row, first, step, put);
    case DType::kMXFP4: return embed<DType::kMXFP4>(p, row, first, step, put);
    case DType::kNVFP4: return embed<DType::kNVFP4>(p, row, first, step, put);
    case DType::kF8_E4M3: return embed<DType::kF8_E4M3>(p, row, first, step, put);
    default: return;  // a device stores other types as BF16
  }
}

}  // namespace lb::gpu
