// How values go to mailboxes: as fp32, or quantised once for readers that would all round them alike.
#pragma once

#include "gpu/megakernel/mailbox.h"
#include "gpu/round_block.h"

namespace lb::gpu {

// Where a lane writes: a value's mailbox, or that of four lanes' codes; and the mailbox of a scale. Null: nothing.
struct Destination {
  Mailbox *value = nullptr, *scale = nullptr;
};

// For value `at` of a vector of n that begins at `to`. Where it is quantised, each warp has the 32 values of a scale.
LB_DEVICE Destination destination_in(Mailbox* to, int n, int at, bool is_rounded) {
  if (!is_rounded) return {to + mailbox_index(at), nullptr};
  return {lane() % 4 == 0 ? to + at / 4 : nullptr, lane() == 0 ? to + n / 4 + at / kRoundBlock : nullptr};
}
// Computed before the value is.
LB_DEVICE Destination opaque(const Destination& place) { return {opaque(place.value), opaque(place.scale)}; }

LB_DEVICE void write_value(const Destination& to, float y, uint32_t tag) {
  if (to.value != nullptr) store_relaxed(to.value, mailbox_of(y, tag));
}

// By a warp: quantises y of 32 lanes to codes and a scale. Its shuffles depend on one another, so the caller's go
// between them: beside(mask) for masks 1, 2, 4, 8, 16.
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
