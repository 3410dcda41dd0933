// RankExchange: the exchanges of ranks without a model, for tests and measurements.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/rank_faults.h"
#include "bindings/kernels/stream_arrays.h"
#include "bindings/option_rows.h"
#include "bindings/python_pack.h"
#include "dispatch/rank_group.h"
#include "engine/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;

GpuStream& rank_stream(const Engine& engine, int rank) {
  LB_CHECK(engine.ranks() != nullptr && rank >= 0 && rank < engine.n_shards(), kInvalid, "the engine has no rank ",
           rank);
  return static_cast<GpuStream&>(engine.shards()[rank]->stream());
}

template <int kDims>
using Floats = nb::ndarray<const float, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;

class RankExchange {
 public:
  RankExchange(const std::vector<PythonPack*>& packs, long max_values, double timeout_s, const std::string& link) {
    for (PythonPack* pack : packs)
      streams_.push_back(
          std::make_unique<GpuStream>(pack->shared(), 0, 0, nullptr, false, gpu::Queue::Runner::kOwnThread));
    std::vector<GpuStream*> all;
    for (const auto& stream : streams_) all.push_back(stream.get());
    ranks_ = std::make_unique<RankGroup>(std::move(all), max_values, value_of<LinkPath>("link", link),
                                         uint64_t(timeout_s * 1e9));
  }

  std::string links() const { return ranks_->to_string(); }
  std::unique_ptr<HeldRank> hold(int rank) { return std::make_unique<HeldRank>(*streams_.at(rank), *ranks_, rank); }

  Array<float, 2> sum(const Floats<2>& x, const std::optional<Floats<1>>& add, int late, double delay_s, int absent) {
    const size_t n = streams_.size(), count = x.shape(1);
    LB_CHECK(x.shape(0) == n, kInvalid, "x has ", x.shape(0), " rows for ", n, " ranks");
    LB_CHECK(!add || add->size() == count, kInvalid, "add has ", add->size(), " values, x ", count);
    const auto send = [&](size_t rank, Rank& memory) {
      streams_[rank]->run(AllReduce{.x = memory.x,
                                    .add = add ? memory.add : nullptr,
                                    .y = memory.y,
                                    .count = long(count),
                                    .ranks = ranks_->of(int(rank))});
    };
    std::vector<float> y(n * count);
    {
      const nb::gil_scoped_release unlocked;
      std::vector<Rank> memories;  // whose end waits for the devices
      for (size_t rank = 0; rank < n; ++rank) {
        memories.push_back(reserve(rank, count, count));
        streams_[rank]->upload(memories[rank].x, x.data() + rank * count, count * sizeof(float));
        if (add) streams_[rank]->upload(memories[rank].add, add->data(), count * sizeof(float));
      }
      for (size_t rank = 0; rank < n; ++rank)
        if (int(rank) != absent && int(rank) != late) send(rank, memories[rank]);
      if (late >= 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
        send(late, memories[late]);
      }
      for (size_t rank = 0; rank < n; ++rank)
        if (int(rank) != absent)
          streams_[rank]->download(y.data() + rank * count, memories[rank].y, count * sizeof(float));
    }
    return to_numpy<2>(std::move(y), {n, count});
  }

  Array<float, 3> gather(const std::vector<Floats<2>>& x) {
    const size_t n = streams_.size();
    LB_CHECK(x.size() == n, kInvalid, x.size(), " arrays for ", n, " ranks");
    const size_t rows = x[0].shape(0);
    for (const Floats<2>& own : x)
      LB_CHECK(own.shape(0) == rows, kInvalid, "arrays of ", rows, " and ", own.shape(0), " rows; give all the same");
    AllGather op{.x = nullptr, .y = nullptr, .rows = int(rows), .widths = {}, .ranks = {}};
    size_t total = 0;
    for (size_t rank = 0; rank < n; ++rank) total += op.widths[rank] = int(x[rank].shape(1));
    std::vector<Rank> memories;
    std::vector<float> y(n * rows * total);
    for (size_t rank = 0; rank < n; ++rank) {
      memories.push_back(reserve(rank, x[rank].size(), rows * total));
      streams_[rank]->upload(memories[rank].x, x[rank].data(), x[rank].size() * sizeof(float));
    }
    for (size_t rank = 0; rank < n; ++rank) {
      op.x = memories[rank].x, op.y = memories[rank].y, op.ranks = ranks_->of(int(rank));
      streams_[rank]->run(op);
    }
    {
      const nb::gil_scoped_release unlocked;
      for (size_t rank = 0; rank < n; ++rank)
        streams_[rank]->download(y.data() + rank * rows * total, memories[rank].y, rows * total * sizeof(float));
    }
    return to_numpy<3>(std::move(y), {n, rows, total});
  }

  double time_us(long count, int n_exchanges, int n_runs) {
    const nb::gil_scoped_release unlocked;
    return ranks_->time_us(count, n_exchanges, n_runs);
  }

 private:
  struct Rank {
    std::unique_ptr<Memory> memory;
    float *x, *add, *y;
  };

  Rank reserve(size_t rank, size_t n_in, size_t n_out) {
    const auto carve = [&](Carver carver, Rank& to) {
      to.x = carver.take<float>(n_in), to.add = carver.take<float>(n_out), to.y = carver.take<float>(n_out);
      return carver.used();
    };
    Rank to{};
    to.memory = streams_[rank]->reserve(carve(Carver(), to));
    carve(Carver(*to.memory), to);
    return to;
  }

  std::vector<std::unique_ptr<GpuStream>> streams_;
  std::unique_ptr<RankGroup> ranks_;
};

// Mailboxes of rank 0 of two on one device: what the rank sends arrives in its own mailbox, as if from rank 1.
class Loopback {
 public:
  Loopback(PythonPack& pack, long max_values) : stream_(pack.shared(), 0, 0), arrays_(stream_) {
    stream_.record(&pack.launches());
    constexpr int kSlots = 2 * 2 + 1;
    uint64_t* words = arrays_.zeros<uint64_t>(size_t(kSlots) * kMailboxValues);
    float* rows = arrays_.zeros<float>(size_t(kSlots) * max_values);
    uint32_t* flags = arrays_.zeros<uint32_t>(size_t(kSlots) * kMaxExchangeBlocks);
    for (int rank = 0; rank < 2; ++rank) {  // slot 0 of rank 1 is slot 1 of rank 0
      ranks_.words[rank] = words + rank * kMailboxValues;
      ranks_.rows[rank] = rows + rank * max_values;
      ranks_.flags[rank] = flags + rank * kMaxExchangeBlocks;
    }
    ranks_.counters = arrays_.zeros<ExchangeCounters>(1);
    ranks_.report = arrays_.zeros<uint32_t>(1);
    ranks_.max_values = max_values;
    ranks_.timeout_ns = 10'000'000'000;
    ranks_.n = 2;
  }

  Array<float, 1> sum(const Floats<1>& x, const Floats<1>& add) {
    LB_CHECK(x.size() == add.size(), kInvalid, "add has ", add.size(), " values, x ", x.size());
    std::vector<float> y(x.size());
    float* to = arrays_.zeros<float>(y.size());
    stream_.run(AllReduce{.x = arrays_.copy(x.data(), x.size()),
                          .add = arrays_.copy(add.data(), add.size()),
                          .y = to,
                          .count = long(x.size()),
                          .ranks = ranks_});
    stream_.download(y.data(), to, y.size() * sizeof(float));
    return to_numpy<1>(std::move(y), {x.size()});
  }

  Array<float, 2> gather(const Floats<2>& x) {
    const size_t rows = x.shape(0), width = x.shape(1);
    std::vector<float> y(2 * x.size());
    float* to = arrays_.zeros<float>(y.size());
    stream_.run(AllGather{.x = arrays_.copy(x.data(), x.size()),
                          .y = to,
                          .rows = int(rows),
                          .widths = {int(width), int(width)},
                          .ranks = ranks_});
    stream_.download(y.data(), to, y.size() * sizeof(float));
    return to_numpy<2>(std::move(y), {rows, 2 * width});
  }

 private:
  GpuStream stream_;
  StreamArrays arrays_;
  RankMailboxes ranks_{};
};

}  // namespace

void bind_exchange(nb::module_& m) {
  m.def(
      "loopback_sum",
      [](PythonPack& pack, const Floats<1>& x, const Floats<1>& add) {
        return Loopback(pack, long(x.size() + 3) / 4 * 4).sum(x, add);
      },
      "pack"_a, "x"_a, "add"_a, "add + (x + x): an all-reduce of two ranks that are one device.");
  m.def(
      "loopback_gather", [](PythonPack& pack, const Floats<2>& x) { return Loopback(pack, long(x.size())).gather(x); },
      "pack"_a, "x"_a, "x twice, side by side: an all-gather of two ranks that are one device.");
  nb::class_<HeldRank, HeldStream>(m, "HeldRank", "A rank whose stream hangs.")
      .def("erase_arrival", &HeldRank::erase_arrival, Unlocked(),
           "Waits until a peer's values arrive, and erases their tags and flags.");
  m.def(
      "hold_rank",
      [](const Engine& engine, int rank) {
        return std::make_unique<HeldRank>(rank_stream(engine, rank), *engine.ranks(), rank);
      },
      "engine"_a, "rank"_a, nb::keep_alive<0, 1>(), Unlocked(),
      "Hangs the stream of a rank once the work sent before has ended.");
  m.def(
      "crash_rank", [](const Engine& engine, int rank) { crash(rank_stream(engine, rank)); }, "engine"_a, "rank"_a,
      "Sends a rank a kernel that writes to an address without memory. A GPU is lost to this process.");
  nb::class_<RankExchange>(m, "RankExchange", "The exchanges between ranks, one rank per pack.")
      .def(nb::init<const std::vector<PythonPack*>&, long, double, const std::string&>(), "packs"_a, "max_values"_a,
           "timeout_s"_a, "link"_a = "auto",
           "max_values: of an exchange; longer ones go in parts. Proves the path between the devices.")
      .def_prop_ro("links", &RankExchange::links, "\"peer\", or \"host: ...\" with the reason.")
      .def("hold", &RankExchange::hold, "rank"_a, nb::keep_alive<0, 1>(), Unlocked(), "As hold_rank().")
      .def("sum", &RankExchange::sum, "x"_a, "add"_a = nb::none(), "late"_a = -1, "delay_s"_a = 0.0, "absent"_a = -1,
           "add + the sum over ranks of x [ranks, count], on every rank: [ranks, count]. late: a rank that begins "
           "delay_s later; absent: a rank that never begins.")
      .def("gather", &RankExchange::gather, "x"_a,
           "The columns of all ranks, x[rank] [rows, width], side by side on every rank: [ranks, rows, total].")
      .def("time_us", &RankExchange::time_us, "count"_a, "n_exchanges"_a, "n_runs"_a,
           "Mean microseconds of an all-reduce of count values in a graph of n_exchanges.");
}

}  // namespace lb::kernels
