// Plans weight chunks and their places in the ring, on the host.
#include "gpu/megakernel/schedule/weight_chunks.h"

#include <algorithm>

#include "base/error.h"

namespace lb::gpu {
namespace {

// Chunks are copied in parts if the ring holds the weights of at least this many phases on average.
constexpr double kPhasesAhead = 3;

int units_of(size_t bytes) { return static_cast<int>((bytes + 15) / 16); }

// The first chunk of each lap around the ring; a token begins a lap. The last lap is filled from its end, to end where
// the next token begins, so the lap before it is the short one.
std::vector<size_t> laps_of(const std::vector<WeightChunk>& chunks, int ring_units) {
  std::vector<size_t> begins;
  int to = ring_units;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (to + chunks[i].units > ring_units) {
      begins.push_back(i);
      to = 0;
    }
    to += chunks[i].units;
  }
  if (begins.size() < 2) return begins;
  to = 0;
  for (size_t i = chunks.size(); to + chunks[i - 1].units <= ring_units; --i) {
    to += chunks[i - 1].units;
    begins.back() = i - 1;
  }
  return begins;
}

}  // namespace

bool may_skew(int row_bytes) { return row_bytes % 16 != 0; }

size_t chunk_bytes(DType type, int n_in, int rows) {
  const quant::PlaneLayout layout = quant::plane_layout(type, 1, n_in);
  size_t bytes = 0;
  for (int i = 0; i < layout.n_planes; ++i) bytes += layout.row_bytes[i] * rows + 16;
  return bytes;
}

std::vector<WeightChunk> cut_in_chunks(const ProductTask& p, const void* w, int begin, int rows) {
  const quant::PlaneLayout layout = quant::plane_layout(p.op.type, p.op.n_out, p.op.n_in);
  const int chunk_rows = p.n_teams * p.batch_rows, n_chunks = (rows + chunk_rows - 1) / chunk_rows;
  std::vector<WeightChunk> chunks(n_chunks);
  for (int i = 0; i < n_chunks; ++i) {
    const bool is_last = i + 1 == n_chunks;
    WeightChunk& chunk = chunks[i];
    chunk = {.planes = {}, .units = units_of(p.plane_at[quant::kMaxPlanes])};
    for (int k = 0; k < layout.n_planes; ++k) {
      const size_t row_bytes = layout.row_bytes[k];
      const auto* from = static_cast<const uint8_t*>(w) + layout.offset[k] + (begin + i * chunk_rows) * row_bytes;
      const size_t skew = reinterpret_cast<uintptr_t>(from) % 16;
      const int at = units_of(p.plane_at[k]), all = units_of(p.plane_at[k + 1]) - at;
      const int units = is_last ? units_of(skew + (rows - i * chunk_rows) * row_bytes) : all;
      chunk.planes[k] = {from - skew, at, units};
      if (is_last) chunk.units = at + units;
    }
  }
  return chunks;
}

uint16_t skews_of(const ProductTask& p, const void* w, int begin) {
  const quant::PlaneLayout layout = quant::plane_layout(p.op.type, p.op.n_out, p.op.n_in);
  uint16_t skews = 0;
  for (int k = 0; k < layout.n_planes; ++k)
    skews |= uint16_t((reinterpret_cast<uintptr_t>(w) + layout.offset[k] + begin * layout.row_bytes[k]) % 16 << 4 * k);
  return skews;
}

void limit_in_flight(std::span<WeightChunk> part, int ring_bytes) {
  int before = 0;
  for (WeightChunk& chunk : part) {
    if (16 * before >= ring_bytes) chunk.max_in_flight = kMaxInFlight;
    before += chunk.units;
  }
}

bool comes_in_parts(const std::vector<std::vector<WeightChunk>>& blocks, int n_phases, int ring_bytes) {
  double units = 0;
  for (const auto& chunks : blocks)
    for (const WeightChunk& chunk : chunks) units += chunk.units;
  return 16 * units / double(blocks.size()) / n_phases * kPhasesAhead <= ring_bytes;
}

void cut_in_parts(std::vector<WeightChunk>& chunks) {
  for (WeightChunk& chunk : chunks)
    if (chunk.max_in_flight == 1) chunk.n_parts = (chunk.units + kPartUnits - 1) / kPartUnits;
}

void place_in_ring(std::vector<WeightChunk>& chunks, int ring_bytes) {
  const std::vector<size_t> begins = laps_of(chunks, ring_bytes / 16);
  int to = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (std::ranges::binary_search(begins, i)) to = 0;
    chunks[i].at = to;
    to += chunks[i].units;
  }
  const auto overlap = [](const WeightChunk& a, const WeightChunk& b) {
    return a.at < b.at + b.units && b.at < a.at + a.units;
  };
  for (size_t i = 0; i < chunks.size(); ++i) {
    size_t before = i;
    do {
      before = (before > 0 ? before : chunks.size()) - 1;
      ++chunks[i].reuse_distance;
    } while (chunks[i].reuse_distance < kMegaChunks && !overlap(chunks[i], chunks[before]));
  }
}

std::array<StreamCopy, quant::kMaxPlanes> copies_of(const WeightChunk& chunk, int ring_at) {
  std::array<StreamCopy, quant::kMaxPlanes> copies;
  for (int k = 0; k < quant::kMaxPlanes; ++k) {
    const WeightChunk::Plane& plane = chunk.planes[k];
    const int to = ring_at / 16 + chunk.at + plane.at, part_units = (plane.units + chunk.n_parts - 1) / chunk.n_parts;
    LB_ASSERT(to <= UINT16_MAX && plane.units <= UINT16_MAX && chunk.n_parts < 64);
    copies[k] = {.from = plane.from,
                 .extent = uint32_t(to) | uint32_t(plane.units) << 16,
                 .order = uint32_t(chunk.reuse_distance) | uint32_t(chunk.max_in_flight) << 6 |
                          uint32_t(chunk.n_parts) << 10 | uint32_t(part_units) << 16};
  }
  return copies;
}

}  // namespace lb::gpu
