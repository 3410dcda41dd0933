// Replay: draws how many tokens of each tree a benchmark accepts, from a recorded histogram. For weights whose drafts
// are never right, such as synthetic weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lb {

class Replay {
 public:
  // by_length: [n] number of trees with n accepted tokens. Throws kInvalid.
  Replay(std::span<const int64_t> by_length, uint64_t seed);
  int next();  // accepted tokens of the next tree

 private:
  std::vector<int64_t> up_to_;  // running sums of by_length
  double drawn_;                // [0, 1)
};

}  // namespace lb
