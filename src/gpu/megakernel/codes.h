// Where values go in words, rounded or not: a run of rounded ones for readers that would all round it themselves.
#pragma once

#include "gpu/megakernel/mailbox.h"
#include "gpu/round_run.h"

namespace lb::gpu {

// Of a lane's value: its word or, of codes, that of four lanes; and the word of a run's scale. Null: another lane's.
struct Destination {
  Mailbox *value = nullptr, *scale = nullptr;
};

// Value `at` of a vector of n from `to` on; rounded, by whole warps that have a run each.
LB_DEVICE Destination place_in(Mailbox* to, int n, int at, bool is_rounded) {
  if (!is_rounded) return {to + mailbox_index(at), nullptr};
  return {lane() % 4 == 0 ? to + at / 4 : nullptr, lane() == 0 ? to + n / 4 + at / kRoundRun : nullptr};
}
// Known before the value is.
LB_DEVICE Destination opaque(const Destination& place) { return {opaque(place.value), opaque(place.scale)}; }

LB_DEVICE void write_value(const Destination& to, float y, uint32_t tag) {
  if (to.value != nullptr) store_relaxed(to.value, mailbox_of(y, tag));
}

// By a warp, y of a lane each. Its exchanges wait for one another: the caller's go between them, by lanes whose number
// differs in a bit, from 1 to 16.
template <class Beside>
LB_DEVICE void write_codes_of_warp(const Destination& to, float y, uint32_t tag, Beside beside) {
  const RunScale run(warp_max(magnitude(y)));
  beside(1);
  uint32_t four = run.code(y) << 8 * (lane() % 4);
  beside(2);
  four |= shuffle_xor(four, 1);
  beside(4);
  four |= shuffle_xor(four, 2);
  beside(8);
  if (to.value != nullptr) store_relaxed(to.value, mailbox_of(four, tag));
  beside(16);
  if (to.scale != nullptr) store_relaxed(to.scale, mailbox_of(run.scale(), tag));
}

}  // namespace lb::gpu
