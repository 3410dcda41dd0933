// KeptRow: the target's last committed row, as a row layer of the sequence's state, for draft models that continue it.
#pragma once

#include "models/draft_model.h"

namespace lb {

inline constexpr int kMaxChain = 8;  // most tokens of a draft; accepted paths seldom reach half of this

struct KeptRow {
  int layer, shard, dim;  // layer: index in the SequenceState

  // Keeps the rows of an append, in.taps, until one is committed. previous: [rows, dim] out: the row before each row in
  // its sequence.
  void append(const DraftRows& in, float* previous, Stream& stream) const;
  // Plain steps leave the layer as it is. It is folded before the first one, whose previous row is copied to the ring.
  void begin_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const;
  // Leaves the layer as if the last step had been an append of one row: its row is pending, the previous row is
  // history.
  void end_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const;
  // Copies the last committed row. The layer stays as it is, because the state must still be able to rewind.
  void read(SequenceState& state, float* to, Stream& stream) const;

 private:
  void copy(const float* from, float* to, Stream& stream) const;
  void fold(SequenceState& state, float* history, Stream& stream) const;
};

}  // namespace lb
