// Converts blocks to planes and back, one block at a time, in loops over words that compilers vectorise.
#include "quant/repack.h"

#include <algorithm>
#include <concepts>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "quant/rows.h"

namespace lb::quant {
namespace {

template <class T>
void put(uint8_t* to, const T& value) {
  std::memcpy(to, &value, sizeof value);
}
template <class T>
void get(T& value, const uint8_t* from) {
  std::memcpy(&value, from, sizeof value);
}
template <class T>
T read(const uint8_t* from) {
  T value;
  get(value, from);
  return value;
}

// Converts between the file's 32 bytes, whose low nibbles are one group of 32 values and whose high nibbles are
// another, and the plane's 16 bytes per group. In both directions the low nibbles of x and y form one result, the high
// nibbles the other.
void exchange_nibbles(const uint8_t* x, const uint8_t* y, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < 16; ++i) {
    const uint8_t a = x[i], b = y[i];
    low[i] = uint8_t((a & 15) | b << 4);
    high[i] = uint8_t(a >> 4 | (b & 0xf0));
  }
}

// Transposes fields of kBits bits: each byte of a 4-byte word has 8 / kBits fields, and field i of word j moves to
// field j of word i. The function is its own inverse with the strides (in words) exchanged.
template <int kBits>
void transpose_fields(const uint8_t* from, int from_stride, uint8_t* to, int to_stride) {
  constexpr uint32_t kField = 0x01010101u * ((1 << kBits) - 1);
  for (int i = 0; i < 8 / kBits; ++i) {
    uint32_t word = 0;
    for (int j = 0; j < 8 / kBits; ++j)
      word |= (read<uint32_t>(from + 4 * j * from_stride) >> kBits * i & kField) << kBits * j;
    put(to + 4 * i * to_stride, word);
  }
}

// The 64 bytes of 2-bit fields of a K quant. In the file, one byte has value l of each of the four groups of 32 values
// of half a block.
void two_bits_to_plane(const uint8_t (&bytes)[64], uint8_t* plane) {
  for (int i = 0; i < 4; ++i) transpose_fields<2>(bytes + 16 * i, 1, plane + i / 2 * 32 + i % 2 * 4, 2);
}
void two_bits_from_plane(const uint8_t* plane, uint8_t (&bytes)[64]) {
  for (int i = 0; i < 4; ++i) transpose_fields<2>(plane + i / 2 * 32 + i % 2 * 4, 2, bytes + 16 * i, 1);
}

// The two words of eight six-bit scales and d.
void put_six_bit_scales(const uint8_t* scales, uint16_t d, uint8_t* part) {
  for (int h = 0; h < 2; ++h, scales += 4)
    put(part + 4 * h,
        uint32_t(scales[0] | scales[1] << 6 | scales[2] << 12 | scales[3] << 18) | uint32_t(d >> 8 * h & 0xff) << 24);
}
uint16_t get_six_bit_scales(const uint8_t* part, uint8_t* scales) {
  uint32_t words[2];
  get(words, part);
  for (int i = 0; i < 8; ++i) scales[i] = words[i / 4] >> 6 * (i % 4) & 63;
  return six_bit_d(words[0], words[1]);
}

// The four words of scales and mins of Q4_K and Q5_K.
template <class Block>
void put_k4_scales(const Block& b, uint8_t* part) {
  const uint8_t* s = b.scales;
  uint32_t words[4] = {uint32_t(b.d) | uint32_t(b.dmin) << 16};
  for (int i = 0; i < 8; ++i) {
    const uint32_t scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    const uint32_t min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
    const uint64_t field = uint64_t(scale | min << 6) << 12 * i % 32;
    words[1 + 12 * i / 32] |= uint32_t(field);
    if (field >> 32) words[2 + 12 * i / 32] |= uint32_t(field >> 32);
  }
  put(part, words);
}
template <class Block>
void get_k4_scales(Block& b, const uint8_t* part) {
  uint32_t words[4];
  get(words, part);
  b.d = uint16_t(words[0]);
  b.dmin = uint16_t(words[0] >> 16);
  for (int i = 0; i < 8; ++i) {
    const uint32_t field = k4_fields(words, i), scale = field & 63, min = field >> 6;
    if (i < 4) {
      b.scales[i] |= uint8_t(scale);
      b.scales[i + 4] |= uint8_t(min);
    } else {
      b.scales[i + 4] |= uint8_t((scale & 15) | (min & 15) << 4);
      b.scales[i - 4] |= uint8_t(scale >> 4 << 6);
      b.scales[i] |= uint8_t(min >> 4 << 6);
    }
  }
}

// One block of the file <-> its part in each plane. to_parts() writes every byte of the parts; from_parts() ORs into a
// zeroed block.
using Parts = uint8_t* const*;
using ConstParts = const uint8_t* const*;

void to_parts(const BlockQ8_0& b, Parts parts) {
  put(parts[0], b.q);
  put(parts[1], b.d);
}
void from_parts(ConstParts parts, BlockQ8_0& b) {
  get(b.q, parts[0]);
  get(b.d, parts[1]);
}

// Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4: the file has the plane's order of nibbles, and fifth bits in the order of the
// values.
template <class Block>
concept NibbleBlock32 = Block::kValues == 32 && sizeof(Block::qs) == 16;

template <NibbleBlock32 Block>
void to_parts(const Block& b, Parts parts) {
  put(parts[0], b.qs);
  uint8_t* scales = parts[1];
  if constexpr (requires { b.qh; }) {
    const auto bits = read<uint32_t>(b.qh);
    uint32_t word = 0;
    for (int w = 0; w < 8; ++w)
      word |= ((bits >> 4 * w & 15) * 0x00204081u & 0x01010101u) << w;  // the product spreads four bits to four bytes
    put(parts[1], word);
    scales = parts[2];
  }
  if constexpr (requires { b.e; }) put(scales, b.e);
  if constexpr (requires { b.d; }) put(scales, b.d);
  if constexpr (requires { b.m; }) put(scales + 2, b.m);
}
template <NibbleBlock32 Block>
void from_parts(ConstParts parts, Block& b) {
  get(b.qs, parts[0]);
  const uint8_t* scales = parts[1];
  if constexpr (requires { b.qh; }) {
    for (int i = 0; i < 32; ++i) b.qh[i / 8] |= uint8_t((parts[1][i % 4] >> i / 4 & 1) << i % 8);
    scales = parts[2];
  }
  if constexpr (requires { b.e; }) get(b.e, scales);
  if constexpr (requires { b.d; }) get(b.d, scales);
  if constexpr (requires { b.m; }) get(b.m, scales + 2);
}

void to_parts(const BlockIQ4_XS& b, Parts parts) {
  put(parts[0], b.qs);
  uint8_t scales[8];
  for (int i = 0; i < 8; ++i)
    scales[i] = uint8_t((b.scales_l[i / 2] >> 4 * (i % 2) & 15) | (b.scales_h[i / 4] >> 2 * (i % 4) & 3) << 4);
  put_six_bit_scales(scales, b.d, parts[1]);
}
void from_parts(ConstParts parts, BlockIQ4_XS& b) {
  get(b.qs, parts[0]);
  uint8_t scales[8];
  b.d = get_six_bit_scales(parts[1], scales);
  for (int i = 0; i < 8; ++i) {
    b.scales_l[i / 2] |= uint8_t((scales[i] & 15) << 4 * (i % 2));
    b.scales_h[i / 4] |= uint8_t(scales[i] >> 4 << 2 * (i % 4));
  }
}

// Q4_K Q5_K: 32 bytes of the file have two consecutive sub-blocks.
template <class Block>
concept NibbleBlock256 = std::same_as<Block, BlockQ4_K> || std::same_as<Block, BlockQ5_K>;

template <NibbleBlock256 Block>
void to_parts(const Block& b, Parts parts) {
  for (int i = 0; i < 128; i += 32) exchange_nibbles(b.qs + i, b.qs + i + 16, parts[0] + i, parts[0] + i + 16);
  if constexpr (requires { b.qh; }) transpose_fields<1>(b.qh, 1, parts[1], 1);
  put_k4_scales(b, parts[plane_format(Block::kType).n_planes - 1]);
}
template <NibbleBlock256 Block>
void from_parts(ConstParts parts, Block& b) {
  for (int i = 0; i < 128; i += 32) exchange_nibbles(parts[0] + i, parts[0] + i + 16, b.qs + i, b.qs + i + 16);
  if constexpr (requires { b.qh; }) transpose_fields<1>(parts[1], 1, b.qh, 1);
  get_k4_scales(b, parts[plane_format(Block::kType).n_planes - 1]);
}

// Q6_K: 32 bytes of the file have the groups of 32 values 0 and 2, 1 and 3, 4 and 6, or 5 and 7.
void to_parts(const BlockQ6_K& b, Parts parts) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t* from = b.ql + 32 * i;
    uint8_t* to = parts[0] + i / 2 * 64 + i % 2 * 16;
    exchange_nibbles(from, from + 16, to, to + 32);
  }
  two_bits_to_plane(b.qh, parts[1]);
  put(parts[2], b.scales);
  put(parts[3], b.d);
}
void from_parts(ConstParts parts, BlockQ6_K& b) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t* from = parts[0] + i / 2 * 64 + i % 2 * 16;
    uint8_t* to = b.ql + 32 * i;
    exchange_nibbles(from, from + 32, to, to + 16);
  }
  two_bits_from_plane(parts[1], b.qh);
  get(b.scales, parts[2]);
  get(b.d, parts[3]);
}

void to_parts(const BlockQ3_K& b, Parts parts) {
  two_bits_to_plane(b.qs, parts[0]);
  transpose_fields<1>(b.hmask, 1, parts[1], 1);
  uint8_t scales[16];
  for (int i = 0; i < 16; ++i)
    scales[i] = uint8_t((b.scales[i % 8] >> 4 * (i / 8) & 15) | (b.scales[8 + i % 4] >> 2 * (i / 4) & 3) << 4);
  for (int h = 0; h < 2; ++h) put_six_bit_scales(scales + 8 * h, b.d, parts[2] + 8 * h);
}
void from_parts(ConstParts parts, BlockQ3_K& b) {
  two_bits_from_plane(parts[0], b.qs);
  transpose_fields<1>(parts[1], 1, b.hmask, 1);
  uint8_t scales[16];
  for (int h = 0; h < 2; ++h) b.d = get_six_bit_scales(parts[2] + 8 * h, scales + 8 * h);
  for (int i = 0; i < 16; ++i) {
    b.scales[i % 8] |= uint8_t((scales[i] & 15) << 4 * (i / 8));
    b.scales[8 + i % 4] |= uint8_t(scales[i] >> 4 << 2 * (i / 4));
  }
}

void to_parts(const BlockQ2_K& b, Parts parts) {
  two_bits_to_plane(b.qs, parts[0]);
  put(parts[1], b.scales);
  put(parts[2], b.d);
  put(parts[2] + 2, b.dmin);
}
void from_parts(ConstParts parts, BlockQ2_K& b) {
  two_bits_from_plane(parts[0], b.qs);
  get(b.scales, parts[1]);
  get(b.d, parts[2]);
  get(b.dmin, parts[2] + 2);
}

// NVFP4: a scale of 480, which the plane has as 0x7f, needs a sign bit in the file. 8 bytes of the file have the
// nibbles of 16 values; the plane pairs the first and the second 16 of 32.
template <class Block>
concept Nvfp4Block = std::derived_from<Block, BlockNVFP4>;

template <Nvfp4Block Block>
void to_parts(const Block& b, Parts parts) {
  for (int pair = 0; pair < 2; ++pair) {
    const uint8_t *first = b.qs[2 * pair], *second = b.qs[2 * pair + 1];
    uint8_t* to = parts[0] + 16 * pair;
    for (int i = 0; i < 8; ++i) {
      to[i] = uint8_t((first[i] & 15) | second[i] << 4);
      to[i + 8] = uint8_t(first[i] >> 4 | (second[i] & 0xf0));
    }
  }
  for (int i = 0; i < 4; ++i) parts[1][i] = b.d[i] == 0x7f ? 0 : b.d[i] & 0x7f;
}
template <Nvfp4Block Block>
void from_parts(ConstParts parts, Block& b) {
  for (int pair = 0; pair < 2; ++pair) {
    uint8_t *first = b.qs[2 * pair], *second = b.qs[2 * pair + 1];
    const uint8_t* from = parts[0] + 16 * pair;
    for (int i = 0; i < 8; ++i) {
      first[i] = uint8_t((from[i] & 15) | from[i + 8] << 4);
      second[i] = uint8_t(from[i] >> 4 | (from[i + 8] & 0xf0));
    }
  }
  for (int i = 0; i < 4; ++i) b.d[i] = parts[1][i] == 0x7f ? 0xff : parts[1][i];
}

void to_parts(const BlockF8& b, Parts parts) {
  put(parts[0], b.q);
  put(parts[1], b.scale);
}
void from_parts(ConstParts parts, BlockF8& b) {
  get(b.q, parts[0]);
  get(b.scale, parts[1]);
}

// The only entry of a row in the last plane <-> the header of the row's blocks. Blocks without headers have factor 1.
template <class Block>
void put_row_entry(const Block* first, uint8_t* entry) {
  if constexpr (kHeaderBytes<Block> > 0)
    put(entry, header_of(first));
  else if constexpr (plane_format(Block::kType).row_entry_bytes > 0)
    put(entry, ScaledHeader{1, 0});
}
template <class Block>
void get_row_entry(const uint8_t* entry, Block* first) {
  if constexpr (kHeaderBytes<Block> > 0)
    std::memcpy(reinterpret_cast<uint8_t*>(first) - kHeaderBytes<Block>, entry, kHeaderBytes<Block>);
}

struct RowRange {
  int first, end;
};

// Calls f(block, its part in each plane) for every block of some rows of a matrix, and `entry` with a row's first block
// and the row's entry in the last plane.
template <class Block, class Byte, class Pointer, class F, class Entry>
void for_blocks(const PlaneLayout& layout, RowRange rows, int n_in, Byte* planes, Pointer* blocks, F&& f,
                Entry&& entry) {
  const PlaneFormat format = plane_format(Block::kType);
  const int n_blocks = n_in / format.block_values;
  for (int o = rows.first; o < rows.end; ++o) {
    Byte* parts[kMaxPlanes] = {};
    for (int j = 0; j < layout.n_planes; ++j) parts[j] = planes + layout.offset[j] + o * layout.row_bytes[j];
    auto* block = const_cast<Block*>(row_blocks<Block>(blocks, o, n_in));
    entry(block, parts[layout.n_planes - 1]);
    for (int i = 0; i < n_blocks; ++i) {
      f(block[i], parts);
      for (int j = 0; j < layout.n_planes; ++j) parts[j] += format.part_bytes[j];
    }
  }
}

// Converts rows of a type without planes from blocks to BF16.
template <class Block>
void expand_rows(const PlaneLayout& layout, RowRange rows, int n_in, const Block* blocks, uint8_t* planes) {
  const size_t padded = layout.row_bytes[0];
  const Block* block = blocks + rows.first * (size_t(n_in) / Block::kValues);
  for (int o = rows.first; o < rows.end; ++o) {
    uint8_t* to = planes + o * padded;
    for (int i = 0; i < n_in; i += Block::kValues) {
      float values[Block::kValues];
      dequantize(*block++, values);
      for (float value : values) {
        const uint16_t rounded = f32_to_bf16(value);
        std::memcpy(to, &rounded, sizeof rounded);
        to += sizeof rounded;
      }
    }
    std::memset(to, 0, planes + (o + 1) * padded - to);
  }
}

// Calls f(Block{}) for every type with blocks.
template <class F>
bool visit_any_block(DType type, F&& f) {
  if (type != DType::kF8_E4M3) return visit_block(type, f);
  f(BlockF8{});
  return true;
}

void blocks_to_planes(DType type, const PlaneLayout& layout, RowRange rows, int n_in, const void* blocks,
                      uint8_t* planes) {
  if (visit_any_block(type, [&](auto tag) {
        using Block = decltype(tag);
        if constexpr (has_planes(Block::kType))
          for_blocks<Block>(
              layout, rows, n_in, planes, blocks, [](const Block& block, Parts parts) { to_parts(block, parts); },
              [](const Block* first, uint8_t* entry) { put_row_entry(first, entry); });
        else
          expand_rows(layout, rows, n_in, static_cast<const Block*>(blocks), planes);
      }))
    return;
  const size_t bytes = row_bytes(type, size_t(n_in)), padded = layout.row_bytes[0];
  for (int o = rows.first; o < rows.end; ++o) {
    std::memcpy(planes + o * padded, static_cast<const uint8_t*>(blocks) + o * bytes, bytes);
    std::memset(planes + o * padded + bytes, 0, padded - bytes);
  }
}

void planes_to_blocks(DType type, const PlaneLayout& layout, RowRange rows, int n_in, const uint8_t* planes,
                      void* blocks) {
  if (visit_any_block(type, [&](auto tag) {
        using Block = decltype(tag);
        if constexpr (has_planes(Block::kType))
          for_blocks<Block>(
              layout, rows, n_in, planes, blocks,
              [](Block& to, ConstParts parts) {
                Block block = {};
                from_parts(parts, block);
                to = block;
              },
              [](Block* first, const uint8_t* entry) { get_row_entry(entry, first); });
      }))
    return;
  const size_t bytes = row_bytes(type, size_t(n_in)), padded = layout.row_bytes[0];
  for (int o = rows.first; o < rows.end; ++o)
    std::memcpy(static_cast<uint8_t*>(blocks) + o * bytes, planes + o * padded, bytes);
}

}  // namespace

PlaneLayout checked_plane_layout(DType type, int n_out, int n_in) {
  const int block_values = static_cast<int>(info(type).block_values);
  LB_CHECK(n_out >= 0 && n_in >= 0 && n_in % block_values == 0, kInvalid, name(type), " rows are multiples of ",
           block_values, " values, got [", n_out, ", ", n_in, "]");
  return plane_layout(type, n_out, n_in);
}

void to_planes(DType type, int n_out, int n_in, const void* blocks, std::byte* planes) {
  to_planes(type, n_out, n_in, blocks, planes, 0, n_out);
}

void to_planes(DType type, int n_out, int n_in, const void* blocks, std::byte* planes, int first_row, int n_rows) {
  const PlaneLayout layout = checked_plane_layout(type, n_out, n_in);
  LB_CHECK(first_row >= 0 && n_rows >= 0 && first_row <= n_out - n_rows, kInvalid, "rows [", first_row, ", ",
           first_row + n_rows, ") of ", n_out);
  blocks_to_planes(type, layout, {first_row, first_row + n_rows}, n_in, blocks, reinterpret_cast<uint8_t*>(planes));
  if (first_row + n_rows < n_out) return;
  for (int j = 0; j < layout.n_planes; ++j) {  // the task with the last row zeroes the padding after it
    const size_t end = layout.offset[j] + n_out * layout.row_bytes[j];
    const size_t next = j + 1 < layout.n_planes ? layout.offset[j + 1] : layout.bytes;
    std::fill(planes + end, planes + next, std::byte{0});
  }
}

void from_planes(DType type, int n_out, int n_in, const std::byte* planes, void* blocks) {
  LB_CHECK(has_planes(type), kInvalid, name(type), " has no planes of its own");
  const PlaneLayout layout = checked_plane_layout(type, n_out, n_in);
  planes_to_blocks(type, layout, {0, n_out}, n_in, reinterpret_cast<const uint8_t*>(planes), blocks);
}

}  // namespace lb::quant
