#include "models/kept_row.h"

#include "base/error.h"
#include "ops/copy_rows.h"
#include "ops/previous_row.h"

namespace lb {

void KeptRow::append(const DraftRows& in, float* previous, Stream& stream) const {
  for (const Segment& rows : in.segments) {
    const RowLayer kept = rows.state->row(layer, shard);
    const size_t first = static_cast<size_t>(rows.first_row) * dim;
    run(PreviousRow{.x = in.taps + first,
                    .history = kept.history,
                    .pending = kept.pending,
                    .y = previous + first,
                    .accepted = rows.state->accepted(shard),
                    .tree = rows.tree,
                    .rows = rows.rows,
                    .dim = dim},
        stream);
  }
}

void KeptRow::begin_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const {
  LB_ASSERT(slot > 0);
  const RowLayer kept = state.row(layer, shard);
  fold(state, kept.history, stream);
  copy(kept.history, ring.row(slot - 1, dim), stream);
}

void KeptRow::end_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const {
  const RowLayer kept = state.row(layer, shard);
  copy(ring.row(slot - 1, dim), kept.history, stream);
  copy(ring.row(slot, dim), kept.pending, stream);
}

void KeptRow::read(SequenceState& state, float* to, Stream& stream) const {
  copy(state.row(layer, shard).history, to, stream);
  fold(state, to, stream);
}

void KeptRow::copy(const float* from, float* to, Stream& stream) const {
  run(CopyRows{.x = from, .y = to, .rows = 1, .dim = dim, .y_rows = 1, .y_stride = dim}, stream);
}

// history: the row before the pending ones; out: the last committed row.
void KeptRow::fold(SequenceState& state, float* history, Stream& stream) const {
  run(PreviousRow{.x = nullptr,
                  .history = history,
                  .pending = state.row(layer, shard).pending,
                  .y = nullptr,
                  .accepted = state.accepted(shard),
                  .tree = {},
                  .rows = 0,
                  .dim = dim},
      stream);
}

}  // namespace lb
