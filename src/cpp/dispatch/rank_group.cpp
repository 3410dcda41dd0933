#include "dispatch/rank_group.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/memory.h"
#include "dispatch/device_link.h"

namespace lb {
namespace {

// With kDrainShare of it, in which the peers' work ends, a request fails within 2 s.
constexpr uint64_t kTimeoutNs = 1'500'000'000;
constexpr uint64_t kDrainShare = 3;
// Time-outs for which a rank may have work alone. Peers that copy states to the host may have links of different speed.
constexpr uint64_t kAloneTimeouts = 4;

// Known answers: the longest exchange, and the values of all exchanges of one length, so that the proof of eight ranks
// takes less than a second.
constexpr long kProvenValues = 1L << 18, kProvenSum = 1L << 22;

struct Layout {
  uint64_t* words;
  float* rows;
  uint32_t* flags;

  Layout(Carver& carver, int n, long max_values)
      : words(carver.take<uint64_t>(size_t(2) * n * kMailboxValues)),
        rows(carver.take<float>(size_t(2) * n * max_values)),
        flags(carver.take<uint32_t>(size_t(2) * n * kMaxExchangeBlocks)) {}
};

}  // namespace

size_t RankGroup::planned_bytes(int n_ranks, long max_values) {
  Carver counter;
  Layout(counter, n_ranks, std::min(max_values, kMaxValues));
  counter.take<ExchangeCounters>(1);
  return counter.used();
}

RankGroup::RankGroup(std::vector<GpuStream*> streams, long max_values, LinkPath wanted, uint64_t timeout_ns)
    : streams_(std::move(streams)),
      max_values_(std::min(std::max((max_values + 3) / 4 * 4, 4L), kMaxValues)),
      timeout_ns_(timeout_ns > 0         ? timeout_ns
                  : is_sim(*streams_[0]) ? kSimTimeoutNs
                                         : kTimeoutNs),
      reports_(streams_[0]->pack().device(), streams_.size() * sizeof(uint32_t), gpu::Buffer::Kind::kPinned) {
  LB_CHECK(streams_.size() <= kMaxRanks, kUnsupported, "a tensor split has at most ", kMaxRanks, " devices, got ",
           streams_.size());
  for (GpuStream* stream : streams_) counters_.emplace_back(stream->pack().device(), sizeof(ExchangeCounters));
  why_ = wanted == LinkPath::kHost ? "link = host" : enable_peers();
  if (why_.empty()) {
    use(LinkPath::kPeer);
    if (!answers()) why_ = "values sent between the devices arrive wrong or late";
  }
  if (!why_.empty()) {
    check_may_use_host(wanted, why_);
    use(LinkPath::kHost);
    LB_CHECK(answers(), kDevice, "values that ", name_of(*streams_[0]), " and its peers exchange through ",
             "pinned host memory arrive wrong or late. Check the driver's log, or use one device");
  }
  for (GpuStream* stream : streams_) stream->join(this);
}

RankGroup::~RankGroup() {
  for (GpuStream* stream : streams_) stream->join(nullptr);
}

std::string RankGroup::enable_peers() const {
  for (GpuStream* from : streams_)
    for (GpuStream* to : streams_)
      if (from != to)
        if (std::string why = enable_peer(from->pack().device(), to->pack().device()); !why.empty()) return why;
  return "";
}

void RankGroup::use(LinkPath path) {
  for (GpuStream* stream : streams_) stream->queue().synchronize();
  path_ = path;
  const int n = static_cast<int>(streams_.size());
  const auto kind = path == LinkPath::kPeer ? gpu::Buffer::Kind::kDevice : gpu::Buffer::Kind::kPinned;
  memories_.clear();
  std::vector<Layout> layouts;
  for (GpuStream* stream : streams_) {
    memories_.emplace_back(stream->pack().device(), planned_bytes(n, max_values_), kind);
    Carver carver(std::span(memories_.back().data(), memories_.back().size()));
    layouts.emplace_back(carver, n, max_values_);
  }
  mailboxes_.assign(n, {});
  for (int rank = 0; rank < n; ++rank) {
    RankMailboxes& own = mailboxes_[rank];
    for (int peer = 0; peer < n; ++peer) {
      own.words[peer] = layouts[peer].words;
      own.rows[peer] = layouts[peer].rows;
      own.flags[peer] = layouts[peer].flags;
    }
    own.counters = reinterpret_cast<ExchangeCounters*>(counters_[rank].data());
    own.report = reinterpret_cast<uint32_t*>(reports_.data()) + rank;
    own.max_values = max_values_;
    own.timeout_ns = timeout_ns_;
    own.rank = rank;
    own.n = n;
  }
  make_empty();
}

// All work of the ranks is complete.
void RankGroup::make_empty() {
  stopping_.clear();
  is_stopped_ = false;
  std::memset(reports_.data(), 0, reports_.size());
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    const gpu::Queue& queue = streams_[rank]->queue();
    if (path_ == LinkPath::kHost) {
      std::memset(memories_[rank].data(), 0, memories_[rank].size());
    } else {
      queue.fill(memories_[rank].data(), 0, memories_[rank].size());
    }
    queue.fill(counters_[rank].data(), 0, counters_[rank].size());
    queue.synchronize();
  }
}

// Exchanges known values, different in each round, and compares what arrives.
bool RankGroup::answers() {
  const bool is_simulated = is_sim(*streams_[0]);
  const int n = static_cast<int>(streams_.size());
  const long most = std::min(max_values_, is_simulated ? 2 * long{kMailboxValues} : kProvenValues);
  std::vector<std::unique_ptr<Memory>> sent, summed;
  for (GpuStream* stream : streams_) {
    sent.push_back(stream->reserve(most * sizeof(float)));
    summed.push_back(stream->reserve(most * sizeof(float)));
  }
  // One rank has a value at each place and the others 0: no bit of the value is lost in the sum.
  const auto value = [n](long i, int rank, int round) {
    if ((i + round) % n != rank) return 0.0f;
    return std::bit_cast<float>(0x3f800000u | (uint32_t(i) + 7919u * uint32_t(round)) * 2654435761u >> 9);
  };
  std::vector<float> values(most);
  for (const long count : {4L, 1024L, long{kMailboxValues}, most}) {
    if (count > most) continue;
    const int n_rounds = is_simulated ? 1 : static_cast<int>(std::clamp(kProvenSum / (count * n), 4L, 500L));
    for (int round = 0; round < n_rounds; ++round) {
      for (int rank = 0; rank < n; ++rank) {
        for (long i = 0; i < count; ++i) values[i] = value(i, rank, round);
        streams_[rank]->upload(sent[rank]->data(), values.data(), count * sizeof(float));
      }
      for (int rank = 0; rank < n; ++rank)
        streams_[rank]->run(AllReduce{.x = reinterpret_cast<float*>(sent[rank]->data()),
                                      .add = nullptr,
                                      .y = reinterpret_cast<float*>(summed[rank]->data()),
                                      .count = count,
                                      .ranks = mailboxes_[rank]});
      for (int rank = 0; rank < n; ++rank) {
        streams_[rank]->download(values.data(), summed[rank]->data(), count * sizeof(float));
        for (long i = 0; i < count; ++i) {
          float sum = 0;
          for (int sender = 0; sender < n; ++sender) sum += value(i, sender, round);
          if (values[i] != sum || report(rank) != 0) return false;
        }
      }
    }
  }
  return true;
}

double RankGroup::time_us(long count, int n_exchanges, int n_runs) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::unique_ptr<Memory>> sent, summed;
  std::vector<std::unique_ptr<Recording>> recordings(streams_.size());
  for (GpuStream* stream : streams_) {
    sent.push_back(stream->reserve(count * sizeof(float)));
    summed.push_back(stream->reserve(count * sizeof(float)));
  }
  const auto run = [&] {
    for (size_t rank = 0; rank < streams_.size(); ++rank)
      streams_[rank]->replay(recordings[rank], [&] {
        auto* const y = reinterpret_cast<float*>(summed[rank]->data());
        for (int i = 0; i < n_exchanges; ++i)
          streams_[rank]->run(AllReduce{.x = reinterpret_cast<float*>(sent[rank]->data()),
                                        .add = y,
                                        .y = y,
                                        .count = count,
                                        .ranks = mailboxes_[rank]});
      });
  };
  const auto wait = [&] {
    for (GpuStream* stream : streams_) stream->wait();
  };
  run(), wait();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < n_runs; ++i) run();
  wait();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / n_runs / n_exchanges;
}

double RankGroup::time_us(long count) { return is_sim(*streams_[0]) ? time_us(count, 2, 1) : time_us(count, 64, 16); }

uint32_t RankGroup::report(int rank) const {
  return std::atomic_ref(reinterpret_cast<uint32_t*>(reports_.data())[rank]).load(std::memory_order_acquire);
}

bool RankGroup::has_failed() const {
  for (size_t rank = 0; rank < streams_.size(); ++rank)
    if (report(static_cast<int>(rank)) != 0) return true;
  return false;
}

void RankGroup::check() {
  for (int rank = 0; rank < static_cast<int>(streams_.size()); ++rank) {
    const uint32_t failed = report(rank);
    if (failed == 0) continue;
    const std::string missing = name_of(*streams_[failed - 1]), waiting = name_of(*streams_[rank]);
    if (!is_stopped_.exchange(true)) {
      ++n_failures_;
      stop_waits();
    }
    GpuStream* const running = running_rank();
    if (running == nullptr) make_empty();
    fail(ErrorCode::kDevice, "[all_reduce] ", missing, " sent nothing to ", waiting, " for ",
         mailboxes_[rank].timeout_ns / 1'000'000'000.0, " s. ", lost_requests(running));
  }
}

// Exchanges that have not begun will not wait for a peer. A rank that hung would otherwise wait for values that later
// ones have overwritten. Separate queues write, because the rank's own may hang.
void RankGroup::stop_waits() {
  for (size_t rank = 0; rank < streams_.size(); ++rank)
    stopping_.emplace_back(streams_[rank]->pack().device())
        .fill(counters_[rank].data() + offsetof(ExchangeCounters, failed), 1, sizeof(ExchangeCounters::failed));
}

void RankGroup::restart() {
  if (!is_stopped_) return;
  check_ended("all_reduce", running_rank());
  make_empty();
}

void RankGroup::wait_until(const std::function<bool()>& is_done) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now(), pauses_from = start + (is_sim(*streams_[0]) ? kSimBusy : kBusy);
  Clock::time_point last_together = start;  // when two ranks had work
  while (!is_done() && !has_failed()) {
    if (Clock::now() < pauses_from) continue;
    std::this_thread::sleep_for(kPause);
    uint32_t running = 0;
    int n_running = 0;
    for (size_t rank = 0; rank < streams_.size(); ++rank)
      if (!streams_[rank]->is_done()) running = uint32_t(rank), ++n_running;
    if (n_running != 1) {
      last_together = Clock::now();
    } else if (Clock::now() - last_together > std::chrono::nanoseconds(kAloneTimeouts * timeout_ns_)) {
      // As if a peer had missed its values.
      const uint32_t peer = running == 0 ? 1 : 0;
      std::atomic_ref(reinterpret_cast<uint32_t*>(reports_.data())[peer]).store(running + 1);
    }
  }
}

// A rank whose work does not end soon, or null. After a failure no rank waits for another one.
GpuStream* RankGroup::running_rank() const {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(timeout_ns_ / kDrainShare);
  const auto is_done = [&](size_t rank) {
    return streams_[rank]->is_done() && (rank >= stopping_.size() || stopping_[rank].is_done());
  };
  for (size_t rank = 0; rank < streams_.size(); ++rank)
    for (; !is_done(rank); std::this_thread::sleep_for(kPause))
      if (Clock::now() > end) return streams_[rank];
  return nullptr;
}

}  // namespace lb
