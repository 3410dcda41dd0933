// Skinny GEMM, 2 to 48 rows of x: which groups have a kernel, how a launch is cut, and which norm or gate it fuses.
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

// Bits of the x that a weight type reads: 16 (plain weights) or 8.
inline int skinny_x_bits(const Linear& op) { return skinny_is_plain(op.type) ? 16 : 8; }

// One launch before its geometry is known. `group` has one weight type, or two that a kernel covers; the other fields
// are those of GemmSkinny.
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

// Whether the target's pack has a kernel for the group as one launch.
bool has_skinny(const LinearGroup& group, const Target& target);

// Merges pairs of the n single-type groups that one two-type kernel covers; returns how many groups remain. All groups
// read one x and have kernels.
int pair_types(LinearGroup* types, int n, const Target& target);

// `scratch`, 256-byte aligned, has skinny_scratch().partials bytes. `arrived` has kSkinnyArrivedBytes, zero before the
// first launch; only skinny GEMMs write it.
SkinnyLaunch skinny_launch(const SkinnyStep& step, std::byte* scratch, uint32_t* arrived, const Target& target);
inline constexpr size_t kSkinnyArrivedBytes = kSkinnyRanges * sizeof(uint32_t);

// The most bytes that the steps of a group need: partials of one step, and the group's rounded x.
struct SkinnyScratch {
  size_t partials, x;
};
SkinnyScratch skinny_scratch(const LinearGroup& group, const Target& target);

// Defers the last group of skinny GEMMs until the op that reads its sums is known. A norm or gate becomes the epilogue
// of the deferred GEMM and needs no launch. Its own y is then not written, and neither is the y of GEMMs that only the
// gate reads.
class DeferredGemm {
 public:
  bool is_empty() const { return n_ == 0; }

  // Defers the group. Returns false, and does nothing, where a matrix has no kernel.
  bool begin(const LinearGroup& group, const RoundedRows& x, const Target& target);
  // The same where x is op's y without the factor of each head; x.sum has the sums of squares of op's o.
  bool begin(const GatedRmsNorm& op, const LinearGroup& group, const RoundedRows& x, const Target& target);
  // Fuses op into the deferred step, which writes next_x. Returns that step, to be launched now, and defers `readers`
  // in its place. Returns nothing, and does nothing, where op reads something else or a matrix has no kernel.
  std::optional<SkinnyStep> try_fuse(const RmsNorm& op, const LinearGroup& readers, const RoundedRows& next_x,
                                     const Target& target);
  std::optional<SkinnyStep> try_fuse(const SwiGlu& op, const LinearGroup& readers, const RoundedRows& next_x,
                                     const Target& target);
  // The deferred steps, to be launched unfused: one per weight type, or per pair of types. Valid until the next
  // begin().
  std::span<const SkinnyStep> take() { return {steps_, size_t(std::exchange(n_, 0))}; }

 private:
  bool defer(const LinearGroup& group, const SkinnyStep& of_x, const Target& target);

  SkinnyStep steps_[kMaxProducts] = {};
  int n_ = 0;
};

}  // namespace lb::gpu
