// Choice of skinny GEMM, 2 to 48 rows of x: which groups have a kernel, how a launch is split, which norm or gate it
// fuses.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "gpu/gemm_skinny/shape.h"
#include "ops/rms_norm.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

// Bits per value of the x that a weight type reads: 16 for plain weights, else 8.
inline int skinny_x_bits(const Linear& op) { return skinny_is_plain(op.type) ? 16 : 8; }

// One skinny GEMM before its geometry is chosen. `group` has one weight type, or two types that one kernel covers. The
// other fields are GemmSkinny's.
struct SkinnyStep {
  LinearGroup group;
  RoundedRows x;
  SkinnyNorm norm;
  const float* squares;
  float eps;
  Epilogue epilogue;
  const float* norm_w;
  RoundedRows next_x;
};
struct SkinnyLaunch {
  Launch launch;
  GemmSkinny params;
};

// Whether the target's pack can multiply the group in one launch.
bool has_skinny(const LinearGroup& group, const Target& target);

// Merges pairs of the n single-type groups that one two-type kernel covers; returns how many groups remain. All groups
// must read one x and have kernels.
int pair_types(LinearGroup* types, int n, const Target& target);

// `scratch` is 256-byte aligned and has skinny_scratch().partials bytes. `arrived` has kSkinnyArrivedBytes, zero before
// the first launch; only skinny GEMMs write it.
SkinnyLaunch skinny_launch(const SkinnyStep& step, std::byte* scratch, uint32_t* arrived, const Target& target);
inline constexpr size_t kSkinnyArrivedBytes = kSkinnyRanges * sizeof(uint32_t);

// Upper bound in bytes over all steps of a group: partials of one step, and the group's rounded x.
struct SkinnyScratch {
  size_t partials, x;
};
SkinnyScratch skinny_scratch(const LinearGroup& group, const Target& target);

// Defers the last group of skinny GEMMs until the op that reads its sums is known. A norm or gate then becomes the
// epilogue of the deferred GEMM and needs no launch. The fused op's y is not written, and neither is the y of GEMMs
// that only the gate reads.
class DeferredGemm {
 public:
  // one_order: which ops are fused does not depend on the rows, up to 32.
  explicit DeferredGemm(bool one_order) : one_order_(one_order) {}
  bool is_empty() const { return n_ == 0; }
  // Whether y is written by the deferred GEMM, which is one step of one matrix.
  bool makes(const float* y) const { return n_ == 1 && steps_[0].group.n == 1 && steps_[0].group.products[0].y == y; }

  // Defers the group. Returns false, with no effect, if a matrix has no kernel.
  bool begin(const LinearGroup& group, const RoundedRows& x, const Target& target);
  // As above, for an x that is op's y without the factor of each head. x.sum holds the sums of squares of op's o.
  bool begin(const GatedRmsNorm& op, const LinearGroup& group, const RoundedRows& x, const Target& target);
  // As above, for an x that is op's y without the factor of each row, as the epilogue of another device's step made it.
  bool begin(const RmsNorm& op, const LinearGroup& group, const RoundedRows& x, const Target& target);
  // Fuses op into the deferred step, which then writes next_x. Returns that step, to be launched now, and defers
  // `readers` instead. Returns nullopt, with no effect, if op reads something else or a matrix has no kernel.
  std::optional<SkinnyStep> try_fuse(const RmsNorm& op, const LinearGroup& readers, const RoundedRows& next_x,
                                     const Target& target);
  std::optional<SkinnyStep> try_fuse(const SwiGlu& op, const LinearGroup& readers, const RoundedRows& next_x,
                                     const Target& target);
  // Returns the deferred steps, to be launched unfused: one per weight type, or per pair of types. Valid until the next
  // begin().
  std::span<const SkinnyStep> take() { return {steps_, size_t(std::exchange(n_, 0))}; }

 private:
  bool defer(const LinearGroup& group, const SkinnyStep& of_x, const Target& target);
  bool has_epilogue(const SkinnyStep& step, const Target& target) const;

  bool one_order_;
  SkinnyStep steps_[kMaxProducts] = {};
  int n_ = 0;
};

}  // namespace lb::gpu
