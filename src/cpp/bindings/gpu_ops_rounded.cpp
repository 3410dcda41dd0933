// The ops that also round what they make, and the rounding alone. The rounded rows come as the bytes of their one
// allocation: codes, low codes where there are 16 bits, scales, sums.
#include "bindings/bindings.h"
#include "bindings/gpu_call.h"

using namespace nanobind::literals;

namespace lb {
namespace {

struct Rounded {
  uint8_t* at;
  size_t bytes;
  RoundedRows rows;
};

Rounded room_for(Call& call, size_t rows, size_t n_in, int bits) {
  LB_CHECK(bits == 8 || bits == 16, kInvalid, "x is rounded to 8 or 16 bits, got ", bits);
  const size_t bytes = rounded_bytes(int(rows), int(n_in), bits == 16);
  auto* at = call.out<uint8_t>(bytes);
  return {at, bytes, rounded_rows(at, int(rows), int(n_in), bits == 16)};
}

nb::object round_rows(PythonPack& pack, FloatMatrix x, int bits) {
  Call call(pack);
  const Rounded rounded = room_for(call, x.shape(0), x.shape(1), bits);
  pack.run(RoundRows{.x = call.in(x), .y = rounded.rows, .rows = size(x, 0), .n_in = size(x, 1)});
  return call.read(rounded.at, rounded.bytes);
}

nb::tuple rms_norm_rounded(PythonPack& pack, In<float, 3> x, In<float, 1> w, float eps, int bits) {
  check_shape("w", w, {x.shape(2)});
  Call call(pack);
  float* y = call.out<float>(x.size());
  const Rounded rounded = room_for(call, x.shape(0), x.shape(1) * x.shape(2), bits);
  pack.run(RmsNorm{.x = call.in(x),
                   .w = call.in(w),
                   .y = y,
                   .rows = size(x, 0),
                   .heads = size(x, 1),
                   .dim = size(x, 2),
                   .row_stride = long(x.shape(1) * x.shape(2)),
                   .head_stride = long(x.shape(2)),
                   .eps = eps,
                   .rounded = rounded.rows});
  return nb::make_tuple(call.read(y, x.shape(0), x.shape(1), x.shape(2)), call.read(rounded.at, rounded.bytes));
}

nb::tuple gated_rms_norm_rounded(PythonPack& pack, In<float, 3> o, In<float, 3> z, In<float, 1> w, float eps,
                                 int bits) {
  check_shape("z", z, {o.shape(0), o.shape(1), o.shape(2)});
  check_shape("w", w, {o.shape(2)});
  Call call(pack);
  float* y = call.in_out(o.data(), o.size());  // in place, as the engine does
  const Rounded rounded = room_for(call, o.shape(0), o.shape(1) * o.shape(2), bits);
  pack.run(GatedRmsNorm{.o = y,
                        .z = call.in(z),
                        .w = call.in(w),
                        .y = y,
                        .rows = size(o, 0),
                        .heads = size(o, 1),
                        .dim = size(o, 2),
                        .eps = eps,
                        .rounded = rounded.rows});
  return nb::make_tuple(call.read(y, o.shape(0), o.shape(1), o.shape(2)), call.read(rounded.at, rounded.bytes));
}

nb::tuple swiglu_rounded(PythonPack& pack, FloatMatrix gate, FloatMatrix up, int bits) {
  check_shape("up", up, {gate.shape(0), gate.shape(1)});
  Call call(pack);
  float* y = call.in_out(gate.data(), gate.size());  // in place, as the engine does
  const Rounded rounded = room_for(call, gate.shape(0), gate.shape(1), bits);
  pack.run(SwiGlu{
      .gate = y, .up = call.in(up), .y = y, .rows = size(gate, 0), .dim = size(gate, 1), .rounded = rounded.rows});
  return nb::make_tuple(call.read(y, gate.shape(0), gate.shape(1)), call.read(rounded.at, rounded.bytes));
}

}  // namespace

void bind_gpu_rounded(nb::module_& m) {
  m.def("round_rows", &round_rows, "pack"_a, "x"_a, "bits"_a, "The bytes of the rounded rows.");
  m.def("rms_norm_rounded", &rms_norm_rounded, "pack"_a, "x"_a, "w"_a, "eps"_a, "bits"_a,
        "The norm, and the bytes of its rounded rows.");
  m.def("gated_rms_norm_rounded", &gated_rms_norm_rounded, "pack"_a, "o"_a, "z"_a, "w"_a, "eps"_a, "bits"_a);
  m.def("swiglu_rounded", &swiglu_rounded, "pack"_a, "gate"_a, "up"_a, "bits"_a);
}

}  // namespace lb
