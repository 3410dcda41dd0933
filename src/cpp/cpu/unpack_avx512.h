// Unpacks block weights to unsigned 8-bit codes, 128 values (two vectors) at a time, with one scale per 4-byte lane.
// Needs AVX-512 BW; reads no byte outside the given blocks.
//
// Unpack<Block> has
//   kZero         signed code = unsigned code - kZero
//   kOrder        the values in the lanes of the two vectors, see Order
//   kUnit         values of a step: 128 (four blocks of 32) or 256 (one K block)
//   open(b, n)    returns the state that the groups of a step share; n blocks are left in the row
//   group(b, s, h, q, d, m)  group h of 128 values: codes q[2], scales d[2], offsets m[2] (when the type has mins)
//   codes(b, h, q)  only the codes, when kOrder is kPairs; open() then returns 8 scales and 8 offsets in one vector
#pragma once

#include <immintrin.h>

#include "quant/rows.h"

namespace lb::cpu {
namespace {

enum class Order {
  kNibble,   // q[0]: values 0..15 of blocks 0 1 2 3, q[1]: values 16..31; d[0] serves both
  kNatural,  // q[0]: values 0..63, q[1]: values 64..127
  kPairs,    // q[0]: sub-blocks 0 and 2 of 32 values, q[1]: sub-blocks 1 and 3
};

inline __m512i load_bytes(const void* p) { return _mm512_loadu_si512(p); }
// Loads the first n bytes, zeroes the rest and does not access the memory after them. n is clamped to [0, 64].
inline __m512i load_bytes(const void* p, int n) {
  return _mm512_maskz_loadu_epi8(n >= 64 ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1, p);
}
inline __m512i twice(const void* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline __m512i bytes(int v) { return _mm512_set1_epi8(char(v)); }
inline __m512 half_to_float(__m256i v) { return _mm512_cvtph_ps(v); }

// The generic version: quant::unpack(), then loads. The specialisations below are fast.
template <class Block>
struct Unpack {
  static constexpr Order kOrder = Block::kSub == 32 ? Order::kNibble : Order::kNatural;
  static constexpr int kZero = 64, kUnit = Block::kValues < 128 ? 128 : 256;
  static_assert(kUnit % Block::kValues == 0);
  struct Step {
    int n;  // blocks left
  };

  static Step open(const Block*, int n) { return {n}; }
  static void group(const Block* b, const Step& s, int h, __m512i* q, __m512* d, __m512*) {
    alignas(64) int8_t codes[128] = {};
    alignas(64) float scales[32] = {};
    for (int i = 0; i < 128 / Block::kSub; ++i) {
      const int value = 128 * h + i * Block::kSub;
      if (value / Block::kValues >= s.n) break;
      int8_t sub_codes[Block::kSub];
      const quant::ScaleOffset sub =
          quant::unpack(b[value / Block::kValues], value % Block::kValues / Block::kSub, sub_codes);
      for (int lane = 4 * i; lane < 4 * i + 4; ++lane) scales[lane] = sub.scale;
      __builtin_memcpy(codes + 16 * i, sub_codes, 16);
      if constexpr (Block::kSub == 32) __builtin_memcpy(codes + 64 + 16 * i, sub_codes + 16, 16);
    }
    for (int v = 0; v < 2; ++v) {
      q[v] = _mm512_add_epi8(load_bytes(codes + 64 * v), bytes(kZero));
      d[v] = _mm512_load_ps(scales + 16 * v);
    }
  }
};

struct Words {
  alignas(64) uint16_t at[32];
};

// Permutation that picks bytes [at, at + 16) of each of four blocks. The indices count 16-bit words of two vectors: the
// 64 bytes from `first` and the 64 bytes from `second`.
constexpr Words chunk_words(int block_bytes, int at, int first, int second) {
  Words out{};
  for (int i = 0; i < 32; ++i) {
    const int byte = i / 8 * block_bytes + at + i % 8 * 2;
    out.at[i] = uint16_t(byte < first + 64 ? (byte - first) / 2 : 32 + (byte - second) / 2);
  }
  return out;
}

// Permutation that picks the f16 at byte d for each lane of its block; the upper half picks the f16 at byte m.
constexpr Words scale_words(int block_bytes, int d, int m, int second) {
  Words out{};
  for (int i = 0; i < 32; ++i) {
    const int byte = i % 16 / 4 * block_bytes + (i < 16 ? d : m);
    out.at[i] = uint16_t(byte < 64 ? byte / 2 : 32 + (byte - second) / 2);
  }
  return out;
}

// Permutation that repeats a block's word of 16 high bits (bits 0..15 for q[0], 16..31 for q[1]) over the block's
// bytes.
constexpr Words high_bit_words(int block_bytes, int at, int second) {
  Words out{};
  for (int i = 0; i < 32; ++i) {
    const int byte = i / 8 * block_bytes + at;
    out.at[i] = uint16_t(byte < 64 ? byte / 2 : 32 + (byte - second) / 2);
  }
  return out;
}

inline __m512i pick(__m512i a, const Words& words, __m512i b) {
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(words.at), b);
}

inline __m512i lookup(const int8_t* table, int zero, __m512i nibbles) {
  const __m128i signed_values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m128i values = _mm_add_epi8(signed_values, _mm_set1_epi8(char(zero)));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), nibbles);
}

inline void split_nibbles(__m512i packed, __m512i* q) {
  q[0] = _mm512_and_si512(packed, bytes(15));
  q[1] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), bytes(15));
}

// Four blocks of 32 values, up to 128 bytes, in two vectors.
struct FourBlocks {
  __m512i first, second;
};

template <class Block>
struct UnpackNibbles {
  static constexpr Order kOrder = Order::kNibble;
  static constexpr int kUnit = 128;
  static constexpr int kBytes = sizeof(Block);
  static constexpr int kSecond = 4 * kBytes - 64;
  static constexpr int kMinAt = Block::kHasMin ? 2 : 0;
  static constexpr Words kChunks = chunk_words(kBytes, kBytes - 16, 0, kSecond);
  static constexpr Words kScales = scale_words(kBytes, 0, kMinAt, kSecond);

  static FourBlocks open(const Block* b, int n) {
    const auto* p = reinterpret_cast<const char*>(b);
    if (n >= 4) return {load_bytes(p), load_bytes(p + kSecond)};
    return {load_bytes(p, n * kBytes), load_bytes(p + kSecond, n * kBytes - kSecond)};
  }

  static void codes_and_scales(const FourBlocks& s, __m512i* q, __m512* d, __m512* m) {
    split_nibbles(pick(s.first, kChunks, s.second), q);
    const __m512i scales = pick(s.first, kScales, s.second);
    d[0] = half_to_float(_mm512_castsi512_si256(scales));
    if constexpr (Block::kHasMin) m[0] = half_to_float(_mm512_extracti64x4_epi64(scales, 1));
  }
};

// Adds bit 4 of each code, from the 32 bits at byte kHighAt of the block.
template <class Block, int kHighAt>
struct UnpackFiveBits : UnpackNibbles<Block> {
  using Base = UnpackNibbles<Block>;
  static constexpr Words kLow = high_bit_words(Base::kBytes, kHighAt, Base::kSecond);
  static constexpr Words kHigh = high_bit_words(Base::kBytes, kHighAt + 2, Base::kSecond);

  static __m512i with_bits(__m512i q, __m512i words) {
    const __m512i spread = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0101010101010101, 0));
    const __mmask64 set =
        _mm512_test_epi8_mask(_mm512_shuffle_epi8(words, spread), _mm512_set1_epi64(int64_t(0x8040201008040201)));
    return _mm512_or_si512(q, _mm512_maskz_mov_epi8(set, bytes(16)));
  }
  static void group(const Block*, const FourBlocks& s, int, __m512i* q, __m512* d, __m512* m) {
    Base::codes_and_scales(s, q, d, m);
    q[0] = with_bits(q[0], pick(s.first, kLow, s.second));
    q[1] = with_bits(q[1], pick(s.first, kHigh, s.second));
  }
};

template <>
struct Unpack<quant::BlockQ4_0> : UnpackNibbles<quant::BlockQ4_0> {
  static constexpr int kZero = 8;
  static void group(const quant::BlockQ4_0*, const FourBlocks& s, int, __m512i* q, __m512* d, __m512* m) {
    codes_and_scales(s, q, d, m);
  }
};

template <>
struct Unpack<quant::BlockQ4_1> : UnpackNibbles<quant::BlockQ4_1> {
  static constexpr int kZero = 0;
  static void group(const quant::BlockQ4_1*, const FourBlocks& s, int, __m512i* q, __m512* d, __m512* m) {
    codes_and_scales(s, q, d, m);
  }
};

template <>
struct Unpack<quant::BlockQ5_0> : UnpackFiveBits<quant::BlockQ5_0, 2> {
  static constexpr int kZero = 16;
};

template <>
struct Unpack<quant::BlockQ5_1> : UnpackFiveBits<quant::BlockQ5_1, 4> {
  static constexpr int kZero = 0;
};

template <>
struct Unpack<quant::BlockIQ4_NL> : UnpackNibbles<quant::BlockIQ4_NL> {
  static constexpr int kZero = 128;
  static void group(const quant::BlockIQ4_NL*, const FourBlocks& s, int, __m512i* q, __m512* d, __m512* m) {
    codes_and_scales(s, q, d, m);
    for (int v = 0; v < 2; ++v) q[v] = lookup(quant::kIq4Values, kZero, q[v]);
  }
};

template <>
struct Unpack<quant::BlockQ8_0> {
  using Block = quant::BlockQ8_0;
  static constexpr Order kOrder = Order::kNibble;
  static constexpr int kZero = 128, kUnit = 128;
  // Four blocks have 136 bytes: values 0..15 of the blocks are in bytes [0, 128), values 16..31 in [16, 136).
  static constexpr int kSecond = 64, kThird = 16, kFourth = 72;
  static constexpr Words kLow = chunk_words(34, 2, 0, kSecond);
  static constexpr Words kHigh = chunk_words(34, 18, kThird, kFourth);
  static constexpr Words kScales = scale_words(34, 0, 0, kSecond);
  struct Step {
    __m512i first, second, third, fourth;
  };

  static Step open(const Block* b, int n) {
    const auto* p = reinterpret_cast<const char*>(b);
    if (n >= 4) return {load_bytes(p), load_bytes(p + kSecond), load_bytes(p + kThird), load_bytes(p + kFourth)};
    const int size = 34 * n;
    return {load_bytes(p, size), load_bytes(p + kSecond, size - kSecond), load_bytes(p + kThird, size - kThird),
            load_bytes(p + kFourth, size - kFourth)};
  }
  static void group(const Block*, const Step& s, int, __m512i* q, __m512* d, __m512*) {
    q[0] = _mm512_xor_si512(pick(s.first, kLow, s.second), bytes(0x80));
    q[1] = _mm512_xor_si512(pick(s.third, kHigh, s.fourth), bytes(0x80));
    d[0] = half_to_float(_mm512_castsi512_si256(pick(s.first, kScales, s.second)));
  }
};

template <>
struct Unpack<quant::BlockMXFP4> {
  using Block = quant::BlockMXFP4;
  static constexpr Order kOrder = Order::kNibble;
  static constexpr int kZero = 12, kUnit = 128;
  struct Step {
    __m512i packed;
    __m512 d;
  };

  static Step open(const Block* b, int n) {
    __m128i packed[4] = {};
    float scale[4] = {};
    for (int i = 0; i < 4 && i < n; ++i) {
      packed[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b[i].qs));
      scale[i] = quant::mxfp4_scale(b[i].e);
    }
    const __m512i lanes = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    __m512i all = _mm512_castsi128_si512(packed[0]);
    all = _mm512_inserti32x4(all, packed[1], 1);
    all = _mm512_inserti32x4(all, packed[2], 2);
    all = _mm512_inserti32x4(all, packed[3], 3);
    return {all, _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_loadu_ps(scale)))};
  }
  static void group(const Block*, const Step& s, int, __m512i* q, __m512* d, __m512*) {
    split_nibbles(s.packed, q);
    for (int v = 0; v < 2; ++v) q[v] = lookup(quant::kMxfp4Values, kZero, q[v]);
    d[0] = s.d;
  }
};

// Spread a K block's scales over lanes: 8 lanes per sub-block of 32 values, 4 lanes per sub-block of 16.
inline __m512 eight_lanes(__m512 scales, int first, int second) {
  return _mm512_permutexvar_ps(_mm512_inserti64x4(_mm512_set1_epi32(first), _mm256_set1_epi32(second), 1), scales);
}
inline __m512 four_lanes(__m512 scales, int first) {
  const __m512i lanes = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(first)), scales);
}
inline __m512 float_of_bytes(__m128i v) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v)); }
inline __m512 splat_half(uint16_t h) { return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }

// Two blocks of 64 values. Each half of a sub-block's 16 values is a nibble of its 8 bytes.
template <class Block>
struct UnpackNvfp4 {
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kZero = 12, kUnit = 128;
  struct Step {
    __m512i q[2];
    __m512 d[2];
  };

  static Step open(const Block* b, int n) {
    Step s;
    for (int v = 0; v < 2; ++v) {
      s.q[v] = bytes(kZero);
      s.d[v] = _mm512_setzero_ps();
      if (v >= n) continue;
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b[v].qs));
      const __m512i twice =
          _mm512_permutexvar_epi64(_mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0), _mm512_castsi256_si512(packed));
      const __m512i nibbles = _mm512_srlv_epi64(twice, _mm512_set_epi64(4, 0, 4, 0, 4, 0, 4, 0));
      s.q[v] = lookup(quant::kMxfp4Values, kZero, _mm512_and_si512(nibbles, bytes(15)));
      s.d[v] = four_lanes(_mm512_castps128_ps512(halves_of_e4m3(b[v].d)), 0);
    }
    return s;
  }
  static void group(const Block*, const Step& s, int, __m512i* q, __m512* d, __m512*) {
    for (int v = 0; v < 2; ++v) {
      q[v] = s.q[v];
      d[v] = s.d[v];
    }
  }

 private:
  // quant::half_of_e4m3 of four bytes. An f16 with the seven low bits at bit 7 is 2^-8 times the number.
  static __m128 halves_of_e4m3(const uint8_t* from) {
    const __m128i words = _mm_cvtepu8_epi16(_mm_loadu_si32(from));
    const __m128i is_nan = _mm_cmpeq_epi16(words, _mm_set1_epi16(0x7f));
    const __m128i numbers = _mm_andnot_si128(is_nan, _mm_and_si128(words, _mm_set1_epi16(0x7f)));
    return _mm_mul_ps(_mm_cvtph_ps(_mm_slli_epi16(numbers, 7)), _mm_set1_ps(128));
  }
};
template <>
struct Unpack<quant::BlockNVFP4> : UnpackNvfp4<quant::BlockNVFP4> {};
template <>
struct Unpack<quant::BlockNVFP4Scaled> : UnpackNvfp4<quant::BlockNVFP4Scaled> {};

// quant::k4_scale for all eight sub-blocks: lanes 0..7 are d * scale, lanes 8..15 are -dmin * min.
inline __m512 k4_scales(const void* block) {
  const __m128i head = _mm_loadu_si128(static_cast<const __m128i*>(block));  // d dmin | s 0..3 | s 4..7 | s 8..11
  const __m128i plain = _mm_shuffle_epi32(head, _MM_SHUFFLE(3, 2, 3, 1));    // scales 0..3, 4..7; mins 0..3, 4..7
  const __m128i low = _mm_and_si128(_mm_srlv_epi32(plain, _mm_set_epi32(4, 0, 0, 0)),
                                    _mm_set_epi32(0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f));
  const __m128i top = _mm_and_si128(_mm_srli_epi32(_mm_shuffle_epi32(head, _MM_SHUFFLE(2, 0, 1, 0)), 2),
                                    _mm_set_epi32(0x30303030, 0, 0x30303030, 0));
  const __m128 ends = _mm_cvtph_ps(head);  // d, dmin
  const __m512 factors = _mm512_permutexvar_ps(_mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
                                               _mm512_castps128_ps512(_mm_xor_ps(ends, _mm_set_ps(0, 0, -0.0f, 0))));
  return _mm512_mul_ps(float_of_bytes(_mm_or_si128(low, top)), factors);
}

// The scales and offsets of half h, in kPairs order.
inline void k4_lanes(__m512 s, int h, __m512* d, __m512* m) {
  for (int v = 0; v < 2; ++v) {
    d[v] = eight_lanes(s, 4 * h + v, 4 * h + v + 2);
    m[v] = eight_lanes(s, 8 + 4 * h + v, 8 + 4 * h + v + 2);
  }
}

template <>
struct Unpack<quant::BlockQ4_K> {
  using Block = quant::BlockQ4_K;
  static constexpr Order kOrder = Order::kPairs;
  static constexpr int kZero = 0, kUnit = 256;
  static __m512 open(const Block* b, int) { return k4_scales(b); }
  static void codes(const Block* b, int h, __m512i* q) { split_nibbles(load_bytes(b->qs + 64 * h), q); }
  static void group(const Block* b, __m512 s, int h, __m512i* q, __m512* d, __m512* m) {
    codes(b, h, q);
    k4_lanes(s, h, d, m);
  }
};

template <>
struct Unpack<quant::BlockQ5_K> {
  using Block = quant::BlockQ5_K;
  static constexpr Order kOrder = Order::kPairs;
  static constexpr int kZero = 0, kUnit = 256;
  static __m512 open(const Block* b, int) { return k4_scales(b); }
  static void codes(const Block* b, int h, __m512i* q) {
    split_nibbles(load_bytes(b->qs + 64 * h), q);
    const __m512i high = twice(b->qh);
    for (int v = 0; v < 2; ++v) {
      const int sub = 4 * h + v;
      const __m512i bit = _mm512_inserti64x4(bytes(1 << sub), _mm256_set1_epi8(char(1 << (sub + 2))), 1);
      q[v] = _mm512_or_si512(q[v], _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(high, bit), bytes(16)));
    }
  }
  static void group(const Block* b, __m512 s, int h, __m512i* q, __m512* d, __m512* m) {
    codes(b, h, q);
    k4_lanes(s, h, d, m);
  }
};

template <>
struct Unpack<quant::BlockQ6_K> {
  using Block = quant::BlockQ6_K;
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kZero = 32, kUnit = 256;
  static __m512 open(const Block* b, int) {
    return _mm512_mul_ps(float_of_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b->scales))),
                         splat_half(b->d));
  }
  static void group(const Block* b, __m512 s, int h, __m512i* q, __m512* d, __m512*) {
    split_nibbles(load_bytes(b->ql + 64 * h), q);
    const __m512i high =
        twice(b->qh + 32 * h);  // two bits of each of the groups of 32 values 0 1 2 3; groups 0 1 go to q[0]
    const __m512i up = _mm512_sllv_epi16(high, _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1));
    const __m512i down = _mm512_srlv_epi16(high, _mm512_inserti64x4(_mm512_set1_epi16(0), _mm256_set1_epi16(2), 1));
    q[0] = _mm512_ternarylogic_epi32(q[0], up, bytes(0x30), 0xf8);  // a | (b & c)
    q[1] = _mm512_ternarylogic_epi32(q[1], down, bytes(0x30), 0xf8);
    for (int v = 0; v < 2; ++v) d[v] = four_lanes(s, 8 * h + 4 * v);
  }
};

// Two-bit codes of Q2_K and Q3_K: groups of 32 values 0 1 2 3 of half a block.
inline void split_pairs(const uint8_t* qs, __m512i* q) {
  const __m512i packed = twice(qs);
  q[0] = _mm512_srlv_epi16(packed, _mm512_inserti64x4(_mm512_set1_epi16(0), _mm256_set1_epi16(2), 1));
  q[1] = _mm512_srlv_epi16(packed, _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(6), 1));
  for (int v = 0; v < 2; ++v) q[v] = _mm512_and_si512(q[v], bytes(3));
}

template <>
struct Unpack<quant::BlockQ2_K> {
  using Block = quant::BlockQ2_K;
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kZero = 0, kUnit = 256;
  struct Step {
    __m512 d, m;
  };
  static Step open(const Block* b, int) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b->scales));
    const __m128i mins = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
    return {_mm512_mul_ps(float_of_bytes(_mm_and_si128(packed, _mm_set1_epi8(15))), splat_half(b->d)),
            _mm512_mul_ps(float_of_bytes(mins), splat_half(b->dmin ^ 0x8000))};
  }
  static void group(const Block* b, const Step& s, int h, __m512i* q, __m512* d, __m512* m) {
    split_pairs(b->qs + 32 * h, q);
    for (int v = 0; v < 2; ++v) {
      d[v] = four_lanes(s.d, 8 * h + 4 * v);
      m[v] = four_lanes(s.m, 8 * h + 4 * v);
    }
  }
};

template <>
struct Unpack<quant::BlockQ3_K> {
  using Block = quant::BlockQ3_K;
  static constexpr Order kOrder = Order::kNatural;
  static constexpr int kZero = 4, kUnit = 256;
  static __m512 open(const Block* b, int) {
    uint32_t s[3];
    __builtin_memcpy(s, b->scales, sizeof s);
    const __m128i low =
        _mm_and_si128(_mm_set_epi32(int(s[1] >> 4), int(s[0] >> 4), int(s[1]), int(s[0])), _mm_set1_epi8(15));
    const __m128i high =
        _mm_and_si128(_mm_set_epi32(int(s[2] >> 2), int(s[2]), int(s[2] << 2), int(s[2] << 4)), _mm_set1_epi8(0x30));
    const __m128i scales = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
    return _mm512_mul_ps(float_of_bytes(scales), splat_half(b->d));
  }
  static void group(const Block* b, __m512 s, int h, __m512i* q, __m512* d, __m512*) {
    split_pairs(b->qs + 32 * h, q);
    const __m512i high = twice(b->hmask);
    for (int v = 0; v < 2; ++v) {
      const int group = 4 * h + 2 * v;  // of 32 values
      const __m512i bit = _mm512_inserti64x4(bytes(1 << group), _mm256_set1_epi8(char(2 << group)), 1);
      q[v] = _mm512_or_si512(q[v], _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(high, bit), bytes(4)));
      d[v] = four_lanes(s, 8 * h + 4 * v);
    }
  }
};

template <>
struct Unpack<quant::BlockIQ4_XS> {
  using Block = quant::BlockIQ4_XS;
  static constexpr Order kOrder = Order::kNibble;
  static constexpr int kZero = 128, kUnit = 256;
  static __m512 open(const Block* b, int) {
    uint32_t low;
    uint16_t high;
    __builtin_memcpy(&low, b->scales_l, 4);
    __builtin_memcpy(&high, b->scales_h, 2);
    const __m256i sub = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i nibble = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(int(low)), _mm256_slli_epi32(sub, 2)),
                                            _mm256_set1_epi32(15));
    const __m256i top =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(high), _mm256_slli_epi32(sub, 1)), _mm256_set1_epi32(3));
    const __m256i scale = _mm256_sub_epi32(_mm256_or_si256(nibble, _mm256_slli_epi32(top, 4)), _mm256_set1_epi32(32));
    return _mm512_mul_ps(_mm512_castps256_ps512(_mm256_cvtepi32_ps(scale)), splat_half(b->d));
  }
  static void group(const Block* b, __m512 s, int h, __m512i* q, __m512* d, __m512*) {
    split_nibbles(load_bytes(b->qs + 64 * h), q);
    for (int v = 0; v < 2; ++v) q[v] = lookup(quant::kIq4Values, kZero, q[v]);
    d[0] = four_lanes(s, 4 * h);
  }
};

}  // namespace
}  // namespace lb::cpu
