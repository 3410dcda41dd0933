// RecordedAppends: a cache of graph recordings for small appends, which decoding and verification repeat. From a
// shape's second use on, the stream replays its recording, so the device does not wait for hundreds of host launches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dispatch/linked_streams.h"
#include "ops/stream.h"

namespace lb {

class RecordedAppends {
 public:
  // Few shapes recur: verification uses few row counts, and sequences that decode together stay together for a while.
  // (On an H100, 8 recordings of a 27B model fit into memory that the driver has reserved anyway.)
  static constexpr size_t kMax = 8;

  // `work` must send an append that depends only on `shape` and on the contents of the stream's memory.
  void send(std::span<const uint64_t> shape, Stream& stream, const std::function<void()>& work);
  void send(std::span<const uint64_t> shape, const LinkedStreams& streams, const std::function<void()>& work);
  // The same for the ranks of a model: work() sends the append to all streams, of_rank(i) to streams[i] alone.
  void send(std::span<const uint64_t> shape, std::span<Stream* const> streams, const std::function<void()>& work,
            const std::function<void(int)>& of_rank);

 private:
  struct Recorded {
    std::vector<uint64_t> shape;
    std::vector<std::unique_ptr<Recording>> recordings;  // one per stream; linked streams have one
  };
  // The recordings of a shape; null on its first use.
  Recorded* find(std::span<const uint64_t> shape, size_t n_recordings);

  std::vector<Recorded> recorded_;  // most recent first
};

}  // namespace lb
