// Pass: one reading of the weights for several sessions of an engine. It computes a segment of each: a row, or the tree
// below it. The sessions run no steps ahead then, so that the next pass may be one of all again.
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
  // Session::sync() of different sessions. Where they lack one token each, passes compute the row of each, or the tree
  // below it. Returns the rows of these passes.
  static int sync(std::span<const SegmentRequest> requests, const Interrupted& interrupted = {});
  struct Choice {
    Session* session;
    const Sampler* sampler;
  };
  // After sync(): starts the choices that the next sample() of each session and sampler returns, so that a device
  // chooses for all sessions before the host waits for one. Nothing on the CPU.
  static void start_samples(std::span<const Choice> choices);

 private:
  // Each session lacks the row of the last of its ids. The caller holds the executor's lock.
  explicit Pass(std::span<const SegmentRequest> requests);

  int run(const Interrupted& interrupted);
  void choose_segments();
  std::vector<uint64_t> shape() const;
  void begin_segments();
  void send(const Interrupted& interrupted);
  void send_heads();
  void end_segment(Session& session) const;

  std::span<const SegmentRequest> requests_;
  const Engine& engine_;
  Executor& executor_;
  std::vector<Segment> segments_;
  int n_used_ = 0;  // rows of the segments
  int rows_ = 0;    // of the pass
};

}  // namespace lb
