// Pass: one batched forward pass for several sessions of an engine, so the weights are read once. Each session
// contributes a segment: a row, or the tree below it. These sessions run no steps ahead, so that all can join the next
// pass too.
#pragma once

#include <span>
#include <vector>

#include "engine/session.h"

namespace lb {

struct SegmentRequest {
  Session* session;
  std::span<const int32_t> ids;
};

class Pass {
 public:
  // Session::sync() of different sessions. Sessions that lack exactly one token are batched: passes compute their rows,
  // or the trees below them. Returns the rows of these passes.
  static int sync(std::span<const SegmentRequest> requests, const Interrupted& interrupted = {});
  struct Choice {
    Session* session;
    const Sampler* sampler;
  };
  // After sync(): starts the choices that each session's next sample() returns, so that the device chooses for all
  // sessions before the host waits for any. Does nothing on the CPU.
  static void start_samples(std::span<const Choice> choices);

 private:
  // Each session lacks only the row of its last id. The caller holds the pass buffers' lock.
  explicit Pass(std::span<const SegmentRequest> requests);

  int run(const Interrupted& interrupted);
  void choose_segments();
  std::vector<uint64_t> shape() const;
  void begin_segments();
  void send(const Interrupted& interrupted);
  std::vector<Append> appends(const Interrupted& interrupted) const;
  void send_heads(int shard);
  void end_segment(size_t i) const;

  std::span<const SegmentRequest> requests_;
  const Engine& engine_;
  PassBuffers& buffers_;
  std::vector<Segment> segments_;               // without the addresses that differ between shards
  std::vector<std::vector<Segment>> on_shard_;  // [shards] the segments as each shard sees them
  int n_used_ = 0;                              // rows of the segments
  int rows_ = 0;                                // of the pass
};

}  // namespace lb
