// Linear products of quantised weights with 8-bit activations on AVX-512 VNNI, which multiplies unsigned by signed
// bytes. Weights are unsigned codes. The integer sums start from the zero point's contribution, so the correction is
// exact.
//
// Skinny, 1 or 2 activation rows: 4 weight rows stream from memory through registers; each weight is unpacked once for
//   all activation rows. Bound: the bytes of the weights.
// GEMM, more rows: a panel of 32 weight rows is unpacked to scratch, 4 values of 16 rows per vector, and multiplied
// with
//   up to 6 activation rows at a time. Bound: byte products, 1024 per cycle and core where two vectors issue.
//   panel   codes [n_in / 4, 32 rows, 4], scales [sub-blocks, 32 rows], offsets [sub-blocks, 32 rows]
// An output depends only on its own inputs and on the path, which the number of rows selects.
// Measurements: docs/kernels/linear_cpu.md.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/unpack_avx512.h"

namespace lb::cpu {
namespace {

constexpr int kStreams = 4;  // weight rows in flight on the skinny path
// Prefetch distance: one core reads Q6_K at 30 GB/s with prefetch, at 10 GB/s without.
constexpr long kPrefetchBytes = 16 << 10;
constexpr int kPanelRows = 32;  // weight rows of a panel
constexpr int kTileX = 4;       // activation rows of a tile: 8 integer and 8 float sums hide the latency of 4 cycles at
                                // two multiplies per cycle
constexpr int kTallTileX = 6;   // up to 6 activation rows are one tile

// 128 activations of one row in the order of the weights' codes.
struct Activations128 {
  __m512i a[2];
  __m512i start[2];  // -kZero * sum of the lane's activations
  __m512 scale[2];
  __m512 sum[2];  // scale * sum of the lane's activations
};

template <class Block>
Activations128 load_activations(const int8_t* q, const float* s, int values_left) {
  using U = Unpack<Block>;
  constexpr bool kShared = U::kOrder == Order::kNibble;
  __m512i first = load_bytes(q), second = _mm512_setzero_si512();
  __m128 scales;
  if (values_left >= 128) {
    second = load_bytes(q + 64);
    scales = _mm_loadu_ps(s);
  } else {
    scales = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(s)));
  }
  const __m512 s4 = _mm512_castps128_ps512(scales);
  Activations128 out;
  if constexpr (U::kOrder == Order::kNibble) {
    out.a[0] = _mm512_permutex2var_epi64(first, _mm512_set_epi64(13, 12, 9, 8, 5, 4, 1, 0), second);
    out.a[1] = _mm512_permutex2var_epi64(first, _mm512_set_epi64(15, 14, 11, 10, 7, 6, 3, 2), second);
    out.scale[0] = four_lanes(s4, 0);
  } else {
    out.a[0] = first;
    out.a[1] = second;
    for (int v = 0; v < 2; ++v) out.scale[v] = eight_lanes(s4, 2 * v, 2 * v + 1);
  }
  const __m512i factor = bytes(Block::kHasMin ? 1 : U::kZero);
  for (int v = 0; v < (kShared ? 1 : 2); ++v) {
    __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), factor, out.a[v]);
    if constexpr (kShared) sums = _mm512_dpbusd_epi32(sums, factor, out.a[1]);
    if constexpr (Block::kHasMin)
      out.sum[v] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), out.scale[v]);
    else
      out.start[v] = _mm512_sub_epi32(_mm512_setzero_si512(), sums);
  }
  return out;
}

// Returns acc plus the products of 128 weights.
template <class Block>
__m512 add_products(__m512 acc, const __m512i* q, const __m512* d, const __m512* m, const Activations128& x) {
  constexpr bool kShared = Unpack<Block>::kOrder == Order::kNibble;
  for (int v = 0; v < (kShared ? 1 : 2); ++v) {
    __m512i dot = Block::kHasMin ? _mm512_setzero_si512() : x.start[v];
    dot = _mm512_dpbusd_epi32(dot, q[v], x.a[v]);
    if constexpr (kShared) dot = _mm512_dpbusd_epi32(dot, q[1], x.a[1]);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(d[v], x.scale[v]), acc);
    if constexpr (Block::kHasMin) acc = _mm512_fmadd_ps(m[v], x.sum[v], acc);
  }
  return acc;
}

// 256 activations of one row for a K block in kPairs order, with sub-blocks of 32. One product of two vectors serves
// eight sub-blocks: lanes 0..7 multiply scales by scales, lanes 8..15 multiply offsets by scale * sum, without codes.
struct Activations256 {
  __m512i a[4];
  __m512 terms;  // 8 scales, 8 scale * sum
};

inline Activations256 load_pairs(const int8_t* q, const float* scale, const int32_t* sum) {
  Activations256 out;
  for (int h = 0; h < 2; ++h) {
    const __m512i first = load_bytes(q + 128 * h), second = load_bytes(q + 128 * h + 64);
    out.a[2 * h] = _mm512_shuffle_i64x2(first, second, 0x44);
    out.a[2 * h + 1] = _mm512_shuffle_i64x2(first, second, 0xee);
  }
  const __m256 s = _mm256_loadu_ps(scale);
  const __m256 sums = _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum)));
  out.terms = _mm512_insertf32x8(_mm512_castps256_ps512(s), _mm256_mul_ps(s, sums), 1);
  return out;
}

// Returns acc plus the products of 256 weights; `scales` comes from Unpack::open.
inline __m512 add_pairs(__m512 acc, const __m512i* q, __m512 scales, const Activations256& x) {
  const __m512 terms = _mm512_mul_ps(scales, x.terms);
  acc = _mm512_mask_add_ps(acc, 0xff00, acc, terms);
  for (int v = 0; v < 4; ++v) {
    const __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q[v], x.a[v]);
    const int sub = v / 2 * 4 + v % 2;
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), eight_lanes(terms, sub, sub + 2), acc);
  }
  return acc;
}

// Returns the horizontal sums of four vectors.
inline __m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// kR activation rows, weight rows [begin, end).
template <class Block, int kR>
void linear_q8_skinny(const Linear& op, const Q8Rows& x, int begin, int end) {
  using U = Unpack<Block>;
  constexpr int kBlocks = U::kUnit / Block::kValues;  // blocks of a step
  constexpr bool kPairs = U::kOrder == Order::kPairs;
  constexpr int kGroups = kPairs ? 1 : U::kUnit / 128;
  const int blocks_per_row = op.n_in / Block::kValues;
  for (int o = begin; o < end; o += kStreams) {
    const int n = end - o < kStreams ? end - o : kStreams;
    const Block* w[kStreams];
    for (int i = 0; i < kStreams; ++i)
      w[i] = static_cast<const Block*>(op.w) + (o + (i < n ? i : 0)) * long(blocks_per_row);
    __m512 acc[kR][kStreams];
    for (int r = 0; r < kR; ++r)
      for (int i = 0; i < kStreams; ++i) acc[r][i] = _mm512_setzero_ps();
    for (int b = 0; b < blocks_per_row; b += kBlocks) {
      const int k = b * Block::kValues;
      std::conditional_t<kPairs, Activations256, Activations128> acts[kR][kGroups];
      for (int r = 0; r < kR; ++r) {
        const int8_t* q = x.q + long(r) * x.stride + k;
        const long block = long(r) * x.n_blocks + k / 32;
        for (int h = 0; h < kGroups; ++h) {
          if constexpr (kPairs)
            acts[r][h] = load_pairs(q, x.scale + block, x.sum + block);
          else
            acts[r][h] = load_activations<Block>(q + 128 * h, x.scale + block + 4 * h, x.stride - k - 128 * h);
        }
      }
      for (int i = 0; i < kStreams; ++i) {
        const char* ahead = reinterpret_cast<const char*>(w[i] + b) + kPrefetchBytes;
        for (int line = 0; line < kBlocks * int(sizeof(Block)); line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
        const auto step = U::open(w[i] + b, blocks_per_row - b);
        if constexpr (kPairs) {
          __m512i q[4];
          for (int h = 0; h < 2; ++h) U::codes(w[i] + b, h, q + 2 * h);
          for (int r = 0; r < kR; ++r) acc[r][i] = add_pairs(acc[r][i], q, step, acts[r][0]);
        } else {
          for (int h = 0; h < kGroups; ++h) {
            __m512i q[2];
            __m512 d[2], m[2];
            U::group(w[i] + b, step, h, q, d, m);
            for (int r = 0; r < kR; ++r) acc[r][i] = add_products<Block>(acc[r][i], q, d, m, acts[r][h]);
          }
        }
      }
    }
    const __mmask8 valid = __mmask8((1 << n) - 1);
    for (int r = 0; r < kR; ++r) {
      const long at = long(r) * op.n_out + o;
      __m128 y = sum_lanes(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
      if (op.add) y = _mm_add_ps(y, _mm_maskz_loadu_ps(valid, op.add + at));
      _mm_mask_storeu_ps(op.y + at, valid, y);
    }
  }
}

struct Panel {
  uint8_t* codes;  // [n_in / 4, 32, 4]
  float* scale;    // [sub-blocks, 32]
  float* offset;   // [sub-blocks, 32]; unused when the type has no mins
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

// v[row] has four values, each in four lanes. to[32 b ...] receives value b of the 16 rows.
inline void store_quads(const __m512* v, float* to) {
  __m512 z[4];
  for (int i = 0; i < 4; ++i) {
    z[i] = _mm512_mask_blend_ps(0x2222, v[4 * i], v[4 * i + 1]);
    z[i] = _mm512_mask_blend_ps(0x4444, z[i], v[4 * i + 2]);
    z[i] = _mm512_mask_blend_ps(0x8888, z[i], v[4 * i + 3]);
  }
  const __m512 a = _mm512_shuffle_f32x4(z[0], z[1], 0x44), b = _mm512_shuffle_f32x4(z[2], z[3], 0x44);
  const __m512 e = _mm512_shuffle_f32x4(z[0], z[1], 0xee), f = _mm512_shuffle_f32x4(z[2], z[3], 0xee);
  _mm512_store_ps(to, _mm512_shuffle_f32x4(a, b, 0x88));
  _mm512_store_ps(to + kPanelRows, _mm512_shuffle_f32x4(a, b, 0xdd));
  _mm512_store_ps(to + 2 * kPanelRows, _mm512_shuffle_f32x4(e, f, 0x88));
  _mm512_store_ps(to + 3 * kPanelRows, _mm512_shuffle_f32x4(e, f, 0xdd));
}

// Stores the scales of 128 values of 16 rows.
template <class Block>
void store_scales(__m512 (*v)[16], float* to) {
  if constexpr (Unpack<Block>::kOrder == Order::kPairs)  // lanes 0 0 2 2 and 1 1 3 3 (of four each) to 0 1 2 3
    for (int i = 0; i < 16; ++i) v[0][i] = _mm512_mask_blend_ps(0xf0f0, v[0][i], v[1][i]);
  store_quads(v[0], to);
  if constexpr (Block::kSub == 16) store_quads(v[1], to + 4 * kPanelRows);
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
  const Block* w = static_cast<const Block*>(op.w) + o * long(blocks_per_row);
  for (int b = 0; b < blocks_per_row; b += kBlocks) {
    for (int h = 0; h < U::kUnit / 128; ++h) {
      __m512i q[2][16];
      __m512 d[2][16], m[2][16];
      for (int i = 0; i < 16; ++i) {
        const Block* at = w + (i < n ? i : 0) * long(blocks_per_row) + b;
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
      const int k = b * Block::kValues + 128 * h;
      for (int v = 0; v < 2; ++v) {
        transpose16(q[v]);
        for (int lane = 0; lane < 16; ++lane)
          _mm512_store_si512(panel.codes + (k + value_of<Block>(v, lane)) * long(kPanelRows) + 64 * half, q[v][lane]);
      }
      const long sub_at = long(k / Block::kSub) * kPanelRows + 16 * half;
      store_scales<Block>(d, panel.scale + sub_at);
      if constexpr (Block::kHasMin) store_scales<Block>(m, panel.offset + sub_at);
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

// Computes outputs [r0, r0 + kR) x [o, o + n); kHalves is 1 when n <= 16.
template <class Block, int kR, int kHalves>
void tile(const Linear& op, const Q8Rows& x, const Panel& panel, const SubTerm* terms, int o, int n, int r0) {
  constexpr int kSubs = 32 / Block::kSub;  // sub-blocks of 32 values
  constexpr int kSteps = 8 / kSubs;        // dwords of a sub-block
  const int8_t* a = x.q + long(r0) * x.stride;
  const float* s = x.scale + long(r0) * x.n_blocks;
  const uint8_t* codes = panel.codes;
  const float* scale = panel.scale;
  const float* offset = panel.offset;
  const long stride = x.stride;
  const long n_subs = long(x.n_blocks) * kSubs;
  __m512 acc[kR][kHalves];
  for (int r = 0; r < kR; ++r)
    for (int p = 0; p < kHalves; ++p) acc[r][p] = _mm512_setzero_ps();
  for (int b = 0; b < op.n_in / 32; ++b) {
    __m512 part[kR][kHalves];
    for (int i = 0; i < kSubs; ++i) {
      const SubTerm* term = terms + b * kSubs + i;
      __m512i dot[kR][kHalves];
      for (int r = 0; r < kR; ++r)
        for (int p = 0; p < kHalves; ++p)
          dot[r][p] = Block::kHasMin ? _mm512_setzero_si512() : _mm512_set1_epi32(term[r * n_subs].start);
      for (int j = 0; j < kSteps; ++j, codes += 4 * kPanelRows) {
        __m512i w[kHalves];
        for (int p = 0; p < kHalves; ++p) w[p] = _mm512_load_si512(codes + 64 * p);
        for (int r = 0; r < kR; ++r) {
          int32_t four;
          __builtin_memcpy(&four, a + r * stride + 32 * b + 4 * (i * kSteps + j), 4);
          for (int p = 0; p < kHalves; ++p) dot[r][p] = _mm512_dpbusd_epi32(dot[r][p], w[p], _mm512_set1_epi32(four));
        }
      }
      __m512 d[kHalves], m[kHalves];
      for (int p = 0; p < kHalves; ++p) {
        d[p] = _mm512_load_ps(scale + 16 * p);
        if constexpr (Block::kHasMin) m[p] = _mm512_load_ps(offset + 16 * p);
      }
      for (int r = 0; r < kR; ++r) {
        for (int p = 0; p < kHalves; ++p) {
          const __m512 f = _mm512_cvtepi32_ps(dot[r][p]);
          part[r][p] = i == 0 ? _mm512_mul_ps(f, d[p]) : _mm512_fmadd_ps(f, d[p], part[r][p]);
          if constexpr (Block::kHasMin)
            acc[r][p] = _mm512_fmadd_ps(m[p], _mm512_set1_ps(term[r * n_subs].sum), acc[r][p]);
          if (i == kSubs - 1)
            acc[r][p] = _mm512_fmadd_ps(part[r][p], _mm512_set1_ps(s[r * long(x.n_blocks) + b]), acc[r][p]);
        }
      }
      scale += kPanelRows;
      offset += kPanelRows;
    }
  }
  for (int p = 0; p < kHalves; ++p) {
    const int left = n - 16 * p;
    const __mmask16 valid = __mmask16(left >= 16 ? 0xffff : (1 << left) - 1);
    for (int r = 0; r < kR; ++r) {
      const long at = long(r0 + r) * op.n_out + o + 16 * p;
      __m512 y = acc[r][p];
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
    switch (height) {
      case 3: tile<Block, 3, kHalves>(op, x, panel, terms, o, n, r); break;
      case 4: tile<Block, 4, kHalves>(op, x, panel, terms, o, n, r); break;
      case 5: tile<Block, 5, kHalves>(op, x, panel, terms, o, n, r); break;
      case 6: tile<Block, 6, kHalves>(op, x, panel, terms, o, n, r); break;
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
  const Panel panel = {reinterpret_cast<uint8_t*>(scratch), reinterpret_cast<float*>(scale_at),
                       reinterpret_cast<float*>(offset_at)};
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
