// The smallest schedule there is: a norm and a product of it as logits, the sampler and the end of a step, through the
// megakernel that takes the weights.
#include <cstring>

#include "bindings/bindings.h"
#include "bindings/gpu_call.h"
#include "launch/schedule.h"

using namespace nanobind::literals;

namespace lb {
namespace {

// `missing`: arrivals that the first phase waits for and that never come.
nb::object megakernel(PythonPack& pack, In<float, 1> x, In<float, 1> norm, float eps, const Bytes& w,
                      const std::string& dtype, int n_out, uint32_t missing) {
  const DType type = dtype_named(dtype);
  const int n_in = size(x, 0);
  check_shape("norm", norm, {x.shape(0)});
  Call call(pack);
  float* logits = call.out<float>(n_out);
  const float* given = call.in(x);
  float* y = call.out<float>(n_in);
  gpu::Schedule schedule(pack.target(), 1, nullptr);
  schedule.feed(RmsNorm{given, call.in(norm), y, 1, 1, n_in, n_in, n_in, eps},
                {{{.w = call.weights(w, type, n_out, n_in),
                   .type = type,
                   .x = y,
                   .add = nullptr,
                   .y = logits,
                   .rows = 1,
                   .n_in = n_in,
                   .n_out = n_out,
                   .activations = Activations::kInt8}},
                 1});

  struct Pinned {
    Sampled slot;
    uint32_t written;
    gpu::MegaReport report;
  };
  const gpu::Buffer memory(pack.device(), sizeof(Pinned), gpu::Buffer::Kind::kPinned);
  std::memset(memory.data(), 0, memory.size());
  auto* pinned = reinterpret_cast<Pinned*>(memory.data());
  const SampleOptions options{.top_p = 1, .typical_p = 1, .repetition_penalty = 1, .n_top = -1};
  const auto zeros = [&](size_t count) { return static_cast<int32_t*>(call.zeros(count * sizeof(int32_t))); };
  const Sample sample{.logits = logits,
                      .options = call.in(&options, 1),
                      .bias = nullptr,
                      .counts = static_cast<TokenCounts*>(call.zeros(n_out * sizeof(TokenCounts))),
                      .history = zeros(1),
                      .state = static_cast<SampleState*>(call.zeros(sizeof(SampleState))),
                      .result = call.out<Sampled>(1),
                      .vocab = n_out,
                      .capacity = 1};
  const NextToken next{.sampled = sample.result,
                       .ring = {.slots = &pinned->slot, .written = &pinned->written, .capacity = 1},
                       .n_written = static_cast<uint32_t*>(call.zeros(sizeof(uint32_t))),
                       .token = zeros(1),
                       .n_past = nullptr,
                       .key_buffer = nullptr,
                       .n_accepted = nullptr,
                       .accepted = nullptr,
                       .positions = nullptr,
                       .n_positions = 0};
  void* scratch = call.zeros(gpu::sample_scratch_bytes(n_out));
  const gpu::MegaPlan plan = schedule.compile(gpu::choose(sample, scratch, pack.target()).params, next);
  const gpu::Mega mega = {.tasks = call.in(plan.tasks),
                          .steps = call.in(plan.steps),
                          .streams = call.in(plan.streams),
                          .stream_counts = call.in(plan.stream_counts),
                          .arrived = static_cast<uint32_t*>(call.zeros(sizeof(uint32_t))),
                          .first = missing,
                          .n_steps = plan.n_steps,
                          .n_phases = plan.n_phases,
                          .n_tokens = 1,
                          .n_streams = plan.n_streams,
                          .memory = plan.memory,
                          .patience_ns = 100'000'000,
                          .report = &pinned->report,
                          .times = nullptr};
  pack.run(plan.launch, mega);
  pack.stream().synchronize();
  LB_CHECK(pinned->report.stuck == 0, kInternal, "[megakernel] a block gave up waiting for phase ",
           pinned->report.stuck - 1);
  LB_CHECK(pinned->written == 1, kInternal, "[megakernel] the step did not end");
  return call.read(logits, n_out);
}

}  // namespace

void bind_gpu_megakernel(nb::module_& m) {
  m.def("megakernel", &megakernel, "pack"_a, "x"_a, "norm"_a, "eps"_a, "w"_a, "dtype"_a, "n_out"_a, "missing"_a = 0,
        "The logits of a norm and a product, as one phase of a megakernel, with the sampler behind it.");
}

}  // namespace lb
