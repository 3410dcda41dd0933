// DraftExperience: the learned acceptance of a drafter's nodes, for one model and one kind of sampling. The engine
// keeps it from sequence to sequence and a file from process to process, so that a first step drafts with the right
// width.
#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "speculation/acceptance.h"
#include "speculation/expected_tree.h"

namespace lb {

enum DraftSource { kFromText, kFromModel, kDraftSources };

struct DraftExperience {
  std::array<Acceptance, kDraftSources> acceptance;
  ExpectedTree expected;  // of the draft model

  std::vector<double> numbers() const;  // for a file
  // Throws kInvalid for other numbers than numbers() returns.
  static DraftExperience from(std::span<const double> numbers);
};

// Sampled tokens follow a draft less often than the most likely ones.
enum class SamplingKind { kGreedy, kSampled };
constexpr int kSamplingKinds = 2;

// The newest experience of an engine's sequences, by kind of sampling. Thread-safe.
class Experiences {
 public:
  std::optional<DraftExperience> newest(SamplingKind kind) const {
    const std::lock_guard lock(mutex_);
    return newest_[int(kind)];
  }
  // nullopt: forgets the kind.
  void keep(SamplingKind kind, const std::optional<DraftExperience>& experience) {
    const std::lock_guard lock(mutex_);
    newest_[int(kind)] = experience;
  }

 private:
  mutable std::mutex mutex_;
  std::array<std::optional<DraftExperience>, kSamplingKinds> newest_;
};

}  // namespace lb
