// Linear products of quantised weights with 8-bit activations on AVX-512 VNNI, which multiplies unsigned by signed
// bytes. Weights are unsigned codes. The integer sums start from the zero point's contribution, so the correction is
// exact.
//
// Skinny, 1 or 2 activation rows: 4 weight rows stream from memory through registers; each weight is unpacked once for
//   all activation rows. Bound: the bytes of the weights.
// GEMM, more rows: a panel of 32 weight rows is unpacked to scratch, 4 values of 16 rows per vector, and multiplied
//   with up to 6 activation rows at a time. Bound: byte products, 1024 per cycle and core where two vectors issue.
//   panel   codes [sub-blocks, sub-block / 4, 32 rows, 4], scales [sub-blocks, 32 rows], offsets [sub-blocks, 32
//           rows], factors [32 rows]
// Both ways add in one order, so an output does not depend on the other rows. An output is the sum of four chains, in
// order. Sub-block i (the values of one scale: 32 or 16) belongs to chain i % 4. It adds, by fused multiply-adds,
// float(dot) * (scale of w * scale of x) and offset * (scale of x * sum of x). A panel holds chain after chain.
// Measurements: docs/kernels/linear_cpu.md.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/unpack_avx512.h"

namespace lb::cpu {
namespace {

constexpr int kChains = 4;   // sums of an output
constexpr int kStreams = 4;  // weight rows that the skinny path streams concurrently
// Prefetch distance: one core reads Q6_K at 30 GB/s with prefetch, at 10 GB/s without.
constexpr long kPrefetchBytes = 16 << 10;
constexpr int kPanelRows = 32;  // weight rows of a panel
constexpr int kTileX = 4;       // activation rows of a tile: 8 integer and 8 float sums hide the latency of 4 cycles at
                                // two multiplies per cycle
constexpr int kTallTileX = 6;   // up to 6 activation rows are one tile

// Lanes of the skinny path's sums. Rows are weight rows; quarters are 128-bit quarters of a vector.
//   kNibble, kNatural  quarter c: chain c of rows 0 1 2 3
//   kPairs             quarters 0 1 2 3: chains 0 1, chains 2 3 of rows 0 1, the same of rows 2 3; within a quarter
//                      both chains of the first row, then of the second

// 128 activations of one row, in the order of the weights' codes; scales and sums are in the lanes of the sums.
struct Activations128 {
  __m512i a[2];
  __m512i start[2];  // -kZero * sum of the lane's activations
  __m512 scale[2];
  __m512 sum[2];  // scale * sum of the sub-block's activations
};

// Four values, one per sub-block of 32, in the lanes of the sums.
template <class Block>
__m512 sub_lanes(__m128 v) {
  const __m512 v4 = _mm512_castps128_ps512(v);
  if constexpr (Unpack<Block>::kOrder == Order::kPairs)
    return _mm512_permutexvar_ps(_mm512_set_epi32(3, 2, 3, 2, 1, 0, 1, 0, 3, 2, 3, 2, 1, 0, 1, 0), v4);
  else
    return four_lanes(v4, 0);
}

// Adds the four lanes of each quarter; all of them receive the sum.
inline __m512i sum_quarters(__m512i v) {
  v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_CDAB));
  return _mm512_add_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_BADC));
}

// Values [k, k + 128) of row r; the row may end after 64.
template <class Block>
Activations128 load_activations(const Q8Rows& x, int r, int k) {
  using U = Unpack<Block>;
  const int8_t* q = x.q + long(r) * x.stride + k;
  const long block = long(r) * x.n_blocks + k / 32;
  const bool is_whole = x.stride - k >= 128;
  const __m512i first = load_bytes(q), second = is_whole ? load_bytes(q + 64) : _mm512_setzero_si512();
  const auto four = [&](const void* p) {  // loads one number per block, zero beyond the row
    return is_whole ? _mm_loadu_si128(static_cast<const __m128i*>(p)) : _mm_loadl_epi64(static_cast<const __m128i*>(p));
  };
  const __m128 scale = _mm_castsi128_ps(four(x.scale + block));
  Activations128 out;
  if constexpr (U::kOrder == Order::kNibble) {
    out.a[0] = _mm512_permutex2var_epi64(first, _mm512_set_epi64(13, 12, 9, 8, 5, 4, 1, 0), second);
    out.a[1] = _mm512_permutex2var_epi64(first, _mm512_set_epi64(15, 14, 11, 10, 7, 6, 3, 2), second);
  } else if constexpr (U::kOrder == Order::kPairs) {
    out.a[0] = _mm512_shuffle_i64x2(first, second, 0x44);
    out.a[1] = _mm512_shuffle_i64x2(first, second, 0xee);
  } else {
    out.a[0] = first;
    out.a[1] = second;
  }
  if constexpr (Block::kSub == 32) {
    out.scale[0] = sub_lanes<Block>(scale);
    if constexpr (Block::kHasMin)
      out.sum[0] = sub_lanes<Block>(_mm_mul_ps(scale, _mm_cvtepi32_ps(four(x.sum + block))));
  } else {
    for (int v = 0; v < 2; ++v) out.scale[v] = eight_lanes(_mm512_castps128_ps512(scale), 2 * v, 2 * v + 1);
    if constexpr (Block::kHasMin)
      for (int v = 0; v < 2; ++v) {
        const __m512i sums = sum_quarters(_mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes(1), out.a[v]));
        out.sum[v] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), out.scale[v]);
      }
  }
  if constexpr (!Block::kHasMin) {
    constexpr bool kShared = U::kOrder == Order::kNibble;
    for (int v = 0; v < (kShared ? 1 : 2); ++v) {
      __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes(U::kZero), out.a[v]);
      if constexpr (kShared) sums = _mm512_dpbusd_epi32(sums, bytes(U::kZero), out.a[1]);
      out.start[v] = _mm512_sub_epi32(_mm512_setzero_si512(), sums);
    }
  }
  return out;
}

// Lane i of each quarter comes from v[i].
inline __m512 blend_rows(const __m512* v) {
  const __m512 a = _mm512_mask_blend_ps(0x2222, v[0], v[1]), b = _mm512_mask_blend_ps(0x8888, v[2], v[3]);
  return _mm512_mask_blend_ps(0xcccc, a, b);
}

// Per quarter, lane i of the result is the sum of the four lanes of v[i].
inline __m512i sum_rows(const __m512i* v) {
  const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// sum_rows() for kPairs: `first` has the dots of sub-blocks 0 and 2, `second` the dots of 1 and 3, eight lanes each.
inline __m512i sum_rows_of_pairs(const __m512i* first, const __m512i* second) {
  __m512i t[kStreams];
  for (int i = 0; i < kStreams; ++i)
    t[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(first[i], second[i]), _mm512_unpackhi_epi32(first[i], second[i]));
  const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi64(t[0], t[1]), _mm512_unpackhi_epi64(t[0], t[1]));
  const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi64(t[2], t[3]), _mm512_unpackhi_epi64(t[2], t[3]));
  return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

// Scales and offsets of sub-blocks 4h .. 4h + 3 of four rows, in the lanes of the sums; s[i]: 8 scales, 8 offsets.
inline void scales_of_pairs(const __m512* s, int h, __m512* d, __m512* m) {
  const __m512i lanes = _mm512_add_epi32(_mm512_set1_epi32(4 * h),
                                         _mm512_set_epi32(27, 26, 11, 10, 25, 24, 9, 8, 19, 18, 3, 2, 17, 16, 1, 0));
  const __m512 a = _mm512_permutex2var_ps(s[0], lanes, s[1]), b = _mm512_permutex2var_ps(s[2], lanes, s[3]);
  *d = _mm512_shuffle_f32x4(a, b, 0x44);
  *m = _mm512_shuffle_f32x4(a, b, 0xee);
}

// Adds the chains of four weight rows, in order.
template <class Block>
__m128 add_chains(__m512 acc) {
  if constexpr (Unpack<Block>::kOrder == Order::kPairs)
    acc = _mm512_permutexvar_ps(_mm512_set_epi32(15, 13, 7, 5, 14, 12, 6, 4, 11, 9, 3, 1, 10, 8, 2, 0), acc);
  const __m128 first = _mm_add_ps(_mm512_castps512_ps128(acc), _mm512_extractf32x4_ps(acc, 1));
  return _mm_add_ps(_mm_add_ps(first, _mm512_extractf32x4_ps(acc, 2)), _mm512_extractf32x4_ps(acc, 3));
}

// kR activation rows, weight rows [begin, end).
template <class Block, int kR>
void linear_q8_skinny(const Linear& op, const Q8Rows& x, int begin, int end) {
  using U = Unpack<Block>;
  constexpr int kBlocks = U::kUnit / Block::kValues;  // blocks of a step
  constexpr bool kPairs = U::kOrder == Order::kPairs;
  constexpr int kGroups = U::kUnit / 128;
  constexpr int kDots = U::kOrder == Order::kNibble ? 1 : 2;  // accumulators per weight row and group
  constexpr int kSums = U::kOrder == Order::kNatural ? 2 : 1;
  const int blocks_per_row = op.n_in / Block::kValues;
  for (int o = begin; o < end; o += kStreams) {
    const int n = end - o < kStreams ? end - o : kStreams;
    const Block* w[kStreams];
    for (int i = 0; i < kStreams; ++i) w[i] = quant::row_blocks<Block>(op.w, o + (i < n ? i : 0), op.n_in);
    __m512 acc[kR];
    for (int r = 0; r < kR; ++r) acc[r] = _mm512_setzero_ps();
    for (int b = 0; b < blocks_per_row; b += kBlocks) {
      decltype(U::open(w[0], 0)) steps[kStreams];
      for (int i = 0; i < kStreams; ++i) {
        const char* ahead = reinterpret_cast<const char*>(w[i] + b) + kPrefetchBytes;
        for (int line = 0; line < kBlocks * int(sizeof(Block)); line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
        steps[i] = U::open(w[i] + b, blocks_per_row - b);
      }
      for (int h = 0; h < kGroups; ++h) {
        Activations128 acts[kR];
        for (int r = 0; r < kR; ++r) acts[r] = load_activations<Block>(x, r, b * Block::kValues + 128 * h);
        __m512i dot[kR][kDots][kStreams];
        __m512 d[kSums][kStreams], m[kSums][kStreams];
        for (int i = 0; i < kStreams; ++i) {
          __m512i q[2];
          if constexpr (kPairs) {
            U::codes(w[i] + b, h, q);
          } else {
            __m512 di[2], mi[2];
            U::group(w[i] + b, steps[i], h, q, di, mi);
            for (int v = 0; v < kSums; ++v) {
              d[v][i] = di[v];
              if constexpr (Block::kHasMin) m[v][i] = mi[v];
            }
          }
          for (int r = 0; r < kR; ++r)
            for (int v = 0; v < kDots; ++v) {
              dot[r][v][i] = Block::kHasMin ? _mm512_setzero_si512() : acts[r].start[v];
              dot[r][v][i] = _mm512_dpbusd_epi32(dot[r][v][i], q[v], acts[r].a[v]);
              if constexpr (kDots == 1) dot[r][v][i] = _mm512_dpbusd_epi32(dot[r][v][i], q[1], acts[r].a[1]);
            }
        }
        for (int v = 0; v < kSums; ++v) {
          __m512 scale, offset;
          if constexpr (kPairs) {
            scales_of_pairs(steps, h, &scale, &offset);
          } else {
            scale = blend_rows(d[v]);
            if constexpr (Block::kHasMin) offset = blend_rows(m[v]);
          }
          for (int r = 0; r < kR; ++r) {
            __m512i sums;
            if constexpr (kPairs)
              sums = sum_rows_of_pairs(dot[r][0], dot[r][1]);
            else
              sums = sum_rows(dot[r][v]);
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_mul_ps(scale, acts[r].scale[v]), acc[r]);
            if constexpr (Block::kHasMin) acc[r] = _mm512_fmadd_ps(offset, acts[r].sum[v], acc[r]);
          }
        }
      }
    }
    const __mmask8 valid = __mmask8((1 << n) - 1);
    for (int r = 0; r < kR; ++r) {
      const long at = long(r) * op.n_out + o;
      __m128 y = add_chains<Block>(acc[r]);
      if constexpr (quant::kHeaderBytes<Block> > 0)
        y = _mm_mul_ps(y, _mm_set_ps(quant::row_factor(w[3]), quant::row_factor(w[2]), quant::row_factor(w[1]),
                                     quant::row_factor(w[0])));
      if (op.add) y = _mm_add_ps(y, _mm_maskz_loadu_ps(valid, op.add + at));
      _mm_mask_storeu_ps(op.y + at, valid, y);
    }
  }
}

// Sub-block i is at place i % 4 * chain + i / 4.
struct Panel {
  uint8_t* codes;  // [sub-blocks, sub-block / 4, 32, 4]
  float* scale;    // [sub-blocks, 32]
  float* offset;   // [sub-blocks, 32]; unused when the type has no mins
  float* factor;   // [32] of the rows
  int chain;       // places of a chain
};

// Transposes 16 vectors of 16 dwords.
inline void transpose16(__m512i* v) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // v[i + c]: column c of each 128-bit lane, rows i .. i + 3
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {  // t[4l + c]: lane l of column c, for all rows
    const __m512i a = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x44), b = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x44);
    const __m512i e = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xee), f = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xee);
    t[c] = _mm512_shuffle_i32x4(a, b, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(e, f, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(e, f, 0xdd);
  }
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// v[row] has four values, each in four lanes. to[stride b ...] receives value b of the 16 rows.
inline void store_quads(const __m512* v, float* to, long stride) {
  __m512 z[4];
  for (int i = 0; i < 4; ++i) z[i] = blend_rows(v + 4 * i);
  const __m512 a = _mm512_shuffle_f32x4(z[0], z[1], 0x44), b = _mm512_shuffle_f32x4(z[2], z[3], 0x44);
  const __m512 e = _mm512_shuffle_f32x4(z[0], z[1], 0xee), f = _mm512_shuffle_f32x4(z[2], z[3], 0xee);
  _mm512_store_ps(to, _mm512_shuffle_f32x4(a, b, 0x88));
  _mm512_store_ps(to + stride, _mm512_shuffle_f32x4(a, b, 0xdd));
  _mm512_store_ps(to + 2 * stride, _mm512_shuffle_f32x4(e, f, 0x88));
  _mm512_store_ps(to + 3 * stride, _mm512_shuffle_f32x4(e, f, 0xdd));
}

// Stores the scales of 128 values of 16 rows; `stride` is the distance between chains.
template <class Block>
void store_scales(__m512 (*v)[16], float* to, long stride) {
  if constexpr (Unpack<Block>::kOrder == Order::kPairs)  // lanes 0 0 2 2 and 1 1 3 3 (of four each) to 0 1 2 3
    for (int i = 0; i < 16; ++i) v[0][i] = _mm512_mask_blend_ps(0xf0f0, v[0][i], v[1][i]);
  store_quads(v[0], to, stride);
  if constexpr (Block::kSub == 16) store_quads(v[1], to + kPanelRows, stride);
}

// Index, within 128 values, of the first of the four values in dword `lane` of q[v].
template <class Block>
constexpr int value_of(int v, int lane) {
  switch (Unpack<Block>::kOrder) {
    case Order::kNibble: return lane / 4 * 32 + 16 * v + lane % 4 * 4;
    case Order::kPairs: return lane / 8 * 64 + 32 * v + lane % 8 * 4;
    case Order::kNatural: break;
  }
  return 64 * v + 4 * lane;
}

// Unpacks weight rows [o, o + n), n <= 16, to one half of a panel; the rest of the half repeats row o.
template <class Block>
void pack_half(const Linear& op, int o, int n, const Panel& panel, int half) {
  using U = Unpack<Block>;
  constexpr int kBlocks = U::kUnit / Block::kValues;
  const int blocks_per_row = op.n_in / Block::kValues;
  const Block* rows[16];
  for (int i = 0; i < 16; ++i) {
    rows[i] = quant::row_blocks<Block>(op.w, o + (i < n ? i : 0), op.n_in);
    panel.factor[16 * half + i] = quant::row_factor(rows[i]);
  }
  for (int b = 0; b < blocks_per_row; b += kBlocks) {
    for (int h = 0; h < U::kUnit / 128; ++h) {
      __m512i q[2][16];
      __m512 d[2][16], m[2][16];
      for (int i = 0; i < 16; ++i) {
        const Block* at = rows[i] + b;
        if (h == 0)
          for (int line = 0; line < kBlocks * int(sizeof(Block)); line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes + line, _MM_HINT_T0);
        __m512i qi[2];
        __m512 di[2], mi[2];
        U::group(at, U::open(at, blocks_per_row - b), h, qi, di, mi);
        for (int v = 0; v < 2; ++v) {
          q[v][i] = qi[v];
          if (v == 1 && U::kOrder == Order::kNibble) continue;
          d[v][i] = di[v];
          if constexpr (Block::kHasMin) m[v][i] = mi[v];
        }
      }
      const long stride = long(panel.chain) * kPanelRows;  // between chains
      const int place = (b * Block::kValues + 128 * h) / Block::kSub / kChains;
      uint8_t* codes = panel.codes + place * long(Block::kSub) * kPanelRows + 64 * half;
      for (int v = 0; v < 2; ++v) {
        transpose16(q[v]);
        for (int lane = 0; lane < 16; ++lane) {
          const int value = value_of<Block>(v, lane), sub = value / Block::kSub;
          const int in_chain = sub / kChains * Block::kSub + value % Block::kSub;
          _mm512_store_si512(codes + sub % kChains * stride * Block::kSub + in_chain * kPanelRows, q[v][lane]);
        }
      }
      const long at = long(place) * kPanelRows + 16 * half;
      store_scales<Block>(d, panel.scale + at, stride);
      if constexpr (Block::kHasMin) store_scales<Block>(m, panel.offset + at, stride);
    }
  }
}

// Per activation row and sub-block: the start value of a tile's integer sums, or the factor of the weights' offsets.
union SubTerm {
  int32_t start;  // -kZero * sum
  float sum;      // scale * sum
};

template <class Block>
void sub_terms(const Q8Rows& x, int r0, int n_rows, SubTerm* terms) {
  constexpr int kZero = Unpack<Block>::kZero;
  const int n_subs = x.n_blocks * 32 / Block::kSub;
  for (int r = 0; r < n_rows; ++r, terms += n_subs) {
    const float* scale = x.scale + long(r0 + r) * x.n_blocks;
    if constexpr (Block::kSub == 32) {
      const int32_t* sum = x.sum + long(r0 + r) * x.n_blocks;
      for (int b = 0; b < n_subs; ++b) {
        if constexpr (Block::kHasMin)
          terms[b].sum = scale[b] * float(sum[b]);
        else
          terms[b].start = -kZero * sum[b];
      }
    } else {
      const int8_t* q = x.q + long(r0 + r) * x.stride;
      const __m512i factor = bytes(Block::kHasMin ? 1 : kZero);
      for (int b = 0; b < n_subs; b += 4) {
        __m512i t = _mm512_dpbusd_epi32(_mm512_setzero_si512(), factor, load_bytes(q + 16 * b));
        t = _mm512_add_epi32(t, _mm512_shuffle_epi32(t, _MM_PERM_CDAB));
        t = _mm512_add_epi32(t, _mm512_shuffle_epi32(t, _MM_PERM_BADC));
        const __m128i sums = _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, t));
        if constexpr (Block::kHasMin) {
          const __m128 s = _mm_set_ps(scale[b / 2 + 1], scale[b / 2 + 1], scale[b / 2], scale[b / 2]);
          _mm_storeu_ps(&terms[b].sum, _mm_mul_ps(_mm_cvtepi32_ps(sums), s));
        } else {
          _mm_storeu_si128(reinterpret_cast<__m128i*>(&terms[b].start), _mm_sub_epi32(_mm_setzero_si128(), sums));
        }
      }
    }
  }
}

// Computes outputs [r0, r0 + kR) x [o, o + n); kHalves is 1 when n <= 16. In a panel, types differ only in the size of
// their sub-blocks and in whether they have mins, so types that agree in both share one instantiation.
template <int kSub, bool kHasMin, int kR, int kHalves>
void tile(const Linear& op, const Q8Rows& x, const Panel& panel, const SubTerm* terms, int o, int n, int r0) {
  constexpr int kSteps = kSub / 4;  // dwords of a sub-block
  const int8_t* a = x.q + long(r0) * x.stride;
  const float* s = x.scale + long(r0) * x.n_blocks;
  const long n_terms = long(x.n_blocks) * 32 / kSub;
  __m512 total[kR][kHalves];
  for (int chain = 0; chain < kChains; ++chain) {
    const long place = long(chain) * panel.chain * kPanelRows;
    const uint8_t* codes = panel.codes + place * kSub;
    const float* scale = panel.scale + place;
    const float* offset = panel.offset + place;
    __m512 acc[kR][kHalves];
    for (int r = 0; r < kR; ++r)
      for (int p = 0; p < kHalves; ++p) acc[r][p] = _mm512_setzero_ps();
    for (int sub = chain; sub < op.n_in / kSub; sub += kChains, scale += kPanelRows, offset += kPanelRows) {
      __m512i dot[kR][kHalves];
      for (int r = 0; r < kR; ++r)
        for (int p = 0; p < kHalves; ++p)
          dot[r][p] = kHasMin ? _mm512_setzero_si512() : _mm512_set1_epi32(terms[r * n_terms + sub].start);
      for (int j = 0; j < kSteps; ++j, codes += 4 * kPanelRows) {
        __m512i w[kHalves];
        for (int p = 0; p < kHalves; ++p) w[p] = _mm512_load_si512(codes + 64 * p);
        for (int r = 0; r < kR; ++r) {
          int32_t four;
          __builtin_memcpy(&four, a + long(r) * x.stride + sub * kSub + 4 * j, 4);
          for (int p = 0; p < kHalves; ++p) dot[r][p] = _mm512_dpbusd_epi32(dot[r][p], w[p], _mm512_set1_epi32(four));
        }
      }
      for (int p = 0; p < kHalves; ++p) {
        const __m512 d = _mm512_load_ps(scale + 16 * p);
        for (int r = 0; r < kR; ++r) {
          const __m512 factor = _mm512_mul_ps(d, _mm512_set1_ps(s[r * long(x.n_blocks) + sub * kSub / 32]));
          acc[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][p]), factor, acc[r][p]);
          if constexpr (kHasMin)
            acc[r][p] = _mm512_fmadd_ps(_mm512_load_ps(offset + 16 * p), _mm512_set1_ps(terms[r * n_terms + sub].sum),
                                        acc[r][p]);
        }
      }
    }
    for (int r = 0; r < kR; ++r)
      for (int p = 0; p < kHalves; ++p) total[r][p] = chain == 0 ? acc[r][p] : _mm512_add_ps(total[r][p], acc[r][p]);
  }
  for (int p = 0; p < kHalves; ++p) {
    const int left = n - 16 * p;
    const __mmask16 valid = __mmask16(left >= 16 ? 0xffff : (1 << left) - 1);
    for (int r = 0; r < kR; ++r) {
      const long at = long(r0 + r) * op.n_out + o + 16 * p;
      __m512 y = _mm512_mul_ps(total[r][p], _mm512_load_ps(panel.factor + 16 * p));
      if (op.add) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(valid, op.add + at));
      _mm512_mask_storeu_ps(op.y + at, valid, y);
    }
  }
}

template <class Block, int kHalves>
void tiles(const Linear& op, const Q8Rows& x, const Panel& panel, SubTerm* terms, int o, int n) {
  // Tiles have nearly equal heights: three or more rows never leave a tile of fewer than 3.
  const int n_tiles = op.rows <= kTallTileX ? 1 : (op.rows + kTileX - 1) / kTileX;
  for (int r = 0, tiles_left = n_tiles; tiles_left > 0; --tiles_left) {
    const int height = (op.rows - r + tiles_left - 1) / tiles_left;
    sub_terms<Block>(x, r, height, terms);
    constexpr int kSub = Block::kSub;
    constexpr bool kHasMin = Block::kHasMin;
    switch (height) {
      case 3: tile<kSub, kHasMin, 3, kHalves>(op, x, panel, terms, o, n, r); break;
      case 4: tile<kSub, kHasMin, 4, kHalves>(op, x, panel, terms, o, n, r); break;
      case 5: tile<kSub, kHasMin, 5, kHalves>(op, x, panel, terms, o, n, r); break;
      case 6: tile<kSub, kHasMin, 6, kHalves>(op, x, panel, terms, o, n, r); break;
    }
    r += height;
  }
}

template <class Block>
void linear_q8_gemm(const Linear& op, const Q8Rows& x, int begin, int end, std::byte* scratch) {
  const size_t padded = size_t(op.n_in + 255) / 256 * 256;
  const size_t scale_bytes = padded / Block::kSub * kPanelRows * sizeof(float);
  std::byte* scale_at = scratch + padded * kPanelRows;
  std::byte* offset_at = scale_at + scale_bytes;
  std::byte* terms_at = offset_at + (Block::kHasMin ? scale_bytes : 0);
  alignas(64) float factor[kPanelRows];
  const Panel panel = {reinterpret_cast<uint8_t*>(scratch), reinterpret_cast<float*>(scale_at),
                       reinterpret_cast<float*>(offset_at), factor, int(padded) / Block::kSub / kChains};
  auto* terms = reinterpret_cast<SubTerm*>(terms_at);
  for (int o = begin; o < end; o += kPanelRows) {
    const int n = end - o < kPanelRows ? end - o : kPanelRows;
    pack_half<Block>(op, o, n < 16 ? n : 16, panel, 0);
    if (n <= 16) {
      tiles<Block, 1>(op, x, panel, terms, o, n);
    } else {
      pack_half<Block>(op, o + 16, n - 16, panel, 1);
      tiles<Block, 2>(op, x, panel, terms, o, n);
    }
  }
}

template <class Block>
void linear_q8_type(const Linear& op, const Q8Rows& x, int begin, int end, std::byte* scratch) {
  switch (op.rows) {
    case 1: return linear_q8_skinny<Block, 1>(op, x, begin, end);
    case 2: return linear_q8_skinny<Block, 2>(op, x, begin, end);
    default: return linear_q8_gemm<Block>(op, x, begin, end, scratch);
  }
}

void linear_q8(const Linear& op, const Q8Rows& x, int begin, int end, std::byte* scratch) {
  quant::visit_block(op.type, [&](auto tag) { linear_q8_type<decltype(tag)>(op, x, begin, end, scratch); });
}

}  // namespace
}  // namespace lb::cpu
