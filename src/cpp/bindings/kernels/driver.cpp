// Low-level device access for the tests: memory to and from numpy, modules from bytes, launches with parameters as
// bytes. Calls that may wait release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <array>
#include <optional>
#include <string>

#include "base/error.h"
#include "bindings/kernels/bindings.h"
#include "device/graph.h"
#include "device/memory.h"
#include "device/module.h"
#include "device/numa.h"
#include "device/queue.h"
#include "device/sim_thread.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Read = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Write = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

void check_range(const gpu::Buffer& buffer, size_t offset, size_t bytes) {
  LB_CHECK(offset <= buffer.size() && bytes <= buffer.size() - offset, kInvalid, bytes, " bytes at ", offset,
           " do not fit a buffer of ", buffer.size());
}

// Synchronous: the caller may free or read the array as soon as the call returns.
void write(const gpu::Buffer& buffer, Read array, const gpu::Queue& stream, size_t offset) {
  check_range(buffer, offset, array.nbytes());
  const nb::gil_scoped_release unlocked;
  stream.copy_to_device(buffer.data() + offset, array.data(), array.nbytes());
  stream.synchronize();
}

void read(const gpu::Buffer& buffer, Write array, const gpu::Queue& stream, size_t offset) {
  check_range(buffer, offset, array.nbytes());
  const nb::gil_scoped_release unlocked;
  stream.copy_to_host(array.data(), buffer.data() + offset, array.nbytes());
  stream.synchronize();
}

void copy(const gpu::Queue& stream, const gpu::Buffer& to, const gpu::Buffer& from, size_t bytes, size_t to_offset,
          size_t from_offset) {
  check_range(to, to_offset, bytes);
  check_range(from, from_offset, bytes);
  stream.copy_on_device(to.data() + to_offset, from.data() + from_offset, bytes);
}

void copy_peer(const gpu::Queue& stream, const gpu::Buffer& to, const gpu::Device& to_device, const gpu::Buffer& from,
               const gpu::Device& from_device, size_t bytes) {
  check_range(to, 0, bytes);
  check_range(from, 0, bytes);
  stream.copy_peer(to.data(), to_device, from.data(), from_device, bytes);
}

void launch(const gpu::Queue& stream, const gpu::Kernel& kernel, std::array<uint32_t, 3> grid,
            std::array<uint32_t, 3> block, nb::bytes params, size_t shared_bytes, bool cooperative, uint32_t cluster,
            bool overlap_previous) {
  const gpu::LaunchShape shape{.grid = {grid[0], grid[1], grid[2]},
                               .block = {block[0], block[1], block[2]},
                               .shared_bytes = shared_bytes,
                               .cooperative = cooperative,
                               .cluster = cluster,
                               .overlap_previous = overlap_previous};
  const nb::gil_scoped_release unlocked;
  stream.launch(kernel, shape, params.c_str(), params.size());
}

// A graph captured by a Python `with` block: empty until the first block ends; later blocks update it.
class CapturedGraph {
 public:
  explicit CapturedGraph(const gpu::Queue& stream) : stream_(stream) {}

  void enter() { capture_.emplace(stream_); }
  void exit(bool failed) {
    LB_CHECK(capture_.has_value(), kInvalid, "the graph is not capturing");
    if (!failed && graph_) was_updated_ = graph_->update(*capture_);
    if (!failed && !graph_) graph_.emplace(capture_->finish());
    capture_.reset();
  }
  void launch(const gpu::Queue& stream) const {
    LB_CHECK(graph_.has_value(), kInvalid, "the graph has nothing captured yet");
    graph_->launch(stream);
  }
  bool was_updated() const { return was_updated_; }

 private:
  const gpu::Queue& stream_;
  std::optional<gpu::Capture> capture_;
  std::optional<gpu::Graph> graph_;
  bool was_updated_ = false;
};

int memory_policy_near(int node) {
  const gpu::NumaPreference near(node);
  return gpu::memory_policy();
}

void bind_memory(nb::module_& m) {
  nb::class_<gpu::Buffer>(m, "Buffer", "Device memory, or pinned memory of the host; its contents start undefined.")
      .def(
          "__init__",
          [](gpu::Buffer* self, const gpu::Device& device, size_t bytes, bool pinned) {
            new (self) gpu::Buffer(device, bytes, pinned ? gpu::Buffer::Kind::kPinned : gpu::Buffer::Kind::kDevice);
          },
          "device"_a, "bytes"_a, "pinned"_a = false)
      .def_prop_ro("address", [](const gpu::Buffer& b) { return reinterpret_cast<uintptr_t>(b.data()); })
      .def("__len__", &gpu::Buffer::size)
      .def("write", &write, "array"_a, "stream"_a, "offset"_a = 0, "Copies an array in, and waits.")
      .def("read", &read, "array"_a, "stream"_a, "offset"_a = 0, "Copies out into an array, and waits.");

  nb::class_<gpu::Module>(m, "Module", "A loaded code object.")
      .def(
          "__init__",
          [](gpu::Module* self, const gpu::Device& device, nb::bytes image, std::string label) {
            new (self) gpu::Module(device, std::as_bytes(std::span(image.c_str(), image.size())), std::move(label));
          },
          "device"_a, "image"_a, "label"_a = "the module", "The label names the code object in errors.")
      .def_prop_ro("label", &gpu::Module::label)
      .def("kernel", &gpu::Module::kernel, "name"_a);

  nb::class_<gpu::Kernel>(m, "Kernel", "A kernel that takes one struct by value.")
      .def_prop_ro("name", &gpu::Kernel::name)
      .def_prop_ro("max_threads", &gpu::Kernel::max_threads)
      .def_prop_ro("registers", &gpu::Kernel::registers)
      .def_prop_ro("static_shared_bytes", &gpu::Kernel::static_shared_bytes)
      .def_prop_ro("local_bytes", &gpu::Kernel::local_bytes)
      .def_prop_ro("max_dynamic_shared_bytes", &gpu::Kernel::max_dynamic_shared_bytes)
      .def_prop_ro("params_bytes", &gpu::Kernel::params_bytes, "0 where the driver does not tell.")
      .def("allow_shared", &gpu::Kernel::allow_shared, "bytes"_a)
      .def("occupancy", &gpu::Kernel::occupancy, "threads"_a, "shared_bytes"_a = 0, "Blocks that fit on one SM.");
}

void bind_queue(nb::module_& m) {
  nb::class_<gpu::Event>(m, "Event", "A point in a stream.")
      .def(nb::init<const gpu::Device&>(), "device"_a)
      .def("synchronize", &gpu::Event::synchronize, Unlocked())
      .def("elapsed_ms", &gpu::Event::elapsed_ms, "later"_a, "Milliseconds from this event to a later one.");

  nb::class_<gpu::Queue>(m, "Stream", "Work in order.")
      .def(nb::init<const gpu::Device&>(), "device"_a)
      .def("launch", &launch, "kernel"_a, "grid"_a, "block"_a, "params"_a, nb::kw_only(), "shared_bytes"_a = 0,
           "cooperative"_a = false, "cluster"_a = 0, "overlap_previous"_a = false)
      .def("copy", &copy, "to"_a, "from_"_a, "bytes"_a, "to_offset"_a = 0, "from_offset"_a = 0)
      .def("copy_peer", &copy_peer, "to"_a, "to_device"_a, "from_"_a, "from_device"_a, "bytes"_a)
      .def(
          "fill",
          [](const gpu::Queue& stream, const gpu::Buffer& to, uint8_t value) {
            stream.fill(to.data(), value, to.size());
          },
          "to"_a, "value"_a)
      .def("record", &gpu::Queue::record, "event"_a)
      .def("wait", &gpu::Queue::wait, "event"_a)
      .def("synchronize", &gpu::Queue::synchronize, Unlocked())
      .def("is_done", &gpu::Queue::is_done, "Whether all work sent so far has ended.");

  nb::class_<CapturedGraph>(m, "Graph", "What a `with` block sent to a stream; a later block updates it.")
      .def(nb::init<const gpu::Queue&>(), "stream"_a, nb::keep_alive<1, 2>())
      .def("__enter__",
           [](nb::object self) {
             nb::cast<CapturedGraph&>(self).enter();
             return self;
           })
      .def(
          "__exit__",
          [](CapturedGraph& graph, nb::object type, nb::object, nb::object) { graph.exit(!type.is_none()); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none())
      .def("launch", &CapturedGraph::launch, "stream"_a, Unlocked())
      .def_prop_ro("was_updated", &CapturedGraph::was_updated, "Whether the last capture fitted the graph in place.");
}

}  // namespace

void bind_driver(nb::module_& m) {
  m.def("delay_sim_device", &gpu::delay_sim_device, "device"_a, "seconds"_a,
        "Injects a fault: the next kernel on this simulated device begins this much later.");
  m.def("corrupt_sim_link", &gpu::corrupt_sim_link, "device"_a, "flipped"_a, "every"_a, "n_wrong"_a,
        "Injects a fault: every `every`-th word that kernels of this simulated device send to other devices arrives "
        "with these bits inverted, until n_wrong words have.");
  m.def("enable_peer", &gpu::Device::enable_peer, "device"_a, "peer"_a, "Lets a device reach the memory of another.");
  m.def("numa_node", &gpu::numa_node, "pci"_a, "folder"_a,
        "The NUMA node of the device at a PCI address, or -1 if the system names none. folder: of all PCI devices.");
  m.def("memory_policy_near", &memory_policy_near, "node"_a,
        "The kernel's number of this thread's memory policy while its pages come from a node; -1: there is none.");
  bind_memory(m);
  bind_queue(m);
}

}  // namespace lb::kernels
