// Products of a few rows whose weights go straight into registers (src/gpu/gemm_skinny/gemm_skinny.h): how they are
// cut, and what they make of their sums.
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

inline int skinny_x_bits(const Linear& op) { return skinny_is_plain(op.type) ? 16 : 8; }

// Products of one x, of one type or of two that a kernel has, and what is made of their sums; fields as in GemmSkinny.
struct SkinnyStep {
  LinearGroup group;
  RoundedRows x;
  SkinnyNorm norm;
  const float* squares;
  float eps;
  Epilogue makes;
  const float* norm_w;
  RoundedRows made;
};
struct SkinnyLaunch {
  Launch launch;
  GemmSkinny params;
};

// Whether the target's pack has a kernel for such a group.
bool has_skinny(const LinearGroup& group, const Target& target);

// Of n groups of a type each and the same x, all of which have kernels, joins those of which one has both: the groups
// that are left.
int pair_types(LinearGroup* types, int n, const Target& target);

// `scratch`, 256-byte aligned, has skinny_scratch's pieces; `arrived` has kSkinnyArrivedBytes, zero at first, and nobody
// else's.
SkinnyLaunch skinny_launch(const SkinnyStep& step, std::byte* scratch, uint32_t* arrived, const Target& target);
inline constexpr size_t kSkinnyArrivedBytes = kSkinnyRanges * sizeof(uint32_t);

// What the steps of a group take at most: pieces of one of them, and x rounded.
struct SkinnyScratch {
  size_t pieces, x;
};
SkinnyScratch skinny_scratch(const LinearGroup& group, const Target& target);

// Groups of products one behind another. The last waits until it is known what reads its sums: a norm or a gate with
// products behind it is made where the sums are, without a launch of its own. Then its y is not written, nor is that of
// products that only a gate reads.
class DeferredGemm {
 public:
  bool is_empty() const { return n_ == 0; }

  // False, and nothing done, where a product has no kernel.
  bool begin(const LinearGroup& group, const RoundedRows& x, const Target& target);
  // The same for x that is op's y but for what the heads of a row are divided by, the sums of squares of o in x.sum.
  bool begin(const GatedRmsNorm& op, const LinearGroup& group, const RoundedRows& x, const Target& target);
  // The step that waited, to be started now, while the readers of what it makes wait. None, and nothing done, where op
  // reads something else, or a product has no kernel.
  std::optional<SkinnyStep> try_fuse(const RmsNorm& op, const LinearGroup& readers, const RoundedRows& made,
                                const Target& target);
  std::optional<SkinnyStep> try_fuse(const SwiGlu& op, const LinearGroup& readers, const RoundedRows& made,
                                const Target& target);
  // What waits, a step for each type or two, to be started as it is; there until the next begin().
  std::span<const SkinnyStep> take() { return {steps_, size_t(std::exchange(n_, 0))}; }

 private:
  bool append(const LinearGroup& group, const SkinnyStep& of_x, const Target& target);

  SkinnyStep steps_[kMaxProducts] = {};
  int n_ = 0;
};

}  // namespace lb::gpu
