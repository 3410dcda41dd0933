// RankGroup: the mailboxes through which the ranks of a model that is split by tensors exchange values
// (ops/all_reduce.h). They are in the memory of the rank that reads them, where every rank has peer access to every
// other; else all are in pinned host memory. Either path is proven with known answers before it is used.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "device/memory.h"
#include "dispatch/gpu_stream.h"
#include "dispatch/link_path.h"
#include "dispatch/stream_group.h"

namespace lb {

class RankGroup final : public StreamGroup {
 public:
  static constexpr long kMaxValues = 1L << 22;  // of an exchange; longer ones go in parts

  // streams: one per rank, in order; they must outlive the group. max_values: of an exchange. timeout_ns: 0: the
  // default. Throws kUnsupported if the wanted path is kPeer and cannot be used, and kDevice if host memory does not
  // return the answers.
  RankGroup(std::vector<GpuStream*> streams, long max_values, LinkPath wanted, uint64_t timeout_ns = 0);
  ~RankGroup() override;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  // Bytes of each rank's memory.
  static size_t planned_bytes(int n_ranks, long max_values);

  const RankMailboxes& of(int rank) const { return mailboxes_[rank]; }
  LinkPath path() const { return path_; }
  // "peer", or "host: device 0 has no peer access to device 1"
  std::string to_string() const { return path_ == LinkPath::kPeer ? "peer" : "host: " + why_; }

  // Whether a rank's values did not arrive in time. Any thread may ask.
  bool has_failed() const override;
  void check() override;
  void wait_until(const std::function<bool()>& is_done) const override;
  void restart() override;

  // Mean microseconds of an all-reduce of `count` values in a graph of `n_exchanges`.
  double time_us(long count, int n_exchanges, int n_runs);
  double time_us(long count);  // of as many as take some milliseconds; on the simulator, of few

 private:
  std::string enable_peers() const;  // the reason if some devices cannot reach each other; "" if all can
  void use(LinkPath path);
  void make_empty();
  void stop_waits();
  GpuStream* running_rank() const;
  bool answers();
  uint32_t report(int rank) const;

  std::vector<GpuStream*> streams_;
  long max_values_;
  uint64_t timeout_ns_;
  LinkPath path_ = LinkPath::kPeer;
  std::string why_;                    // the path is not kPeer
  std::vector<gpu::Buffer> memories_;  // mailboxes of each rank
  std::vector<gpu::Buffer> counters_;  // always on the device
  gpu::Buffer reports_;                // [n] uint32, pinned
  std::vector<RankMailboxes> mailboxes_;
  std::vector<gpu::Queue> stopping_;  // of each rank, while is_stopped_
};

}  // namespace lb
