// RankGroup: the mailboxes through which the ranks of a model that is split by tensors exchange values
// (ops/all_reduce.h). They are in the memory of the rank that reads them, where every rank has peer access to every
// other; else all are in pinned host memory. Either path is proven with known answers before it is used.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "device/memory.h"
#include "dispatch/gpu_stream.h"

namespace lb {

class RankGroup {
 public:
  enum class Path { kPeer, kHost };
  static constexpr long kMaxValues = 1L << 22;  // of an exchange; longer ones go in parts

  // streams: one per rank, in order; they must outlive the group. max_values: of an exchange. timeout_ns: 0: the
  // default. Throws kDevice when neither path returns the answers.
  RankGroup(std::vector<GpuStream*> streams, long max_values, uint64_t timeout_ns = 0);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  // Bytes of each rank's memory.
  static size_t planned_bytes(int n_ranks, long max_values);

  const RankMailboxes& of(int rank) const { return mailboxes_[rank]; }
  Path path() const { return path_; }
  // "peer", or "host: device 0 has no peer access to device 1"
  std::string to_string() const { return path_ == Path::kPeer ? "peer" : "host: " + why_; }

  // Whether a rank's values did not arrive in time. Any thread may ask.
  bool has_failed() const;
  // Throws kDevice if has_failed(). All results since then are lost; the ranks can start again. No other thread may
  // send work to the ranks meanwhile.
  void check();
  // Failures so far. State that was computed before the last one may be wrong. Any thread may ask.
  int n_failures() const { return n_failures_; }

 private:
  std::string enable_peers() const;  // the reason if some devices cannot reach each other; "" if all can
  void use(Path path);
  void make_empty();
  bool answers();
  uint32_t report(int rank) const;

  std::vector<GpuStream*> streams_;
  long max_values_;
  uint64_t timeout_ns_;
  Path path_ = Path::kPeer;
  std::string why_;                    // the path is not kPeer
  std::vector<gpu::Buffer> memories_;  // mailboxes of each rank
  std::vector<gpu::Buffer> counters_;  // always on the device
  gpu::Buffer reports_;                // [n] uint32, pinned
  std::vector<RankMailboxes> mailboxes_;
  std::atomic<int> n_failures_ = 0;
};

}  // namespace lb
