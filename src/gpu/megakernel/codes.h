// How values are written to mailboxes: as fp32, or quantised once for readers that would all round them alike.
#pragma once

#include "gpu/megakernel/mailbox.h"
#include "gpu/round_block.h"

namespace lb::gpu {

// Where a lane writes: one mailbox for its value, or for the codes of four lanes, and one mailbox for a scale. Null:
// the lane writes nothing.
struct Destination {
  Mailbox *value = nullptr, *scale = nullptr;
};

// The destination of value `at` of a vector of n that begins at `to`. If quantised, each warp must have the 32 values
// of a scale.
LB_DEVICE Destination destination_in(Mailbox* to, int n, int at, bool is_rounded) {
  if (!is_rounded) return {to + mailbox_index(at), nullptr};
  return {lane() % 4 == 0 ? to + at / 4 : nullptr, lane() == 0 ? to + n / 4 + at / kRoundBlock : nullptr};
}
// Computes the addresses before the value is known.
LB_DEVICE Destination opaque(const Destination& place) { return {opaque(place.value), opaque(place.scale)}; }

LB_DEVICE void write_value(const Destination& to, float y, uint32_t tag) {
  if (to.value != nullptr) store_relaxed(to.value, mailbox_of(y, tag));
}

// Quantises y of 32 lanes to codes and a scale, as one warp. Its shuffles depend on each other, so the caller's
// shuffles interleave with them: beside(mask) runs for masks 1, 2, 4, 8, 16.
template <class Beside>
LB_DEVICE void write_codes(const Destination& to, float y, uint32_t tag, Beside beside) {
  const BlockScale block(warp_max(magnitude(y)));
  beside(1);
  uint32_t four = block.code(y) << 8 * (lane() % 4);
  beside(2);
  four |= shuffle_xor(four, 1);
  beside(4);
  four |= shuffle_xor(four, 2);
  beside(8);
  if (to.value != nullptr) store_relaxed(to.value, mailbox_of(four, tag));
  beside(16);
  if (to.scale != nullptr) store_relaxed(to.scale, mailbox_of(block.scale(), tag));
}

}  // namespace lb::gpu
