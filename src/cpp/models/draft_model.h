// DraftModel: a small network that proposes tokens for a target model to verify. Its layers are layers of the target's
// SequenceState, behind the target's own, so that commits, rewinds, snapshots and prefix reuse hold for them too:
//   context()  Behind every forward pass of the target, before end_append(): writes the draft layers' rows of the
//   append,
//              made of what the target has just computed.
//   propose()  Behind begin_draft(): the likeliest tokens of each depth below the newest token.
// Embedding and head are the target's. Tokens are proposals: the target decides every one of them.
#pragma once

#include <memory>
#include <string>

#include "models/model.h"
#include "models/network.h"
#include "ops/top_tokens.h"

namespace lb {

// Rows of an append that the target has computed. All pointers in the stream's memory.
struct DraftRows {
  const float* taps;         // [rows, n_taps * hidden], as Append::outputs of taps(); null without taps
  const float* hidden;       // [rows, hidden] after the target's final norm
  const int32_t* tokens;     // [rows]
  const int32_t* positions;  // [3, rows]
  Tree tree;
  int rows;
};

// The newest token, which the target has not computed yet. Pointers in the stream's memory.
struct DraftRoot {
  int32_t* token;      // [1]
  int32_t* positions;  // [3, max_depth + 1]: n_past + r on each axis
};

struct DraftWorkspace {
  float* taps;       // [max_rows, n_taps * hidden], for Append::outputs; null without taps
  int32_t* ids;      // [depth, n_candidates] result of propose()
  float* logprobs;   // [depth, n_candidates] natural logarithms, descending
  float* hidden;     // [max_depth, hidden] that the head has read
  float* logits;     // [max_depth, vocab]
  float *cos, *sin;  // [max_rows, n_rot / 2]
  Carver scratch;
};

class DraftModel : public Network {
 public:
  const std::string& kind() const { return kind_; }    // "dflash", "mtp"
  std::span<const int> taps() const { return taps_; }  // layers of the target that context() reads the output of
  int max_depth() const { return max_depth_; }         // most tokens of a path
  int n_candidates() const { return n_candidates_; }   // tokens that propose() leaves at each depth

  size_t workspace_bytes(int max_rows) const;  // max_rows: of an append of the target
  DraftWorkspace workspace(Carver carver, int max_rows) const;

  virtual void context(const DraftRows& rows, SequenceState& state, const DraftWorkspace& ws, Activations activations,
                       Stream& stream) const = 0;
  // Leaves the likeliest tokens of each depth in ws.ids and ws.logprobs. The draft layers write up to max_depth() + 1
  // rows behind n_past, which the next append overwrites: the state's capacity must reach that far.
  virtual void propose(const DraftRoot& root, int depth, SequenceState& state, const DraftWorkspace& ws,
                       Activations activations, Stream& stream) const = 0;

 protected:
  DraftModel(std::string kind, const Model& target);
  // ws.ids and ws.logprobs of rows [row, row + rows) from ws.logits, whose first row is row `row`.
  void top_tokens(const DraftWorkspace& ws, int row, int rows, float scale, float softcap, Stream& stream) const;
  virtual size_t scratch_bytes(int max_rows) const = 0;
  void check(int depth, const SequenceState& state) const;  // of propose()
  // Index in the SequenceState of one of layer_shapes().
  int state_layer(int i) const { return target_.info().n_layers + i; }

  const Model& target_;
  std::string kind_;
  std::vector<int> taps_;
  int max_depth_ = 0, n_candidates_ = kMaxTopTokens, n_rot_ = 0;

 private:
  DraftWorkspace carve(Carver& carver, int max_rows) const;
};

// The draft model of a file of its own: DFlash, or a file that holds only a prediction block (MTP). Throws kUnsupported
// when it does not fit the target. File and target must outlive the result.
std::unique_ptr<DraftModel> make_draft_model(const ModelFile& file, const Model& target);

// The prediction block (MTP) inside the target's own file; null when the file has none.
std::unique_ptr<DraftModel> make_mtp(const ModelFile& target_file, const Model& target);

}  // namespace lb
