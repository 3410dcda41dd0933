// Runs a recurrent layer's ops between the input projections and the output projection, as the engine does.
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "dispatch/gpu_stream.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

nb::tuple delta_net(PythonPack& pack, const nb::dict& last, const nb::kwargs& given) {
  DeviceOp<DeltaNet> op(pack, "delta_net", given);
  op.place();
  DeviceOp<Linear> reader(pack, "linear", last, {{"x", op.op.norm.y}});
  reader.place();
  const LinearGroup readers{{reader.op}, 1};
  pack.stream().synchronize();  // GpuStream below uses another queue
  GpuStream stream(pack.shared(),
                   gpu::gemm_scratch_at(reader.op, 16) + gpu::gemm_scratch_bytes(readers, pack.target()) +
                       gpu::gated_delta_scratch_bytes(op.op.delta, pack.target()),
                   kMaxTree);
  nb::dict started;
  for (const gpu::KernelTime& time : stream.time_kernels([&] { run_fused(op.op, readers, stream); }))
    started[time.kernel.c_str()] = time.launches;
  return nb::make_tuple(op.fields.results(), reader.fields.results(), started);
}

}  // namespace

void bind_gpu_delta(nb::module_& m) {
  m.def("delta_net", &delta_net, "pack"_a, "last"_a, "fields"_a,
        "A delta_net by its fields, then the product `last` of its norm, by its own fields but x: what either writes, "
        "and the launches of each kernel. What a device need not write keeps its 0xff bytes.");
}

}  // namespace lb::kernels
