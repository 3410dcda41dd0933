// Blocks to planes and back, one block at a time.
#include "quant/repack.h"

#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace lb::quant {
namespace {

// One block of the file and its part of each plane: to(...) fills the parts, from(...) the block.

uint8_t nibble(const uint8_t* bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }
void set_nibble(uint8_t* bytes, int i, int code) { bytes[i % 16] |= uint8_t(code << (i < 16 ? 0 : 4)); }

template <class Block>
struct Codec;

template <>
struct Codec<BlockQ8_0> {
  static void to(const BlockQ8_0& b, uint8_t* const* parts) {
    std::memcpy(parts[0], b.q, 32);
    std::memcpy(parts[1], &b.d, 2);
  }
  static void from(const uint8_t* const* parts, BlockQ8_0& b) {
    std::memcpy(b.q, parts[0], 32);
    std::memcpy(&b.d, parts[1], 2);
  }
};

template <>
struct Codec<BlockQ4_0> {
  static void to(const BlockQ4_0& b, uint8_t* const* parts) {
    std::memcpy(parts[0], b.qs, 16);
    std::memcpy(parts[1], &b.d, 2);
  }
  static void from(const uint8_t* const* parts, BlockQ4_0& b) {
    std::memcpy(b.qs, parts[0], 16);
    std::memcpy(&b.d, parts[1], 2);
  }
};

template <>
struct Codec<BlockQ4_K> {
  static void to(const BlockQ4_K& b, uint8_t* const* parts) {
    uint32_t words[4] = {uint32_t(b.d) | uint32_t(b.dmin) << 16};
    for (int run = 0; run < 8; ++run) {
      for (int i = 0; i < 32; ++i) set_nibble(parts[0] + 16 * run, i, b.qs[run / 2 * 32 + i] >> run % 2 * 4 & 15);
      const uint8_t* s = b.scales;
      const uint32_t scale = run < 4 ? s[run] & 63 : (s[run + 4] & 15) | s[run - 4] >> 6 << 4;
      const uint32_t min = run < 4 ? s[run + 4] & 63 : s[run + 4] >> 4 | s[run] >> 6 << 4;
      const uint64_t field = uint64_t(scale | min << 6) << 12 * run % 32;
      words[1 + 12 * run / 32] |= uint32_t(field);
      if (field >> 32) words[2 + 12 * run / 32] |= uint32_t(field >> 32);
    }
    std::memcpy(parts[1], words, 16);
  }
  static void from(const uint8_t* const* parts, BlockQ4_K& b) {
    uint32_t words[4];
    std::memcpy(words, parts[1], 16);
    b.d = uint16_t(words[0]);
    b.dmin = uint16_t(words[0] >> 16);
    for (int run = 0; run < 8; ++run) {
      for (int i = 0; i < 32; ++i) b.qs[run / 2 * 32 + i] |= uint8_t(nibble(parts[0] + 16 * run, i) << run % 2 * 4);
      const uint32_t field = k4_fields(words, run), scale = field & 63, min = field >> 6;
      if (run < 4) {
        b.scales[run] |= uint8_t(scale);
        b.scales[run + 4] |= uint8_t(min);
      } else {
        b.scales[run + 4] |= uint8_t((scale & 15) | (min & 15) << 4);
        b.scales[run - 4] |= uint8_t(scale >> 4 << 6);
        b.scales[run] |= uint8_t(min >> 4 << 6);
      }
    }
  }
};

// Value i of run `run` of a Q6_K block: byte of ql and its shift, byte of qh and its shift.
struct Q6Place {
  int low, low_shift, high, high_shift;
  Q6Place(int run, int i)
      : low(run / 4 * 64 + run % 2 * 32 + i),
        low_shift(run % 4 / 2 * 4),
        high(run / 4 * 32 + i),
        high_shift(run % 4 * 2) {}
};

template <>
struct Codec<BlockQ6_K> {
  static void to(const BlockQ6_K& b, uint8_t* const* parts) {
    for (int run = 0; run < 8; ++run)
      for (int i = 0; i < 32; ++i) {
        const Q6Place at(run, i);
        set_nibble(parts[0] + 16 * run, i, b.ql[at.low] >> at.low_shift & 15);
        parts[1][8 * run + i / 16 * 4 + i % 4] |= uint8_t((b.qh[at.high] >> at.high_shift & 3) << i % 16 / 4 * 2);
      }
    std::memcpy(parts[2], b.scales, 16);
    std::memcpy(parts[3], &b.d, 2);
  }
  static void from(const uint8_t* const* parts, BlockQ6_K& b) {
    for (int run = 0; run < 8; ++run)
      for (int i = 0; i < 32; ++i) {
        const Q6Place at(run, i);
        b.ql[at.low] |= uint8_t(nibble(parts[0] + 16 * run, i) << at.low_shift);
        const int high = parts[1][8 * run + i / 16 * 4 + i % 4] >> i % 16 / 4 * 2 & 3;
        b.qh[at.high] |= uint8_t(high << at.high_shift);
      }
    std::memcpy(b.scales, parts[2], 16);
    std::memcpy(&b.d, parts[3], 2);
  }
};

// f(block, parts) for every block of a matrix; both sides start as zeros.
template <class Block, class Byte, class F>
void for_blocks(const PlaneLayout& layout, int n_out, int n_in, Byte* planes, F&& f) {
  const PlaneFormat format = plane_format(Block::kType);
  const int row_blocks = n_in / format.block_values;
  for (int o = 0; o < n_out; ++o)
    for (int i = 0; i < row_blocks; ++i) {
      Byte* parts[kMaxPlanes] = {};
      for (int j = 0; j < layout.n_planes; ++j)
        parts[j] = planes + layout.offset[j] + o * layout.row_bytes[j] + size_t(i) * format.part_bytes[j];
      f(size_t(o) * row_blocks + i, parts);
    }
}

template <class Block>
void blocks_to_planes(const PlaneLayout& layout, int n_out, int n_in, const void* blocks, uint8_t* planes) {
  for_blocks<Block>(layout, n_out, n_in, planes, [&](size_t i, uint8_t* const* parts) {
    Codec<Block>::to(static_cast<const Block*>(blocks)[i], parts);
  });
}

template <class Block>
void planes_to_blocks(const PlaneLayout& layout, int n_out, int n_in, const uint8_t* planes, void* blocks) {
  for_blocks<Block>(layout, n_out, n_in, planes, [&](size_t i, const uint8_t* const* parts) {
    Block block = {};
    Codec<Block>::from(parts, block);
    static_cast<Block*>(blocks)[i] = block;
  });
}

}  // namespace

PlaneLayout checked_plane_layout(DType type, int n_out, int n_in) {
  const PlaneFormat format = plane_format(type);
  LB_CHECK(format.n_planes > 0, kUnsupported, name(type), " weights have no device layout");
  LB_CHECK(n_out >= 0 && n_in >= 0 && n_in % format.block_values == 0, kInvalid, name(type), " rows are multiples of ",
           format.block_values, " values, got [", n_out, ", ", n_in, "]");
  return plane_layout(type, n_out, n_in);
}

void to_planes(DType type, int n_out, int n_in, const void* blocks, std::byte* planes) {
  const PlaneLayout layout = checked_plane_layout(type, n_out, n_in);
  std::memset(planes, 0, layout.bytes);
  auto* to = reinterpret_cast<uint8_t*>(planes);
  switch (type) {
    case DType::kQ8_0: return blocks_to_planes<BlockQ8_0>(layout, n_out, n_in, blocks, to);
    case DType::kQ4_0: return blocks_to_planes<BlockQ4_0>(layout, n_out, n_in, blocks, to);
    case DType::kQ4_K: return blocks_to_planes<BlockQ4_K>(layout, n_out, n_in, blocks, to);
    case DType::kQ6_K: return blocks_to_planes<BlockQ6_K>(layout, n_out, n_in, blocks, to);
    default: break;
  }
  const size_t bytes = row_bytes(type, size_t(n_in));  // plain numbers: only the rows' padding is new
  for (int o = 0; o < n_out; ++o)
    std::memcpy(to + o * layout.row_bytes[0], static_cast<const uint8_t*>(blocks) + o * bytes, bytes);
}

void from_planes(DType type, int n_out, int n_in, const std::byte* planes, void* blocks) {
  const PlaneLayout layout = checked_plane_layout(type, n_out, n_in);
  const auto* from = reinterpret_cast<const uint8_t*>(planes);
  switch (type) {
    case DType::kQ8_0: return planes_to_blocks<BlockQ8_0>(layout, n_out, n_in, from, blocks);
    case DType::kQ4_0: return planes_to_blocks<BlockQ4_0>(layout, n_out, n_in, from, blocks);
    case DType::kQ4_K: return planes_to_blocks<BlockQ4_K>(layout, n_out, n_in, from, blocks);
    case DType::kQ6_K: return planes_to_blocks<BlockQ6_K>(layout, n_out, n_in, from, blocks);
    default: break;
  }
  const size_t bytes = row_bytes(type, size_t(n_in));
  for (int o = 0; o < n_out; ++o)
    std::memcpy(static_cast<uint8_t*>(blocks) + o * bytes, from + o * layout.row_bytes[0], bytes);
}

}  // namespace lb::quant
