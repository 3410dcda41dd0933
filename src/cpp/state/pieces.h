// A sequence's state in pieces, for prefix caches: single KV pages, and at one position the pages of the windows and
// the recurrent state. A piece has the raw bytes of memory, so it is valid only for the same model on the same machine.
#pragma once

#include <cstddef>
#include <span>

#include "state/sequence_state.h"

namespace lb {

size_t page_bytes(const SequenceState& state);         // one page: K and V of all layers that keep all rows
size_t window_page_bytes(const SequenceState& state);  // one page: K and V of all layers with a window; 0: none has one
size_t recurrent_bytes(const SequenceState& state);    // 0 without recurrent layers; the same at every position

// Pages [first, first + count). Order of the bytes: layer, then K before V, then page.
void read_pages(SequenceState& state, int first, int count, std::span<std::byte> to);
void write_pages(SequenceState& state, int first, int count, std::span<const std::byte> from);

// All pages of the window after n_tokens tokens.
void read_windows(SequenceState& state, int n_tokens, std::span<std::byte> to);
void write_windows(SequenceState& state, int n_tokens, std::span<const std::byte> from);

// The recurrent state. Reading folds first and returns the state after all committed tokens.
void read_recurrent(SequenceState& state, std::span<std::byte> to);
void write_recurrent(SequenceState& state, std::span<const std::byte> from);

}  // namespace lb
