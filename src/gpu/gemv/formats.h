// Common parts of the GEMV formats: pieces of planes (quant/planes.h) and rounded x. A format defines how a thread
// reads and multiplies a weight type; formats are in formats_plain.h, formats_16.h, formats_32.h and formats_fp.h. A
// format has
//   kType    the weight type
//   kValues  values of a piece: 16 bytes of codes or plain numbers, and the scales that belong to them
//   Piece    a piece in registers
//   Rows     cursor over a thread's pieces of a weight row: read(ahead) loads the piece `ahead` further in the row,
//            advance() moves on to the team's next row
//   X        the values of x for one piece, in registers for the whole launch
//   dot      the dot product of a piece, at `index` in its row, with its X
// For kernels that decode scales before x is ready (gemv_ring, gemv_whole), it also has
//   Scale, scale_of    the decoded scales of a piece
#pragma once

#include "gpu/gemv/shape.h"
#include "quant/planes.h"

namespace lb::gpu {

// One entry from each of several planes, in registers.
template <class First, class... Rest>
struct Parts {
  First first = {};
  Parts<Rest...> rest = {};
};
template <class First>
struct Parts<First> {
  First first = {};
};
template <int kPlane, class... Entries>
LB_DEVICE const auto& part(const Parts<Entries...>& parts) {
  if constexpr (kPlane == 0) {
    return parts.first;
  } else {
    return part<kPlane - 1>(parts.rest);
  }
}

LB_DEVICE const uint8_t* plane(const GemvMatrix& matrix, int i) {
  return i == 0 ? matrix.w : matrix.w + matrix.offset[i - 1] * quant::kPlaneAlignment;
}

inline constexpr int kAllPieces = 1 << 30;

// Rows of a quantised type. For a piece of kValues values, a thread reads one of Entries from each plane. If an entry
// covers several pieces, all of their threads read it.
template <DType kType, int kValues, class... Entries>
struct PlaneRows {
  using Piece = Parts<Entries...>;
  static constexpr int kPlanes = sizeof...(Entries);
  const uint8_t* planes[kPlanes] = {};

  PlaneRows() = default;
  LB_DEVICE PlaneRows(const Gemv& p, int matrix, int row, int piece) {
    LB_UNROLL
    for (int i = 0; i < kPlanes; ++i)
      planes[i] = plane(p.matrices[matrix], i) + long(row) * p.row_bytes[i] + piece / sharers(i) * entry_bytes(i);
  }
  LB_DEVICE Piece read(int ahead) const {  // ahead: a multiple of 32
    Piece piece;
    read_parts<0>(piece, ahead);
    return piece;
  }
  LB_DEVICE void advance(const Gemv& p) {
    LB_UNROLL
    for (int i = 0; i < kPlanes; ++i) planes[i] += p.n_teams * p.row_bytes[i];
  }

  // Rows in a slot of shared memory: plane after plane; each plane has `slot_rows` rows of each team.
  struct InSlot {
    int offsets[kPlanes] = {};  // byte offset in the slot of the thread's piece of its first row, in each plane

    LB_DEVICE InSlot(const Gemv& p, int slot_rows, int team, int piece) {
      int plane_offset = 0;
      LB_UNROLL
      for (int i = 0; i < kPlanes; ++i) {
        offsets[i] = plane_offset + team * p.row_bytes[i] + piece / sharers(i) * entry_bytes(i);
        plane_offset += slot_rows * p.n_teams * p.row_bytes[i];
      }
    }
    LB_DEVICE Piece read(const Gemv& p, const uint8_t* slot, int row) const {
      Piece piece;
      read_parts<0>(piece, p, slot, row * p.n_teams);
      return piece;
    }

   private:
    template <int kPlane, class First, class... Rest>
    LB_DEVICE void read_parts(Parts<First, Rest...>& parts, const Gemv& p, const uint8_t* slot, int row) const {
      parts.first = load<First>(slot + offsets[kPlane] + row * p.row_bytes[kPlane]);
      if constexpr (sizeof...(Rest) > 0) read_parts<kPlane + 1>(parts.rest, p, slot, row);
    }
  };

 private:
  LB_DEVICE static constexpr int entry_bytes(int plane) {
    const int bytes[] = {int(sizeof(Entries))...};
    return bytes[plane];
  }
  // Pieces that share an entry. All pieces of a row share a plane's only entry.
  LB_DEVICE static constexpr int sharers(int plane) {
    const quant::PlaneFormat format = quant::plane_format(kType);
    if (format.part_bytes[plane] == 0) return kAllPieces;
    return format.block_values / kValues * entry_bytes(plane) / format.part_bytes[plane];
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void read_parts(Parts<First, Rest...>& parts, int ahead) const {
    constexpr int kSharers = sharers(kPlane);
    static_assert(32 % kSharers == 0 || kSharers == kAllPieces);
    const uint8_t* from = planes[kPlane] + ahead / kSharers * int(sizeof(First));
    if constexpr (kSharers == 1 && sizeof(First) >= 4) {
      parts.first = load_stream<First>(from);
    } else {
      parts.first = load_cached<First>(from);
    }
    if constexpr (sizeof...(Rest) > 0) read_parts<kPlane + 1>(parts.rest, ahead);
  }
};

// Rounded x for a piece of kValues codes, 16 or 32, within one block of 32. kBits: 8 or 16.
template <int kValues, int kBits>
struct RoundedX {
  static constexpr int kWords = kValues / 4;
  int high[kWords] = {}, low[kBits == 16 ? kWords : 1] = {};
  float scale = 0, sum = 0;

  LB_DEVICE void read(const Gemv& p, int row, int piece) { read(p, (long(row) * p.row_pieces + piece) * kValues); }
  LB_DEVICE void read(const Gemv& p, long first) {
    LB_UNROLL
    for (int i = 0; i < kWords; i += 4) {
      copy(high + i, p.x.high + first + 4 * i);
      if constexpr (kBits == 16) copy(low + i, p.x.low + first + 4 * i);
    }
    scale = p.x.scale[first / kRoundBlock];
    sum = p.x.sum[first / kRoundBlock];
  }

  // Dot product of codes with x from word `from` on (4 values per word), in units of scale. Integer sums are exact; the
  // 16-bit form divides the low bytes' sum by 254.
  template <int kCount>
  LB_DEVICE float dot(const uint32_t (&codes)[kCount], int from) const {
    int a = 0, b = 0;
    LB_UNROLL
    for (int i = 0; i < kCount; ++i) {
      a = dot4(int(codes[i]), high[from + i], a);
      if constexpr (kBits == 16) b = dot4(int(codes[i]), low[from + i], b);
    }
    return kBits == 16 ? float(a) + float(b) * (1 / 254.0f) : float(a);
  }

 private:
  LB_DEVICE static void copy(int* words, const int8_t* from) {
    const i32x4 v = load<i32x4>(from);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) words[j] = v[j];
  }
};

}  // namespace lb::gpu
