// Links between devices without a model, for `lucebox doctor` and tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/rank_faults.h"
#include "dispatch/linked_streams.h"
#include "engine/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;
using Values = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::pair<std::string, double> prove_link(const gpu::Device& sender, const gpu::Device& receiver, size_t row_bytes) {
  constexpr size_t kMaxBytes = size_t(1) << 20;
  GpuStream from(std::make_shared<gpu::Pack>(sender), 0, 0), to(std::make_shared<gpu::Pack>(receiver), 0, 0);
  DeviceLink link(from, to, std::max(row_bytes, kMaxBytes), LinkPath::kAuto);
  return {link.to_string(), link.time_us(row_bytes)};
}

// Devices that hand rows from each to the next, as a model that is split by layers.
class LinkChain {
 public:
  LinkChain(const std::vector<gpu::Device>& devices, size_t max_values, double timeout_s) {
    const size_t bytes = max_values * sizeof(float);
    std::vector<GpuStream*> all;
    for (const gpu::Device& device : devices) {
      all.push_back(&streams_.emplace_back(std::make_shared<gpu::Pack>(device), 0, 0, nullptr, false,
                                           gpu::Queue::Runner::kOwnThread));
      rows_.push_back(all.back()->reserve(bytes));
    }
    std::vector<std::vector<DeviceLink*>> links;
    for (size_t i = 0; i + 1 < all.size(); ++i)
      links.push_back({&links_.emplace_back(*all[i], *all[i + 1], bytes, LinkPath::kAuto)});
    group_ = std::make_unique<LinkedStreams>(std::move(all), std::move(links), nullptr, uint64_t(timeout_s * 1e9));
  }

  std::unique_ptr<HeldStream> hold(int device) { return std::make_unique<HeldStream>(streams_.at(device)); }
  void restart() { group_->restart(); }

  Array<float, 1> pass_on(const Values& x) {
    const size_t bytes = x.size() * sizeof(float);
    LB_CHECK(bytes <= rows_[0]->size(), kInvalid, "x has ", x.size(), " values, more than max_values");
    std::vector<float> y(x.size());
    {
      const nb::gil_scoped_release unlocked;
      streams_.front().upload(rows_.front()->data(), x.data(), bytes);
      for (size_t i = 0; i < links_.size(); ++i) links_[i].send(rows_[i + 1]->data(), rows_[i]->data(), bytes);
      streams_.back().download(y.data(), rows_.back()->data(), bytes);
    }
    return to_numpy<1>(std::move(y), {x.size()});
  }

 private:
  std::deque<GpuStream> streams_;
  std::vector<std::unique_ptr<Memory>> rows_;  // on each device
  std::deque<DeviceLink> links_;
  std::unique_ptr<LinkedStreams> group_;
};

}  // namespace

void bind_link(nb::module_& m) {
  m.def(
      "prove_link", &prove_link, "sender"_a, "receiver"_a, "row_bytes"_a, Unlocked(),
      "Sends known answers as a model that is split by layers does. Returns the path (\"peer\", or \"host: ...\" with "
      "the reason), and the mean microseconds of a row.");
  nb::class_<HeldStream>(m, "HeldStream", "A fault: a stream that hangs until release(), or the end of a `with`.")
      .def("release", &HeldStream::release)
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](HeldStream& self, const nb::args&) { self.release(); });
  m.def(
      "hold_device",
      [](const Engine& engine, int shard) {
        LB_CHECK(shard >= 0 && shard < engine.n_shards(), kInvalid, "the engine has no device ", shard);
        return std::make_unique<HeldStream>(static_cast<GpuStream&>(engine.shards()[shard]->stream()));
      },
      "engine"_a, "shard"_a, nb::keep_alive<0, 1>(), Unlocked(),
      "Hangs the stream of a device of a model once the work sent before has ended.");
  nb::class_<LinkChain>(m, "LinkChain", "Devices that hand rows from each to the next.")
      .def(nb::init<const std::vector<gpu::Device>&, size_t, double>(), "devices"_a, "max_values"_a, "timeout_s"_a,
           "timeout_s: of a device that makes no progress.")
      .def("hold", &LinkChain::hold, "device"_a, nb::keep_alive<0, 1>(), Unlocked(), "As hold_device().")
      .def("restart", &LinkChain::restart, Unlocked(), "After an error; raises while a device still hangs.")
      .def("pass_on", &LinkChain::pass_on, "x"_a, "x [count], which goes through the memory of each device.");
}

}  // namespace lb::kernels
