#include "bindings/kernels/rank_faults.h"

#include <chrono>
#include <thread>

#include "base/error.h"

namespace lb::kernels {
namespace {

constexpr std::chrono::seconds kArrivalTimeout{60};
constexpr std::chrono::microseconds kPause{100};

size_t word_bytes(const RankMailboxes& own) { return sizeof(uint64_t) * 2 * own.n * kMailboxValues; }
size_t flag_bytes(const RankMailboxes& own) { return sizeof(uint32_t) * 2 * own.n * kMaxExchangeBlocks; }

std::byte* words_of(const RankMailboxes& own) { return reinterpret_cast<std::byte*>(own.words[own.rank]); }
std::byte* flags_of(const RankMailboxes& own) { return reinterpret_cast<std::byte*>(own.flags[own.rank]); }

}  // namespace

HeldStream::HeldStream(GpuStream& stream) : state_(std::make_shared<State>()) {
  const auto hang = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(argument));
    (*state)->is_held = true;
    (*state)->is_held.notify_all();
    (*state)->is_released.wait(false);
  };
  stream.queue().run_on_host(hang, new std::shared_ptr<State>(state_));
  state_->is_held.wait(false);
}

HeldRank::HeldRank(GpuStream& stream, const RankGroup& ranks, int rank)
    : HeldStream(stream), other_(stream.pack().device()), own_(ranks.of(rank)), before_(arrivals()) {}

void HeldStream::release() {
  state_->is_released = true;
  state_->is_released.notify_all();
}

std::vector<std::byte> HeldRank::arrivals() const {
  std::vector<std::byte> all(word_bytes(own_) + flag_bytes(own_));
  other_.copy_to_host(all.data(), words_of(own_), word_bytes(own_));
  other_.copy_to_host(all.data() + word_bytes(own_), flags_of(own_), flag_bytes(own_));
  other_.synchronize();
  return all;
}

void HeldRank::erase_arrival() {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + kArrivalTimeout; arrivals() == before_; std::this_thread::sleep_for(kPause))
    LB_CHECK(Clock::now() < end, kDevice, "no peer sent values to the held rank ", own_.rank);
  other_.fill(words_of(own_), 0, word_bytes(own_));
  other_.fill(flags_of(own_), 0, flag_bytes(own_));
  other_.synchronize();
}

void crash(GpuStream& stream) {
  constexpr long kValues = 512;
  const std::unique_ptr<Memory> memory = stream.reserve(2 * kValues * sizeof(float) + sizeof(ExchangeCounters));
  auto* const x = reinterpret_cast<float*>(memory->data());
  RankMailboxes ranks{};
  ranks.words[1] = reinterpret_cast<uint64_t*>(uintptr_t{1} << 12);
  ranks.counters = reinterpret_cast<ExchangeCounters*>(x + 2 * kValues);
  ranks.max_values = kValues;
  ranks.n = 2;
  stream.run(AllReduce{.x = x, .add = nullptr, .y = x + kValues, .count = kValues, .ranks = ranks});
}

}  // namespace lb::kernels
