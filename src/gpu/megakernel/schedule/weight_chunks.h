// Plans how weights reach a block. The block's part of each product is divided into chunks, which pass through a ring
// in shared memory in the order in which the block needs them. The host plans all copies, so that the copying warp
// (src/gpu/megakernel/weight_stream.h) only waits and copies.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "gpu/megakernel/shape.h"

namespace lb::gpu {

// A chunk of a block's weights, plane after plane. Lengths and offsets are in units of 16 bytes.
struct WeightChunk {
  struct Plane {
    const uint8_t* from;
    int at, units;  // at: offset in the chunk
  };
  std::array<Plane, quant::kMaxPlanes> planes;
  int units;               // of the whole chunk
  int max_in_flight = 1;   // chunks, including this one
  int n_parts = 1;         // parts in which the chunk may be copied
  int at = 0;              // offset in the ring
  int reuse_distance = 0;  // the chunk this many before must be empty before this one is copied
};

// Whether rows of this many bytes may start off a 16-byte boundary, so that a copy begins before its first row.
bool may_skew(int row_bytes);
// Upper bound on the bytes of a chunk of `rows` rows.
size_t chunk_bytes(DType type, int n_in, int rows);

// Divides rows [begin, begin + rows) of w, one of p's matrices, into chunks.
std::vector<WeightChunk> cut_in_chunks(const ProductTask& p, const void* w, int begin, int rows);
// Bytes before row `begin` in each plane's copy, four bits per plane.
uint16_t skews_of(const ProductTask& p, const void* w, int begin);

// A block's reads of x queue after the weights in flight. Chunks within one ring length of the part's start are copied
// while the block is at an earlier product and will still read x: one chunk in flight. Later chunks are copied while
// the block waits only for weights: kMaxInFlight.
void limit_in_flight(std::span<WeightChunk> part, int ring_bytes);

// Whether chunks are copied in parts, one after another, also to keep reads of x short. True if the ring holds the
// weights of several phases. Only chunks that are alone in flight are cut in parts.
bool comes_in_parts(const std::vector<std::vector<WeightChunk>>& blocks, int n_phases, int ring_bytes);
void cut_in_parts(std::vector<WeightChunk>& chunks);
inline constexpr int kPartUnits = 320;  // of 16 bytes

// Places a token's chunks in the ring, and finds the chunk that each one overwrites. The next token's chunks follow.
void place_in_ring(std::vector<WeightChunk>& chunks, int ring_bytes);

// Encodes the chunk for the kernel. The ring begins at ring_at in dynamic shared memory.
std::array<StreamCopy, quant::kMaxPlanes> copies_of(const WeightChunk& chunk, int ring_at);

}  // namespace lb::gpu
