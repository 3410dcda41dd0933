// ModelDrafter: the draft model as a drafter. The streams grow its tree, which is either fetched to the host or left in
// place for the verify's append to read. On a GPU the next draft may run ahead, below a path that the device has
// accepted.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "engine/timeline.h"
#include "engine/tree_memory.h"
#include "ops/walk_tree.h"
#include "speculation/drafter.h"

namespace lb {

class ModelDrafter final : public Drafter {
 public:
  // memory: [shards] the session's, including the draft model's buffers. On ranks every shard drafts: the target's
  // head, which a draft needs, is divided among them, so one rank alone would need a second head and read all of it.
  // A draft model on a device of its own has a second head there. Its trees travel through the host, and so do the
  // trees of a draft model on the last of several devices that have layers.
  ModelDrafter(Timeline& timeline, std::span<const TreeMemory> memory);

  // Depth of the next tree; rows of a tree of that depth: all of its candidates, at most max_rows.
  int depth(int max_rows, int max_depth) const;
  int max_tree(int max_rows, int depth) const;

  // Computes the candidates below the root into the memory. The model reads the root and the state of the tokens before
  // it. False: its rows would not fit.
  bool start(const DraftRequest& request) override;
  Draft tree(int max_rows) override;
  // start() without the check, below a root that the device has written to the memory. The caller has reserved the rows
  // and taken the turn.
  void send(int32_t root, int depth);
  void send(int depth);
  int sent_depth() const { return sent_depth_; }
  // Grows a tree of up to max_rows rows in a shard's memory, and writes the positions of its first `rows` rows.
  void grow(int shard, int max_rows, int rows);

  // --- the next draft, ahead of the host
  // Whether the device may accept a path of this tree and draft below its end. The caller has the turn.
  bool fits_ahead();
  // Addresses to which the device writes its accepted path and the inputs of a draft below the path's end.
  AcceptPath accept_path(int shard);
  // Moves the K and V that the next draft reads along the accepted path: layers from first_moved_layer() on.
  void send_moves();
  int first_moved_layer() const;

  // Whether a benchmark's log probabilities replace the draft model's.
  void set_replayed(bool is_replayed) { is_replayed_ = is_replayed; }

 private:
  const DraftModel& model() const { return *timeline_.engine().draft_model(); }

  Timeline& timeline_;
  std::span<const TreeMemory> memory_;  // [shards]
  bool is_replayed_ = false;
  int sent_depth_ = 0;                                                        // depth of the draft whose candidates are
                                                                              // in the memory
  std::vector<std::array<std::unique_ptr<Recording>, kMaxTree>> recordings_;  // [shards] by depth
};

}  // namespace lb
