// How a megakernel's weights come to a block: the part of each product that it has is cut into chunks, which pass
// through a ring in shared memory in the order in which they are needed. What of it can be known before is worked out
// here, so that the warp that brings them (src/gpu/megakernel/weight_stream.h) only waits and copies.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "gpu/megakernel/shape.h"

namespace lb::gpu {

// One of a block's, in units of 16 bytes: its planes lie one behind the other.
struct WeightChunk {
  struct Plane {
    const uint8_t* from;
    int at, units;
  };
  std::array<Plane, quant::kMaxPlanes> planes;
  int units;          // of the ring
  int under_way = 1;  // chunks, it and those before, at most
  int n_parts = 1;    // in which it may come
  int place = 0;      // in the ring
  int after = 0;      // the chunk so far before this one has to be given back first
};

bool may_skew(int row_bytes);
// In the ring, of so many rows of weights.
size_t chunk_bytes(DType type, int n_in, int rows);

// Rows [begin, begin + rows) of w, a matrix of p's.
std::vector<WeightChunk> cut_in_chunks(const ProductTask& p, const void* w, int begin, int rows);
// What precedes the first of these rows in each plane, four bits each.
uint16_t skews_of(const ProductTask& p, const void* w, int begin);

// What a block asks for waits behind the weights on their way to it. A ring's length ahead it is at an earlier product,
// and will ask for x: one chunk is on its way. Further on in a part it is at this one, and waits for weights alone.
void limit_under_way(std::span<WeightChunk> part, int ring_bytes);

// For the same reason, where the ring has the weights of several phases, chunks that come alone do so in parts, one
// after another.
bool come_in_parts(const std::vector<std::vector<WeightChunk>>& blocks, int n_phases, int ring_bytes);
void cut_in_parts(std::vector<WeightChunk>& chunks);
inline constexpr int kPartUnits = 320;

// Of a token's chunks, after which those of the next follow: where each lies in the ring, and which one has to be given
// back before it begins.
void place_in_ring(std::vector<WeightChunk>& chunks, int ring_bytes);

// As the kernel takes it, with the ring at this place of dynamic shared memory.
std::array<StreamCopy, quant::kMaxPlanes> copies_of(const WeightChunk& chunk, int ring_at);

}  // namespace lb::gpu
