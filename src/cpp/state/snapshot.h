// A snapshot of a sequence as bytes: tokens, KV pages and recurrent state, with a checksum and the model's fingerprint.
// Little endian, native float layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "state/sequence_state.h"

namespace lb {

// Folds the state first, so that continuing after save_snapshot() and after load_snapshot() gives identical bits.
std::vector<std::byte> save_snapshot(SequenceState& state, std::span<const int32_t> tokens,
                                     const std::string& fingerprint);

// Fills the state and returns the tokens. Throws kFormat for damaged bytes and kUnsupported for another model, other KV
// types or too many tokens, with `where` in the message. The state is unchanged when this throws.
std::vector<int32_t> load_snapshot(std::span<const std::byte> bytes, SequenceState& state, int vocab,
                                   const std::string& fingerprint, const std::string& where);

}  // namespace lb
