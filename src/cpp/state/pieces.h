// A sequence's state in pieces, for prefix caches: single KV pages, and the recurrent state at one position, including
// the window pages. A piece has the raw bytes of memory, so it is valid only for the same model on the same
// machine.
#pragma once

#include <cstddef>
#include <span>

#include "state/sequence_state.h"

namespace lb {

size_t page_bytes(const SequenceState& state);  // one page: K and V of all layers that keep all rows
// 0 without recurrent layers and windows; the same at every position.
size_t recurrent_bytes(const SequenceState& state);

// Pages [first, first + count). Order of the bytes: layer, then K before V, then page.
void read_pages(SequenceState& state, int first, int count, std::span<std::byte> to);
void write_pages(SequenceState& state, int first, int count, std::span<const std::byte> from);

// The recurrent state after n_tokens tokens. Reading folds first and returns the state after all committed tokens.
void read_recurrent(SequenceState& state, std::span<std::byte> to);
void write_recurrent(SequenceState& state, int n_tokens, std::span<const std::byte> from);

}  // namespace lb
