// DraftModel: a small network that proposes tokens for a target model to verify. Its layers follow the target's layers
// in the target's SequenceState, so commits, rewinds, snapshots and prefix reuse apply to them too:
//   context()  After a forward pass of the target, before end_append(): writes the draft layers' rows of the append,
//              computed from the target's tapped rows.
//   propose()  After begin_draft(): the likeliest tokens of each depth below the newest token.
// Plain decode steps on a GPU only store their tapped rows in a ring; step_context() writes the draft layers' rows of
// many steps together. Embedding and head are the target's. Tokens are only proposals: the target decides every token.
//
// If the target is split by tensors, every rank has a whole draft model, whose target is the rank's slice. The ranks
// exchange the logits of the head, so all propose the same tokens.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "models/model.h"
#include "models/network.h"
#include "ops/top_tokens.h"

namespace lb {

// Rows that the target has computed. All pointers are in the stream's memory.
struct DraftRows {
  const float* taps;         // [rows, n_taps * hidden]: Append::outputs of the layers taps()
  const int32_t* tokens;     // [rows]
  const int32_t* positions;  // [3, rows]
  int rows;
  std::span<const Segment> segments;
};

// Ring of the tapped rows of plain steps: slot s is in row s % kRows.
struct StepRing {
  // Room for the rows of a page, which one step_context() call processes, and for the row before them.
  static constexpr int kRows = 2 * kPageTokens;
  float* rows;  // [kRows, n_taps * hidden], in the stream's memory

  float* row(int slot, int width) const { return rows + static_cast<size_t>(slot % kRows) * width; }
};

// The newest token, which the target has not computed yet. All pointers are in the stream's memory.
struct DraftRoot {
  int32_t* token;      // [1]
  int32_t* positions;  // [3, max_depth + 1]: n_past + r on each axis
  int32_t* last_slot;  // [1] n_past - 1, the slot of the newest committed token
};

struct DraftWorkspace {
  float* taps;      // [max_rows, n_taps * hidden], the target of Append::outputs
  int32_t* ids;     // [depth, n_candidates] result of propose()
  float* logprobs;  // [depth, n_candidates] natural logarithms, descending
  float* hidden;    // [max_depth, hidden] each depth's row in the target's hidden space; of most kinds the head's input
  float* logits;    // [max_depth, vocab]
  float *cos, *sin;  // [max_rows, n_rot / 2]
  Carver scratch;
};

class DraftModel : public Network {
 public:
  const std::string& kind() const { return kind_; }      // "dflash", "mtp", "assistant"
  std::span<const int> taps() const { return taps_; }    // target layers whose output context() reads
  int tap_width() const;                                 // n_taps * hidden
  int max_depth() const { return max_depth_; }           // most tokens of a path
  int n_candidates() const { return n_candidates_; }     // candidates per depth of propose()
  bool is_sequential() const { return is_sequential_; }  // propose() runs depth by depth: fewer take less time

  // Whether a layer before this one is tapped.
  bool taps_before(int layer) const {
    return std::ranges::any_of(taps_, [&](int tap) { return tap < layer; });
  }
  // Call before use if the target is split by layers: the draft model is on this shard.
  void set_shard(int shard) { shard_ = shard; }

  // Whether propose() reads keys and values of the target's layers. They must then be on the draft's device, and moved
  // along an accepted path before propose().
  bool reads_target_cache() const { return reads_target_cache_; }

  size_t workspace_bytes(int max_rows) const;  // max_rows: most rows of an append of the target
  DraftWorkspace workspace(Carver carver, int max_rows) const;

  virtual void context(const DraftRows& rows, const DraftWorkspace& ws, Activations activations,
                       Stream& stream) const = 0;
  // Called when a plain step at `slot` has begun its append and the previous append was not a plain step.
  virtual void begin_steps(const StepRing&, int /*slot*/, SequenceState&, Stream&) const {}
  // Writes the rows of plain steps [slot, slot + rows.rows), which must be in one page. Ignores rows.taps.
  virtual void step_context(const StepRing& ring, int slot, const DraftRows& rows, const DraftWorkspace& ws,
                            Activations activations, Stream& stream) const = 0;
  // Called after a plain step at `slot`, before an append of another kind.
  virtual void end_steps(const StepRing&, int /*slot*/, SequenceState&, Stream&) const {}
  // Writes the likeliest tokens of each depth to ws.ids and ws.logprobs. The draft layers write up to max_depth() + 1
  // rows after n_past, which the next append overwrites; the state must have capacity for these rows.
  virtual void propose(const DraftRoot& root, int depth, SequenceState& state, const DraftWorkspace& ws,
                       Activations activations, Stream& stream) const = 0;

 protected:
  DraftModel(std::string kind, const Model& target);
  // Computes ws.ids and ws.logprobs of rows [row, row + rows) from ws.logits, whose first row holds row `row`.
  void top_tokens(const DraftWorkspace& ws, int row, int rows, float scale, float softcap, Stream& stream) const;
  virtual size_t scratch_bytes(int max_rows) const = 0;
  void check(int depth, const SequenceState& state) const;  // of propose()
  int shard() const { return shard_; }                      // of the SequenceState, which has these layers
  // Index in the SequenceState of one of layer_shapes().
  int state_layer(int i) const { return target_.info().n_layers + i; }

  const Model& target_;
  std::string kind_;
  std::vector<int> taps_;
  int max_depth_ = 0, n_candidates_ = 0, n_rot_ = 0;
  bool is_sequential_ = false, reads_target_cache_ = false;

 private:
  int shard_;
  DraftWorkspace carve(Carver& carver, int max_rows) const;
};

// The draft model in a separate file: DFlash, Gemma 4's assistant, or a file that holds only a prediction block (MTP).
// Throws kUnsupported when it does not fit the target. File and target must outlive the result.
std::unique_ptr<DraftModel> make_draft_model(const ModelFile& file, const Model& target);

// The prediction block (MTP) inside the target's own file; null when the file has none.
std::unique_ptr<DraftModel> make_mtp(const ModelFile& target_file, const Model& target);

}  // namespace lb
