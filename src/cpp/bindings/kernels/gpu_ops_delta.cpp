// The ops between the projections of a recurrent layer and the last projection, as the engine sends them.
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "dispatch/gpu_stream.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

nb::dict delta_net(PythonPack& pack, const nb::kwargs& given) {
  DeviceMemory memory(pack);
  OpFields fields(memory, "delta_net", given);
  DeltaNet op{};
  operands(op, fields);
  Linear last{.rows = op.norm.rows, .n_in = op.norm.heads * op.norm.dim, .activations = Activations::kInt8};
  fields.scalar("last_type", last.type);
  fields.scalar("n_last", last.n_out);
  fields.weights("last", last.w, last.type, last.n_out, last.n_in);
  fields.out("product", last.y, {last.rows, last.n_out});
  fields.inside(last.x, "o", 0);
  fields.place();
  const LinearGroup readers{{last}, 1};
  pack.stream().synchronize();  // the engine's stream is another
  GpuStream stream(pack.shared(),
                   gpu::gemm_scratch_at(last, 16) + gpu::gemm_scratch_bytes(readers, pack.target()) +
                       gpu::gated_delta_scratch_bytes(op.delta, pack.target()),
                   kMaxTree);
  nb::dict started;
  for (const gpu::KernelTime& time : stream.time_kernels([&] { run_fused(op, readers, stream); }))
    started[time.kernel.c_str()] = time.launches;
  nb::dict results = fields.results();
  results["started"] = started;
  return results;
}

}  // namespace

void bind_gpu_delta(nb::module_& m) {
  m.def("delta_net", &delta_net, "pack"_a, "fields"_a,
        "DeltaNet by its fields, then the product of its norm with `last` (`last_type`, `n_last`): a dict of what they "
        "write, and in `started` the launches of each kernel. What a device need not write keeps its 0xff bytes.");
}

}  // namespace lb::kernels
