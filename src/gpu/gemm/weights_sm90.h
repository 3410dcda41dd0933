// How the wgmma GEMM reads a weight type: a chunk's codes from the ring in shared memory, and its scales from global
// memory one chunk ahead. Weights have
//   kType, Value        the stored type; the type of the operands
//   Scales<kFrags>      find: moves to the lane's output; read: loads a chunk's scales; unpack: decodes them into
//                       shared memory
//   Operands<kFrags>    32 values of a warp's outputs; half(a, i) returns 16 of them as fragments
//   kHasRowScales       x is f16 with a scale per row
//   kIsFp8              x is fp8 with scales; the sums of a chunk are scaled (multiply_fp8_chunk), without Operands
// The formats of quantised types have
//   Raw<kBlocks>        the scales of kBlocks blocks of 32 values: read loads them, field(i) decodes them: scale and
//   -min, or
//                       the scales of the block's halves (kHasHalves)
//   Codes, codes        a block's codes of 16 outputs, as loaded
//   pair                two codes of a lane's four (0 and 2, or 1 and 3) of word i of a half, exact as f16
#pragma once

#include "gpu/f16_pairs.h"
#include "gpu/gemm/shape.h"

namespace lb::gpu {

inline constexpr int kWarpgroupBlocks = 128 / kRoundBlock;  // blocks per chunk of quantised weights

// The codes of 16 outputs in a chunk in shared memory.
template <DType kType>
struct ChunkRows {
  static constexpr int kValues = warpgroup_values(kType);
  static constexpr int kStride0 = gemm_stride(gemm_code_bytes(kType, 0, kValues));
  static constexpr int kStride1 = gemm_stride(gemm_code_bytes(kType, 1, kValues));
  const uint8_t *first, *second;  // the two planes of codes
  LB_DEVICE ChunkRows(const uint8_t* weights, int n_outs, int out)
      : first(weights + out * kStride0), second(weights + n_outs * kStride0 + out * kStride1) {}
};

// An output's row in each plane, and its number of blocks.
struct OutputRow {
  const uint8_t* planes[quant::kMaxPlanes];
  int n_blocks;
};

// Nibbles: the low ones of 16 bytes are a block's first half. The codes are the nibbles minus kOff.
template <int kOff>
struct WideNibbles {
  static constexpr bool kHasHalves = false;
  using Codes = ByteHalf;
  LB_DEVICE static f16x2 pair(const ByteHalf& a, int half, int i, int odd) {
    const uint32_t bytes = odd ? a.r[i] >> 8 : a.r[i];
    return half == 0 ? low_nibble_pair<kOff>(bytes) : high_nibble_pair<kOff>(bytes);
  }
};

// One f16 per block, in plane 1.
template <int kBlocks>
struct WideF16Scales {
  f16 d[kBlocks] = {};
  LB_DEVICE void read(const OutputRow& row, int block) {
    LB_UNROLL
    for (int i = 0; i < kBlocks; ++i)
      d[i] = block + i < row.n_blocks ? load_cached<f16>(row.planes[1] + 2 * (block + i)) : f16{};
  }
};

struct WideQ8_0 {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr bool kHasHalves = false;
  using Codes = ByteHalf[2];
  template <int kBlocks>
  struct Raw : WideF16Scales<kBlocks> {
    LB_DEVICE f32x2 field(int i) const { return {to_f32(this->d[i]), 0}; }
  };
  LB_DEVICE static void codes(ByteHalf (&a)[2], const ChunkRows<kType>& rows, int block) {
    load(a, rows.first + block * 32, rows.kStride0);
  }
  LB_DEVICE static f16x2 pair(const ByteHalf (&a)[2], int half, int i, int odd) {
    return signed_byte_pair(a[half].r[i], odd);
  }
};

struct WideQ4_0 : WideNibbles<8> {
  static constexpr DType kType = DType::kQ4_0;
  template <int kBlocks>
  struct Raw : WideF16Scales<kBlocks> {
    LB_DEVICE f32x2 field(int i) const { return {to_f32(this->d[i]), 0}; }
  };
  LB_DEVICE static void codes(ByteHalf& a, const ChunkRows<kType>& rows, int block) {
    load(a, rows.first + block * 16, rows.kStride0);
  }
};

struct WideQ4_K : WideNibbles<0> {
  static constexpr DType kType = DType::kQ4_K;
  template <int kBlocks>
  struct Raw {
    u32x4 entry = {};
    int block = 0;  // index in the superblock, a multiple of kBlocks
    LB_DEVICE void read(const OutputRow& row, int row_block) {
      block = row_block % 8;
      entry = load_cached<u32x4>(row.planes[1] + uint32_t(row_block) / 8 * 16);
    }
    LB_DEVICE f32x2 field(int i) const {
      const bool is_upper = block >= 4;  // four blocks take 48 bits
      const uint64_t bits = uint64_t(is_upper ? entry[3] : entry[2]) << 32 | (is_upper ? entry[2] : entry[1]);
      const uint32_t fields = uint32_t(bits >> (is_upper ? 12 * block - 32 : 12 * block) >> 12 * i);
      const float d = to_f32(f16{uint16_t(entry[0])}), dmin = to_f32(f16{uint16_t(entry[0] >> 16)});
      return {d * float(fields & 63), -(dmin * float(fields >> 6 & 63))};
    }
  };
  LB_DEVICE static void codes(ByteHalf& a, const ChunkRows<kType>& rows, int block) {
    load(a, rows.first + block * 16, rows.kStride0);
  }
};

// The two fields are the scales of a block's two halves.
struct WideQ6_K {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr bool kHasHalves = true;
  using Codes = ByteHalf[2];
  template <int kBlocks>
  struct Raw {
    uint16_t pairs[kBlocks] = {};  // pairs of signed bytes
    f16 d = {};
    LB_DEVICE void read(const OutputRow& row, int block) {
      LB_UNROLL
      for (int i = 0; i < kBlocks; ++i) pairs[i] = load_cached<uint16_t>(row.planes[2] + 2 * (block + i));
      d = load_cached<f16>(row.planes[3] + uint32_t(block) / 8 * 2);
    }
    LB_DEVICE f32x2 field(int i) const {
      return {to_f32(d) * float(int8_t(pairs[i])), to_f32(d) * float(int8_t(pairs[i] >> 8))};
    }
  };
  LB_DEVICE static void codes(ByteHalf (&a)[2], const ChunkRows<kType>& rows, int block) {
    ByteHalf packed;
    load(packed, rows.first + block * 16, rows.kStride0);
    OperandRows<u32x2> upper;  // one word per half; two bits for each of the half's four-byte words
    load(upper, rows.second + block * 8, rows.kStride1);
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      LB_UNROLL
      for (int i = 0; i < int(sizeof(ByteHalf) / 4); ++i)
        a[half].r[i] = (packed.r[i] >> 4 * half & 0x0f0f0f0fu) |
                       (upper.v[operand_row(i)][half] >> 2 * operand_word(i) & 0x03030303u) << 4;
    }
  }
  LB_DEVICE static f16x2 pair(const ByteHalf (&a)[2], int half, int i, int odd) {
    return byte_pair<32>(a[half].r[i], odd);
  }
};

// Quantised weights as f16: the exact code times the scale, minus the min, each rounded to f16, with one rounding of
// the result. x is f16 with a scale per row. A lane loads the scales of kBlocks blocks of an output.
template <class Format>
struct ExpandedWeights {
  using Value = f16;
  static constexpr DType kType = Format::kType;
  static constexpr bool kHasRowScales = true;
  static constexpr bool kIsFp8 = false;

  template <int kFrags>
  struct Scales {
    static constexpr int kBlocks = kFrags * kWarpgroupBlocks / 2, kOutLanes = kWarpgroupBlocks / kBlocks;
    static_assert(kFrags * kWarpgroupBlocks * 16 * sizeof(u32x2) <= kWarpgroupWarpBytes);
    OutputRow row;
    typename Format::template Raw<kBlocks> raw;
    u32x2* unpacked;  // [kFrags, kWarpgroupBlocks, 16]: pairs of field 0, pairs of field 1

    LB_DEVICE explicit Scales(void* warp_memory) : unpacked(static_cast<u32x2*>(warp_memory)) {}
    template <class Cursor>
    LB_DEVICE void find(const Gemm& p, const Cursor& at) {
      const int n_in = p.group.products[0].n_in;
      const auto weights = at.weight_row(warp() * 16 * kFrags + lane() / kOutLanes);
      const quant::PlaneLayout layout = quant::plane_layout(kType, at.n_out, n_in);
      LB_UNROLL
      for (int i = 0; i < quant::kMaxPlanes; ++i)
        row.planes[i] = weights.w + layout.offset[i] + size_t(weights.out) * layout.row_bytes[i];
      row.n_blocks = n_in / kRoundBlock;
    }
    LB_DEVICE void read(int chunk) { raw.read(row, chunk * kWarpgroupBlocks + first_block()); }
    LB_DEVICE void unpack() const {
      const int out = lane() / kOutLanes;
      LB_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        const f32x2 field = raw.field(i);
        store(unpacked + (out / 16 * kWarpgroupBlocks + first_block() + i) * 16 + out % 16,
              u32x2{twice(to_f16(field[0]).bits), twice(to_f16(field[1]).bits)});
      }
    }

   private:
    LB_DEVICE static int first_block() { return lane() % kOutLanes * kBlocks; }
  };

  template <int kFrags>
  struct Operands {
    OperandRows<u32x2> fields[kFrags];
    typename Format::Codes codes[kFrags];
    LB_DEVICE Operands(const uint8_t* weights, const Scales<kFrags>& scales, int block) {
      LB_UNROLL
      for (int frag = 0; frag < kFrags; ++frag) {
        const ChunkRows<kType> rows(weights, kGemmWarps * 16 * kFrags, (warp() * kFrags + frag) * 16);
        Format::codes(codes[frag], rows, block);
        load(fields[frag], scales.unpacked + (frag * kWarpgroupBlocks + block) * 16, int(sizeof(u32x2)));
      }
    }
    // Permutes k: x has value k (of 16) at pair_index(k).
    LB_DEVICE void half(FragmentA<f16> (&a)[kFrags], int i) const {
      LB_UNROLL
      for (int frag = 0; frag < kFrags; ++frag) {
        LB_UNROLL
        for (int word = 0; word < 4; ++word) {
          const u32x2 field = fields[frag].v[operand_row(word % 2)];
          const f16x2 code = Format::pair(codes[frag], i, word % 2, word / 2);
          const uint32_t scale = field[Format::kHasHalves ? i : 0], min = Format::kHasHalves ? 0 : field[1];
          set_pair(a[frag], word, fma2(code, pair_of(scale), pair_of(min)));
        }
      }
    }
  };
};

// Plain 16-bit weights, unchanged.
template <class T, DType kType_>
struct PlainWeights {
  using Value = T;
  static constexpr DType kType = kType_;
  static constexpr bool kHasRowScales = false;
  static constexpr bool kIsFp8 = false;

  template <int kFrags>
  struct Scales {
    LB_DEVICE explicit Scales(void*) {}
    template <class Cursor>
    LB_DEVICE void find(const Gemm&, const Cursor&) {}
    LB_DEVICE void read(int) {}
    LB_DEVICE void unpack() const {}
  };

  template <int kFrags>
  struct Operands {
    const uint8_t* weights;
    int block;
    LB_DEVICE Operands(const uint8_t* weights_, const Scales<kFrags>&, int run_) : weights(weights_), block(run_) {}
    LB_DEVICE void half(FragmentA<T> (&a)[kFrags], int i) const {
      LB_UNROLL
      for (int frag = 0; frag < kFrags; ++frag) {
        const ChunkRows<kType> rows(weights, kGemmWarps * 16 * kFrags, (warp() * kFrags + frag) * 16);
        load_shared(a[frag], reinterpret_cast<const T*>(rows.first) + block * 32 + i * 16, rows.kStride0 / 2);
      }
    }
  };
};

// fp8 weights, unchanged. A chunk is the 128 values of a scale.
struct Fp8Weights {
  using Value = fp8_e4m3;
  static constexpr DType kType = DType::kF8_E4M3;
  static constexpr bool kHasRowScales = false;
  static constexpr bool kIsFp8 = true;

  template <int kFrags>
  struct Scales {
    const float* row;
    float next;
    float* unpacked;  // [kFrags, 16]

    LB_DEVICE explicit Scales(void* warp_memory) : unpacked(static_cast<float*>(warp_memory)) {}
    template <class Cursor>
    LB_DEVICE void find(const Gemm& p, const Cursor& at) {
      const quant::PlaneLayout layout = quant::plane_layout(kType, at.n_out, p.group.products[0].n_in);
      const auto weights = at.weight_row(warp() * 16 * kFrags + own_out());
      row = reinterpret_cast<const float*>(weights.w + layout.offset[1] + size_t(weights.out) * layout.row_bytes[1]);
    }
    LB_DEVICE void read(int chunk) { next = load_cached<float>(row + chunk); }
    LB_DEVICE void unpack() const {
      if (lane() < 16 * kFrags) store(unpacked + own_out(), next);
    }

   private:
    LB_DEVICE static int own_out() { return lane() % (16 * kFrags); }
  };
};

}  // namespace lb::gpu
