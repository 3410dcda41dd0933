// Replay: how many tokens of each tree a benchmark accepts, drawn from a recorded histogram. For weights whose drafts
// are never right, such as synthetic ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lb {

class Replay {
 public:
  // by_length: [n] trees of which n tokens were accepted. Throws kInvalid.
  Replay(std::span<const int64_t> by_length, uint64_t seed);
  int next();  // accepted tokens of the next tree

 private:
  std::vector<int64_t> up_to_;  // running sums of by_length
  double drawn_;                // [0, 1)
};

}  // namespace lb
