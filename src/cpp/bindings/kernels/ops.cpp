// Runs and times ops from their fields, on the CPU or on a pack's device, and measures the device's read bandwidth.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/op_memory.h"
#include "bindings/kernels/program.h"
#include "bindings/names.h"
#include "dispatch/gpu_stream.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

CpuStream cpu_stream(CpuStreamOptions options, int threads, const std::string& isa) {
  options.n_threads = threads;
  options.isa = isa_named(isa);
  return CpuStream(options);
}

std::vector<OpResults> run_calls(const std::vector<OpCall>& calls, PythonPack* pack, int threads,
                                 const std::string& isa) {
  LB_CHECK(!calls.empty(), kInvalid, "there is no call to run");
  if (pack == nullptr) {
    HostMemory memory;
    Program program(memory, calls, nullptr);
    CpuStream stream = cpu_stream(program.cpu_scratch(), threads, isa);
    program.run(stream);
    return program.results();
  }
  DeviceMemory memory(*pack);
  Program program(memory, calls, &pack->target());
  GpuStream stream(pack->shared(), program.scratch_bytes(), program.capacity());
  stream.record(&pack->launches());
  for (int i = 0; i < (program.counts_in_scratch() ? 2 : 1); ++i) program.run(stream);
  stream.wait();
  return program.results();
}

// The least seconds of one replay, of `tries` times `replays`, by the device's clock.
double seconds_of(GpuStream& stream, int replays, int tries, const std::function<void()>& work) {
  std::unique_ptr<Recording> recording;
  work();
  stream.wait();
  stream.replay(recording, work);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries; ++i) {
    const gpu::Event begin(stream.pack().device()), end(stream.pack().device());
    stream.queue().record(begin);
    for (int j = 0; j < replays; ++j) stream.replay(recording, work);
    stream.queue().record(end);
    end.synchronize();
    best = std::min(best, double(begin.elapsed_ms(end)) * 1e-3 / replays);
  }
  return best;
}

// Products by the device's clock, their x already rounded: the GEMV of one row, else the GEMM, which narrows x to
// 16-bit numbers within the time.
double seconds_of_products(GpuStream& stream, const std::deque<Program>& programs, int replays, int tries) {
  gpu::Pack& pack = stream.pack();
  const LinearGroup& group = programs[0].group();
  const Linear& first = group.products[0];
  const bool is_gemm = first.rows > 1 && gpu::has_gemm(group, pack.target());
  const int bits = is_gemm ? gpu::gemm_rounded_bits(group, pack.target()) : gpu::rounded_bits(group);
  const std::unique_ptr<Memory> arrived = stream.reserve(gpu::kSkinnyArrivedBytes);
  const std::unique_ptr<Memory> scratch = stream.reserve(programs[0].scratch_bytes());
  const RoundedRows x = bits ? rounded_rows(scratch->data(), first.rows, first.n_in, bits == 16) : RoundedRows{};
  if (bits) stream.run(RoundRows{.x = first.x, .y = x, .rows = first.rows, .n_in = first.n_in});
  const auto run = [&](const gpu::Launch& launch, const auto& params) { pack.run(launch, params, stream.queue()); };
  return seconds_of(stream, replays, tries, [&] {
    for (const Program& program : programs) {
      if (is_gemm) {
        std::byte* rest = scratch->data() + gpu::gemm_scratch_at(first, bits);
        auto* counters = reinterpret_cast<uint32_t*>(arrived->data());
        gpu::for_each_launch(gpu::choose_gemm(program.group(), x, rest, counters, pack.target()), run);
        continue;
      }
      const gpu::GemvLaunches gemv = gpu::choose(program.group(), x, pack.target());
      for (int i = 0; i < gemv.n; ++i) run(gemv.launches[i].launch, gemv.launches[i].params);
    }
  });
}

std::vector<std::string> texts(const std::vector<gpu::Launch>& launches) {
  std::vector<std::string> result;
  for (const gpu::Launch& launch : launches) result.push_back(gpu::to_string(launch));
  return result;
}

nb::dict time_on_device(const std::vector<OpCall>& calls, PythonPack& pack, int sets, int replays, int tries) {
  DeviceMemory memory(pack);
  std::deque<Program> programs;
  for (int i = 0; i < sets; ++i) programs.emplace_back(memory, calls, &pack.target());
  GpuStream stream(pack.shared(), programs[0].scratch_bytes(), programs[0].capacity());
  std::vector<gpu::Launch> launches;
  stream.record(&launches);
  programs[0].run(stream);
  stream.wait();
  stream.record(nullptr);
  nb::dict result;
  const bool is_product = calls.size() == 1 && std::get<0>(calls[0]) == "linear";
  const double seconds =
      is_product ? seconds_of_products(stream, programs, replays, tries) : seconds_of(stream, replays, tries, [&] {
        for (const Program& program : programs) program.run(stream);
      });
  result["seconds"] = seconds / sets;
  result["launches"] = texts(launches);
  programs[0].add_work(result);
  return result;
}

nb::dict time_on_cpu(const std::vector<OpCall>& calls, int replays, int tries, int threads, const std::string& isa) {
  HostMemory memory;
  const Program program(memory, calls, nullptr);
  CpuStream stream = cpu_stream(program.cpu_scratch(), threads, isa);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries + 1; ++i) {  // the first warms up
    const auto began = std::chrono::steady_clock::now();
    for (int j = 0; j < replays; ++j) program.run(stream);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (i > 0) best = std::min(best, took.count() / replays);
  }
  nb::dict result;
  result["seconds"] = best;
  program.add_work(result);
  return result;
}

nb::dict time_calls(const std::vector<OpCall>& calls, PythonPack* pack, int sets, int replays, int tries, int threads,
                    const std::string& isa) {
  LB_CHECK(!calls.empty() && sets >= 1 && replays >= 1 && tries >= 1, kInvalid,
           "calls, sets, replays and tries must be at least 1");
  return pack ? time_on_device(calls, *pack, sets, replays, tries) : time_on_cpu(calls, replays, tries, threads, isa);
}

nb::object read_memory(PythonPack& pack, nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> x) {
  const size_t n_blocks = size_t(gpu::read_blocks(pack.target()));
  DeviceMemory memory(pack);
  std::byte *from = memory.reserve(x.size()), *sums = memory.reserve(n_blocks * sizeof(uint32_t));
  memory.upload(from, x.data(), x.size());
  const ReadMemory op{.x = from, .bytes = x.size(), .sums = reinterpret_cast<uint32_t*>(sums)};
  const gpu::Launch launch = gpu::choose(op, pack.target());
  pack.launches().push_back(launch);
  pack.shared()->run(launch, op, pack.queue());
  auto values = std::make_unique<uint32_t[]>(n_blocks);
  memory.download(values.get(), sums, n_blocks * sizeof(uint32_t));
  return to_numpy(std::move(values), {n_blocks});
}

double read_bandwidth(PythonPack& pack, size_t bytes, int sets, int replays, int tries) {
  LB_CHECK(bytes >= 16 && sets >= 1 && replays >= 1 && tries >= 1, kInvalid,
           "bytes must be at least 16; sets, replays and tries at least 1");
  bytes = bytes / 16 * 16;
  DeviceMemory memory(pack);
  const std::byte* x = memory.random(sets * bytes, 88172645463325252ull);
  auto* sums = reinterpret_cast<uint32_t*>(memory.reserve(gpu::read_blocks(pack.target()) * sizeof(uint32_t)));
  GpuStream stream(pack.shared(), 0, 0);
  const double seconds = seconds_of(stream, replays, tries, [&] {
    for (int set = 0; set < sets; ++set) {
      const ReadMemory op{.x = x + set * bytes, .bytes = bytes, .sums = sums};
      pack.shared()->run(gpu::choose(op, pack.target()), op, stream.queue());
    }
  });
  return double(sets * bytes) / seconds;
}

}  // namespace

void bind_ops(nb::module_& m) {
  m.def("run", &run_calls, "calls"_a, "pack"_a.none() = nb::none(), "threads"_a = 1, "isa"_a = "auto",
        "Runs calls (op, fields, readers) in order, on the CPU or on a pack's device, and returns what the ops of each "
        "wrote, and its readers. `fields` has a dict for each sequence; of a linear, for each product of one x. "
        "`readers` are the linears that read the result, which the stream may fuse. Names of ops and fields are as in "
        "src/cpp/ops/operands.h. An output that is given the name of an input takes that input's memory. An input that "
        "is given as (call, op, field) is what that earlier op wrote. Rounded rows are given as their bits, 8 or 16; "
        "weights may be the seed of random bytes.");
  m.def("time", &time_calls, "calls"_a, "pack"_a.none() = nb::none(), "sets"_a = 1, "replays"_a = 20, "tries"_a = 5,
        "threads"_a = 1, "isa"_a = "auto",
        "Seconds of calls as of run(), over `sets` copies of their memory in turn on a device, by its clock, with its "
        "launches. A product's x is already rounded. Of products and attention also the bytes that have to move, of "
        "attention the flops of the slots that a linear append sees.");
  m.def(
      "take_launches", [](PythonPack& pack) { return texts(std::exchange(pack.launches(), {})); }, "pack"_a,
      "The launches of run(), read_memory() and the sampler since the last call of this, as text.");
  m.def("read_memory", &read_memory, "pack"_a, "x"_a, "Sums of the 32-bit words that each block has read.");
  m.def("read_bandwidth", &read_bandwidth, "pack"_a, "bytes"_a = size_t(1) << 30, "sets"_a = 1, "replays"_a = 20,
        "tries"_a = 5, "Bytes a second of a kernel that only reads `bytes` a launch, from `sets` buffers in turn.");
}

}  // namespace lb::kernels
