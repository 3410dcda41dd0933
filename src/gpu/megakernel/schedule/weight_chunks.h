// How weights reach a block. The block's part of each product is cut into chunks, which pass through a ring in shared
// memory in the order in which the block needs them. The host plans all copies here, so that the copying warp
// (src/gpu/megakernel/weight_stream.h) only waits and copies.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "gpu/megakernel/shape.h"

namespace lb::gpu {

// A chunk of a block's weights, plane behind plane. Lengths and offsets are in units of 16 bytes.
struct WeightChunk {
  struct Plane {
    const uint8_t* from;
    int at, units;  // at: in the chunk
  };
  std::array<Plane, quant::kMaxPlanes> planes;
  int units;               // of the whole chunk
  int max_in_flight = 1;   // chunks, this one included
  int n_parts = 1;         // in which the chunk may be copied
  int at = 0;              // in the ring
  int reuse_distance = 0;  // the chunk so far back must be empty before this one is copied
};

// Whether rows of so many bytes may begin within 16 bytes, so that a copy begins before its first row.
bool may_skew(int row_bytes);
// Bytes of a chunk of so many rows.
size_t chunk_bytes(DType type, int n_in, int rows);

// Cuts rows [begin, begin + rows) of w, one of p's matrices.
std::vector<WeightChunk> cut_in_chunks(const ProductTask& p, const void* w, int begin, int rows);
// Bytes before the first of these rows in each plane's copy, four bits a plane.
uint16_t skews_of(const ProductTask& p, const void* w, int begin);

// A block's reads of x queue behind the weights in flight. While a chunk less than a ring's length into the part is
// copied, the block is still at an earlier product and will read x: one chunk is in flight. Further on the block is at
// this product and waits for weights alone: kMaxInFlight.
void limit_in_flight(std::span<WeightChunk> part, int ring_bytes);

// For the same reason a chunk is copied in parts, one after another, where the ring holds the weights of several phases
// and the chunk is alone in flight.
bool comes_in_parts(const std::vector<std::vector<WeightChunk>>& blocks, int n_phases, int ring_bytes);
void cut_in_parts(std::vector<WeightChunk>& chunks);
inline constexpr int kPartUnits = 320;  // of 16 bytes

// Places the chunks of a token in the ring, and finds which chunk each one overwrites. The next token's chunks follow.
void place_in_ring(std::vector<WeightChunk>& chunks, int ring_bytes);

// The chunk as the kernel takes it; the ring begins at ring_at in dynamic shared memory.
std::array<StreamCopy, quant::kMaxPlanes> copies_of(const WeightChunk& chunk, int ring_at);

}  // namespace lb::gpu
