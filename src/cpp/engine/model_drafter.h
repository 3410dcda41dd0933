// ModelDrafter: the draft model as a drafter. Its tree is grown on the stream: fetched to the host, or left where the
// append of a verify reads it. On a device the next draft may run ahead, below a path that the device has accepted.
#pragma once

#include <array>
#include <memory>

#include "engine/timeline.h"
#include "engine/tree_memory.h"
#include "ops/walk_tree.h"
#include "speculation/drafter.h"

namespace lb {

class ModelDrafter final : public Drafter {
 public:
  // memory: the session's, with the draft model's part.
  ModelDrafter(Timeline& timeline, const TreeMemory& memory);

  // Levels of the next tree, and the rows of such a tree: all of its candidates, or max_rows.
  int depth(int max_rows, int max_depth) const;
  int max_tree(int max_rows, int depth) const;

  // Leaves the candidates below the root in the memory. The model reads the root and what the state holds of the
  // tokens before it. False: its rows would not fit.
  bool start(const DraftRequest& request) override;
  Draft tree(int max_rows) override;
  // start() without the check, and below the root that the device has left in the memory. The caller has reserved the
  // rows and locked the mutex.
  void send(int32_t root, int depth);
  void send(int depth);
  int sent_depth() const { return sent_depth_; }
  // Grows the tree of up to max_rows rows in the memory, and the positions of its first `rows` rows.
  void grow(int max_rows, int rows);

  // --- the next draft, ahead of the host
  // Whether the device may accept a path of this tree and draft below its end. The caller has locked the mutex.
  bool fits_ahead();
  // Where the device accepts its path and leaves what a draft below its end reads.
  AcceptPath accept_path();
  // Moves the K and V of the draft layers along the accepted path.
  void send_moves();

  // In place of the draft model's log probabilities, while a benchmark replays.
  void set_logprobs(const float* logprobs) { logprobs_ = logprobs; }

 private:
  const DraftModel& model() const { return *timeline_.engine().draft_model(); }

  Timeline& timeline_;
  const TreeMemory& memory_;
  const float* logprobs_;
  int sent_depth_ = 0;                                           // of the draft whose candidates are in the memory
  std::array<std::unique_ptr<Recording>, kMaxTree> recordings_;  // by depth
};

}  // namespace lb
