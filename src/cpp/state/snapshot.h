// A sequence's state as bytes: tokens, KV pages and recurrent state, with a checksum and the fingerprint of the model
// it belongs to. Little endian, native float layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "state/sequence_state.h"

namespace lb {

// Folds the state first, so that saving and going on gives the same bits as restoring and going on.
std::vector<std::byte> save_snapshot(SequenceState& state, std::span<const int32_t> tokens,
                                     const std::string& fingerprint);

// Fills the state and returns the tokens. Throws kFormat (damaged) or kUnsupported (another model, other KV types, too
// long) with `where` in the message, and then leaves the state as it was.
std::vector<int32_t> load_snapshot(std::span<const std::byte> bytes, SequenceState& state, int vocab,
                                   const std::string& fingerprint, const std::string& where);

}  // namespace lb
