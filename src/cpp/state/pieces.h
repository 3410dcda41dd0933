// A sequence's state in pieces that can be kept apart and put together again: KV pages, which belong to their tokens
// alone, and the recurrent state at one position. Bytes as they lie in memory; of one model, one machine.
#pragma once

#include <cstddef>
#include <span>

#include "state/sequence_state.h"

namespace lb {

size_t page_bytes(const SequenceState& state);       // of one page: K and V of every attention layer
size_t recurrent_bytes(const SequenceState& state);  // 0: attention only

// Pages [first, first + count): layer after layer, K then V, of each the pages in order.
void read_pages(SequenceState& state, int first, int count, std::span<std::byte> to);
void write_pages(SequenceState& state, int first, int count, std::span<const std::byte> from);

// Of the committed tokens: folds first.
void read_recurrent(SequenceState& state, std::span<std::byte> to);
void write_recurrent(SequenceState& state, std::span<const std::byte> from);

}  // namespace lb
